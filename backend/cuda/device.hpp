// SPDX-License-Identifier: MIT
/// @file device.hpp
/// One CUDA context: what its GPU can do, its kernels, its memory.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/dtype.hpp>

#include "../core/operand_reach.hpp"
#include "driver.hpp"
#include "kernel_store.hpp"

namespace otimes::backend {

class device_context {
public:
    /// The context that is current in this thread, else the primary context of device 0. One object per context, kept as
    /// long as the process.
    static device_context& current();
    /// The context of a stream.
    static device_context& of(CUstream stream);

    device_context(CUcontext context, CUdevice device);
    device_context(const device_context&) = delete;
    device_context& operator=(const device_context&) = delete;

    [[nodiscard]] CUcontext handle() const noexcept { return context_; }
    [[nodiscard]] const gpu_description& description() const noexcept { return description_; }
    [[nodiscard]] kernel_store& kernels() noexcept { return kernels_; }
    /// The number 1 of a type, in device memory.
    [[nodiscard]] CUdeviceptr one(dtype type) const noexcept { return ones_ + 16 * static_cast<CUdeviceptr>(type); }

    /// Stream-ordered memory of this context's pool; the context must be current.
    [[nodiscard]] void* allocate(std::size_t bytes, CUstream stream);
    void release(void* memory, CUstream stream) noexcept;
    /// False: allocating is the system's business, in no stream's order, and freeing waits for the stream.
    [[nodiscard]] bool has_pool() const noexcept { return pool_ != nullptr; }
    /// Whether kernels of this context may use an address; the context must be current. Where the GPU takes pages of the system as it
    /// finds them (HMM, ATS), all memory of the host is within reach.
    [[nodiscard]] reach reach_of(const void* address) const;
    /// Lets another GPU reach what `allocate` gives. False where that cannot be.
    bool share_memory_with(CUdevice other);

private:
    CUcontext context_;
    gpu_description description_;
    kernel_store kernels_;
    CUmemoryPool pool_ = nullptr;
    CUdeviceptr ones_ = 0;
    bool takes_host_pages_ = false;        ///< also those of which the driver knows nothing
    bool takes_registered_pages_ = false;  ///< by the host's own address
};

/// Pinned host memory in blocks that are used again when the copy out of them is done.
class pinned_blocks {
public:
    static constexpr std::size_t block_bytes = std::size_t{4} << 20;

    struct block {
        std::byte* data = nullptr;
        std::size_t bytes = 0;
        CUevent done = nullptr;
    };
    pinned_blocks() = default;
    pinned_blocks(const pinned_blocks&) = delete;
    pinned_blocks& operator=(const pinned_blocks&) = delete;

    /// A block of at least `bytes` bytes whose last copy is done; waits when many are in flight. The context is current.
    block take(std::size_t bytes);
    /// Gives a block back; it is free once `stream` has done what is queued on it now.
    void give_back(const block& used, CUstream stream);
    /// The same where nothing that uses it is queued any more.
    void give_back(const block& used);

private:
    std::mutex mutex_;
    std::vector<block> free_;
    std::size_t made_ = 0;
};

}  // namespace otimes::backend
