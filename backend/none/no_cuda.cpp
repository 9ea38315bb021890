// SPDX-License-Identifier: MIT
// otimes::cuda where it was built without CUDA: every entry says which option to turn on.
#include <otimes/cuda.hpp>

namespace otimes {

namespace {

constexpr const char* how_to =
    "otimes was built without its CUDA back end. Install the CUDA toolkit and configure with "
    "-DOTIMES_CUDA=ON";

[[noreturn]] void refuse(const char* call) {
    throw device_error("otimes::" + std::string(call) + ": " + how_to + ", or evaluate on otimes::cpu().");
}

}  // namespace

const device_executor& gpu() { refuse("gpu()"); }
const device_executor& gpu(CUstream_st*) { refuse("gpu(stream)"); }
const device_executor& gpu(CUstream_st*, device_memory_resource&) { refuse("gpu(stream, resource)"); }

bool forget_gpu(CUstream_st*) { return false; }

const executor& gpus() { refuse("gpus()"); }
const executor* find_gpus() { return nullptr; }

pinned_scope::pinned_scope(const void*, std::int64_t) { refuse("pinned_scope"); }
pinned_scope::~pinned_scope() = default;

const device_executor* find_gpu(std::string* why) {
    if (why != nullptr) {
        *why = how_to;
    }
    return nullptr;
}

}  // namespace otimes
