// SPDX-License-Identifier: MIT
// Products of a few tiles by each kernel of long factors, for tools under which a kernel takes hundreds of times as long: what each is for on an H200,
// which tests/no_cuda/small_sizes.cpp holds the planner to.
#pragma once

#include <vector>

#include "cuda/device_support.hpp"

namespace device_test {

enum class long_kernel { blocks, warpgroup_blocks, pieces, staying, few_fibres };

inline std::vector<shapes> small_sizes_of(long_kernel kernel) {
    switch (kernel) {
        case long_kernel::blocks: return {{400, {200}, {200}}};
        case long_kernel::warpgroup_blocks: return {{6403, {101}, {77}}, {130, {100, 100}, {100, 100}}};  // of floats
        case long_kernel::pieces: return {{200, {512}, {512}}};                                           // real
        case long_kernel::staying: return {{25603, {101}, {77}}, {8, {100, 72, 88}, {100, 72, 88}}};      // real
        case long_kernel::few_fibres: return {{13, {1500}, {700}}};
    }
    return {};
}

}  // namespace device_test
