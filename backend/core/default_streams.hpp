// SPDX-License-Identifier: MIT
/// @file default_streams.hpp
/// The streams of CUDA that have no handle of their own.
#pragma once

#include <cstdint>
#include <string>

namespace otimes::backend {

/// Why no executor takes one of CUDA's default streams, which are written as small numbers; empty for any other stream. They wait for other
/// streams of the process, or are another one in each thread.
inline std::string objection_to_stream(const void* stream, const char* call) {
    const char* what = nullptr;
    switch (reinterpret_cast<std::uintptr_t>(stream)) {
        case 0: what = "the legacy default stream (nullptr), which waits for all other streams"; break;
        case 1: what = "the legacy default stream (cudaStreamLegacy), which waits for all other streams"; break;
        case 2: what = "the default stream of whichever thread uses it (cudaStreamPerThread)"; break;
        default: return {};
    }
    return std::string("otimes::") + call + ": the stream is " + what +
           ". Pass a stream that cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) made, or use otimes::gpu().";
}

}  // namespace otimes::backend
