// SPDX-License-Identifier: MIT
/// @file kernel_store.hpp
/// The loaded kernels of one context. A kernel comes from the core set inside the library, from the disk cache, or from
/// NVRTC, in this order; the first thread that needs one gets it, the others wait for that kernel alone.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

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
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    int value = 0;  ///< of the request's value expression
    kernel_source source = kernel_source::nvrtc;
    double seconds = 0;  ///< what getting it took

    /// It is part of a graph, or runs on a stream that nobody here may wait for: it is never unloaded.
    void keep_for_good() const noexcept { kept.store(true, std::memory_order_relaxed); }
    mutable std::atomic<bool> kept{false};
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
    /// @param most_kernels beyond that number those are unloaded that no plan has and that were asked for longest ago
    kernel_store(CUcontext context, int capability, std::size_t most_kernels = 1024)
        : context_(context), capability_(capability), most_kernels_(most_kernels) {}
    kernel_store(const kernel_store&) = delete;
    kernel_store& operator=(const kernel_store&) = delete;

    /// The kernel, loaded, or nullptr where it cannot be had in this process (`why` says so). Cost: a look-up, or the first time up to
    /// seconds. Thread-safe. @throws device_error when the driver fails, or the compiler without a reason in the text; the next call tries
    /// again.
    std::shared_ptr<const loaded_kernel> get(const kernel_request& request, std::string* why = nullptr);

    /// Kernels that are not kept for good run on this stream alone.
    void run_on(CUstream stream) { stream_ = stream; }

private:
    struct outcome {
        std::shared_ptr<const loaded_kernel> kernel;
        std::string reason;
    };
    struct entry {
        std::shared_future<outcome> result;
        std::uint64_t asked = 0;  ///< the larger, the later
    };
    outcome load(const kernel_request& request) const;
    std::shared_ptr<loaded_kernel> load_module(const kernel_image& image, const kernel_request& request,
                                               kernel_source source) const;
    /// Unloads some where there are too many, and where that can wait for what they still do.
    void trim();

    CUcontext context_;
    int capability_;
    std::size_t most_kernels_;
    std::mutex mutex_;
    std::map<std::string, entry> kernels_;
    std::vector<std::shared_ptr<const loaded_kernel>> retired_;  ///< not unloaded yet
    std::uint64_t asked_ = 0;
    std::atomic<CUstream> stream_{nullptr};
};

}  // namespace otimes::backend
