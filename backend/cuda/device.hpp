// SPDX-License-Identifier: MIT
/// @file device.hpp
/// One CUDA context: what its GPU can do, its kernels, its memory.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/dtype.hpp>

#include "../core/operand_reach.hpp"
#include "driver.hpp"
#include "kernel_store.hpp"

namespace otimes::backend {

/// Pinned host memory in blocks that are used again when the copy out of them is done.
class pinned_blocks {
public:
    static constexpr std::size_t block_bytes = std::size_t{4} << 20;

    struct block {
        std::byte* data = nullptr;
        std::size_t bytes = 0;
        CUevent done = nullptr;
        CUstream stream = nullptr;  ///< that it was used on last; perhaps there is none of that name any more
        bool idle = false;          ///< nothing uses it, whatever its event says: there is nothing to ask the driver
    };
    pinned_blocks() = default;
    pinned_blocks(const pinned_blocks&) = delete;
    pinned_blocks& operator=(const pinned_blocks&) = delete;

    /// A block of at least `bytes` bytes whose last copy is done, for use on `stream`; waits when many of that stream's are in flight, and
    /// where the system pins no more. The context is current.
    block take(std::size_t bytes, CUstream stream);
    /// Gives a block back; it is free once its event has happened.
    void give_back(const block& used);

private:
    template <class Condition>
    std::optional<block> taken_from_free(const Condition& fits);

    std::mutex mutex_;
    std::vector<block> free_;
};

/// A pinned block that is given back at the end of a scope, whatever ends it.
class held_block {
public:
    /// @param stream on which all that uses the block is queued
    held_block(pinned_blocks& pool, CUstream stream, std::size_t bytes)
        : pool_(pool), stream_(stream), block_(pool.take(bytes, stream)) {}
    held_block(const held_block&) = delete;
    held_block& operator=(const held_block&) = delete;
    ~held_block();
    [[nodiscard]] const pinned_blocks::block& get() const noexcept { return block_; }
    /// Nothing that uses the block is queued any more.
    void set_idle() noexcept { idle_ = true; }

private:
    pinned_blocks& pool_;
    CUstream stream_;
    pinned_blocks::block block_;
    bool idle_ = false;
};

/// The streams and events of one run; used again by the next. The kernels run on the executor's stream.
struct stream_lanes {
    CUstream in = nullptr;
    CUstream out = nullptr;
    std::array<CUevent, 2> arrived{};   ///< the slab in this buffer is on the device
    std::array<CUevent, 2> computed{};  ///< its kernels are done
    std::array<CUevent, 2> drained{};   ///< its results have left the device
    CUevent ready = nullptr;            ///< the executor's stream has made the buffers
};

class lanes_pool {
public:
    lanes_pool() = default;
    lanes_pool(const lanes_pool&) = delete;
    lanes_pool& operator=(const lanes_pool&) = delete;

    /// The context is current. @throws device_error
    stream_lanes take();
    void give_back(const stream_lanes& used);

private:
    std::mutex mutex_;
    std::vector<stream_lanes> free_;
};

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
    /// False where the context was made for threads that sleep, or let others run, while they wait for the GPU.
    [[nodiscard]] bool waits_awake() const noexcept { return waits_awake_; }
    [[nodiscard]] const gpu_description& description() const noexcept { return description_; }
    [[nodiscard]] kernel_store& kernels() noexcept { return kernels_; }
    /// Shared by all streams, so that as many are made as are in use at once, however many streams come and go.
    [[nodiscard]] pinned_blocks& pinned() noexcept { return pinned_; }
    [[nodiscard]] lanes_pool& lanes() noexcept { return lanes_; }
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
    pinned_blocks pinned_;
    lanes_pool lanes_;
    CUmemoryPool pool_ = nullptr;
    CUdeviceptr ones_ = 0;
    bool waits_awake_ = true;
    bool takes_host_pages_ = false;        ///< also those of which the driver knows nothing
    bool takes_registered_pages_ = false;  ///< by the host's own address
};

}  // namespace otimes::backend
