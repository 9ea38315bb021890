// SPDX-License-Identifier: MIT
// What the pretended NCCL needs of the pretended driver, in whose library it is.
#pragma once

#include <cuda.h>

#include <functional>

namespace pretended {

void put_on_stream(CUstream s, std::function<void()> w);

}  // namespace pretended
