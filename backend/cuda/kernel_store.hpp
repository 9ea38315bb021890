// SPDX-License-Identifier: MIT
/// @file kernel_store.hpp
/// The loaded kernels of one context. A kernel comes from the core set inside the library, from the disk cache, or from
/// NVRTC, in this order; the first thread that needs one gets it, the others wait for that kernel alone.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "../core/disk_cache.hpp"
#include "../core/kernel_image.hpp"
#include "runtime_compiler.hpp"

namespace otimes::backend {

/// True where kernels can be compiled at run time: NVRTC is there, and OTIMES_NVRTC is not "off". `why` says why not.
bool may_compile(std::string* why = nullptr);

/// The cache of this process's user.
const disk_cache& process_cache();

/// Where a kernel's code came from.
enum class kernel_source : std::uint8_t { core_set, cache, nvrtc };
std::string_view to_string(kernel_source source);

struct loaded_kernel {
    CUfunction function = nullptr;
    int value = 0;  ///< of the request's value expression
    kernel_source source = kernel_source::nvrtc;
    double seconds = 0;  ///< what getting it took
};

/// An entry of the core set: see core_set_builder.cpp.
struct core_set_entry {
    const char* key;
    const char* function;
    std::size_t offset;  ///< in the code of the whole set
    std::size_t bytes;
};
struct core_set {
    const unsigned char* code;
    const core_set_entry* entries;
    std::size_t count;
};
/// Defined by the file that core_set_builder writes.
core_set compiled_core_set();

class kernel_store {
public:
    kernel_store(CUcontext context, int capability) : context_(context), capability_(capability) {}
    kernel_store(const kernel_store&) = delete;
    kernel_store& operator=(const kernel_store&) = delete;

    /// The kernel, loaded, or nullptr where it cannot be had in this process (`why` says so). Cost: a look-up, or the first time up to
    /// seconds. Thread-safe. @throws device_error when the driver fails, or the compiler without a reason in the text; the next call tries
    /// again.
    const loaded_kernel* get(const kernel_request& request, std::string* why = nullptr);

private:
    struct outcome {
        std::optional<loaded_kernel> kernel;
        std::string reason;
    };
    outcome load(const kernel_request& request) const;
    loaded_kernel load_module(const kernel_image& image, const kernel_request& request, kernel_source source) const;

    CUcontext context_;
    int capability_;
    std::mutex mutex_;
    std::map<std::string, std::shared_future<outcome>> kernels_;
};

}  // namespace otimes::backend
