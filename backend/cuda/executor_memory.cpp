// SPDX-License-Identifier: MIT
// The GPU executor's memory: allocations in the order of its stream, also while that is captured, and copies from and to the host.
#include "executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include <otimes/program/errors.hpp>

#include "../core/host_copy.hpp"
#include "receipt.hpp"

namespace otimes::backend {

gpu_executor::~gpu_executor() {
    const driver_functions* const f = find_driver();
    const bool pushed = f != nullptr && f->cuCtxPushCurrent(device_.handle()) == CUDA_SUCCESS;
    if (pushed || resource_ != nullptr) {  // else the memory is lost with its context
        give_back_late();
        for (const arena& a : outgrown_) {
            give_back(a.data, a.bytes);
        }
        for (const arena* const a : {&workspace_, &scratch_}) {
            if (a->data != nullptr) {
                give_back(a->data, a->bytes);
            }
        }
    }
    CUcontext popped = nullptr;
    if (pushed) {
        f->cuEventDestroy(marker_);
        f->cuCtxPopCurrent(&popped);
    }
}

void gpu_executor::require_unused() const {
    const auto refuse = [](const std::string& why) { throw device_error("otimes::forget_gpu(stream): " + why); };
    if (const std::int64_t blocks = blocks_in_use_.load(); blocks > 0) {
        refuse("matrices still have " + std::to_string(bytes_in_use_.load()) + " bytes of the stream's memory in " +
               std::to_string(blocks) + (blocks == 1 ? " piece" : " pieces") +
               ". End them first, or move them to another executor: DeviceMatrix<Scalar> copy(executor); copy = dX.");
    }
    if (otimes::detail::default_executor_slot().load() == this || otimes::detail::scoped_executor_slot() == this) {
        refuse(
            "its executor is the default one. Set another first, otimes::set_default_executor(nullptr), or end the "
            "scoped_executor.");
    }
    const driver_functions* const f = find_driver();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // Of a lost context nothing can be asked: then it is forgotten, too.
    if (f != nullptr && f->cuStreamIsCapturing(stream_, &status) == CUDA_SUCCESS &&
        status != CU_STREAM_CAPTURE_STATUS_NONE) {
        refuse("the stream is being captured into a graph. End the capture first.");
    }
}

void* gpu_executor::allocate(std::int64_t bytes) const {
    void* const memory = take_memory(bytes);
    blocks_in_use_.fetch_add(1, std::memory_order_relaxed);
    bytes_in_use_.fetch_add(bytes, std::memory_order_relaxed);
    return memory;
}

void* gpu_executor::take_memory(std::int64_t bytes) const {
    const context_scope scope(device_.handle());
    const bool captured = is_captured(stream_);
    if (captured && resource_ == nullptr && !device_.has_pool()) {
        // It would be no node of the graph: others would have it while the graph still writes to it.
        require_no_capture("memory must be allocated, on a device without memory pools,");
    }
    if (!captured && late_.some_wait()) {
        give_back_late();
    }
    void* const memory = resource_ != nullptr ? resource_->allocate(static_cast<std::size_t>(bytes), stream_)
                                              : device_.allocate(static_cast<std::size_t>(bytes), stream_);
    if (memory == nullptr && bytes > 0) {
        throw device_error("otimes: the device_memory_resource gave no memory for " + std::to_string(bytes) +
                           " bytes and threw nothing. Let its allocate() throw where it has none.");
    }
    if (captured) {
        late_.allocated_in_capture(memory);
    }
    return memory;
}

void gpu_executor::release(void* memory, std::int64_t bytes) const noexcept {
    blocks_in_use_.fetch_sub(1, std::memory_order_relaxed);
    bytes_in_use_.fetch_sub(bytes, std::memory_order_relaxed);
    const driver_functions* const f = find_driver();
    const bool pushed = f != nullptr && f->cuCtxPushCurrent(device_.handle()) == CUDA_SUCCESS;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const bool captured =
        pushed && f->cuStreamIsCapturing(stream_, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
    if (!late_.keep({memory, bytes}, captured) && (pushed || resource_ != nullptr)) {
        give_back(memory, bytes);
    }
    if (!captured && pushed && late_.some_wait()) {
        give_back_late();
    }
    CUcontext popped = nullptr;
    if (pushed) {
        f->cuCtxPopCurrent(&popped);
    }
}

void gpu_executor::give_back(void* memory, std::int64_t bytes) const noexcept {
    if (resource_ != nullptr) {
        resource_->deallocate(memory, static_cast<std::size_t>(bytes), stream_);
    } else {
        device_.release(memory, stream_);
    }
}

void gpu_executor::give_back_late() const noexcept {
    for (const late_frees::piece& p : late_.take()) {
        give_back(p.memory, p.bytes);
    }
}

std::byte* gpu_executor::grown(arena& memory, std::int64_t bytes) const {
    if (memory.bytes < bytes) {
        require_no_capture("a workspace must be allocated");
        if (memory.data != nullptr) {
            // Graphs that were captured with it may still run: the old memory stays as long as the executor, and growing by
            // halves bounds what is lost to twice the final size.
            bytes = std::max(bytes, memory.bytes + memory.bytes / 2);
            outgrown_.reserve(outgrown_.size() + 1);
        }
        auto* const larger = static_cast<std::byte*>(take_memory(bytes));
        if (memory.data != nullptr) {
            outgrown_.push_back(memory);
        }
        memory = {larger, bytes};
    }
    return memory.data;
}

void gpu_executor::send(void* to, const void* from, std::span<const mode> modes, std::int64_t element_bytes) const {
    const std::int64_t count = count_of(modes);
    const std::int64_t most = static_cast<std::int64_t>(pinned_blocks::block_bytes) / element_bytes;
    for (std::int64_t first = 0; first < count; first += most) {
        const std::int64_t some = std::min(most, count - first);
        const auto bytes = static_cast<std::size_t>(some * element_bytes);
        const held_block block(device_.pinned(), stream_, bytes);
        gather_elements(static_cast<const std::byte*>(from), modes, element_bytes, first, some, block.get().data);
        OTIMES_CUDA_CALL(
            cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(static_cast<std::byte*>(to) + first * element_bytes),
                              block.get().data, bytes, stream_));
    }
}

void gpu_executor::upload(void* to, const host_tensor& from) const {
    const context_scope scope(device_.handle());
    require_no_capture("host memory is copied to the device");
    send(to, from.data, from.modes, from.element_bytes);
}

void gpu_executor::download(const host_tensor& to, const void* from) const {
    const context_scope scope(device_.handle());
    require_no_capture("device memory is copied to the host");
    const std::int64_t count = count_of(to.modes);
    const std::int64_t most = static_cast<std::int64_t>(pinned_blocks::block_bytes) / to.element_bytes;
    struct part {
        std::unique_ptr<held_block> block;
        std::int64_t first = 0;
        std::int64_t count = 0;
    };
    // The next part is on its way while one is written to its place.
    std::vector<part> queued;
    std::int64_t first = 0;
    const auto finish_oldest = [&] {
        const part oldest = std::move(queued.front());
        queued.erase(queued.begin());
        OTIMES_CUDA_CALL(cuEventSynchronize(oldest.block->get().done));
        scatter_elements(static_cast<std::byte*>(to.data), to.modes, to.element_bytes, oldest.first, oldest.count,
                         oldest.block->get().data);
        oldest.block->set_idle();
    };
    while (first < count) {
        part next;
        next.first = first;
        next.count = std::min(most, count - first);
        const auto bytes = static_cast<std::size_t>(next.count * to.element_bytes);
        next.block = std::make_unique<held_block>(device_.pinned(), stream_, bytes);
        OTIMES_CUDA_CALL(cuMemcpyDtoHAsync(
            next.block->get().data,
            reinterpret_cast<CUdeviceptr>(static_cast<const std::byte*>(from) + first * to.element_bytes), bytes,
            stream_));
        OTIMES_CUDA_CALL(cuEventRecord(next.block->get().done, stream_));
        first += next.count;
        queued.push_back(std::move(next));
        if (queued.size() == 3) {
            finish_oldest();
        }
    }
    while (!queued.empty()) {
        finish_oldest();
    }
}

// Kernels write to page-locked memory of the host: no copy behind them, nothing to allocate on the device. What they write is looked for there
// for a while, which takes 2 us less than the driver's own wait (H200).
void gpu_executor::receive(std::int64_t bytes, const std::function<std::int64_t(void*)>& queue,
                           const std::function<void(const void*)>& read) const {
    // Bytes: to look at more takes the host as long as a kernel takes that adds them up.
    constexpr std::size_t most_sums = std::size_t{32} << 10;
    const context_scope scope(device_.handle());
    const auto aligned = (static_cast<std::size_t>(bytes) + 15) / 16 * 16;
    held_block shared(device_.pinned(), stream_, aligned + most_sums);  // where this fails kernels may still write
    const std::span<std::byte> numbers(shared.get().data, static_cast<std::size_t>(bytes));
    awaited_numbers awaited(numbers);
    receipt sums(*this, numbers, {shared.get().data + aligned, most_sums});
    awaited.keep(static_cast<std::size_t>(queue(shared.get().data)));
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    bool come = device_.waits_awake() && sums.come_until(end);
    if (come) {
        sums.write_totals();
        come = awaited.come_until(end);
    }
    if (!come) {
        OTIMES_CUDA_CALL(cuStreamSynchronize(stream_));
        sums.write_totals();
    }
    shared.set_idle();
    read(shared.get().data);
}

}  // namespace otimes::backend
