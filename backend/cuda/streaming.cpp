// SPDX-License-Identifier: MIT
#include "streaming.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include <otimes/plan/placement.hpp>
#include <otimes/program/errors.hpp>

#include "../core/host_copy.hpp"
#include "../core/threads.hpp"
#include "executor.hpp"

namespace otimes::backend {

namespace {

using planning::stream_stage;
using planning::streamed_operand;

/// A streamed operand of a run: where its slabs are on both sides.
struct passage {
    const streamed_operand* what = nullptr;
    std::byte* host = nullptr;
    std::int64_t element_bytes = 0;
    std::int64_t host_slab_bytes = 0;  ///< from one slab to the next in host memory
    std::vector<mode> full;            ///< host modes of a full slab, outermost first
    std::vector<mode> rest;            ///< of the last one
    std::array<std::byte*, 2> device{};
    std::int64_t device_bytes = 0;
    bool pinned = false;  ///< the device reads and writes the host memory itself
    [[nodiscard]] std::span<const mode> modes(bool last_is_shorter) const { return last_is_shorter ? rest : full; }
};

/// What a worker does at a time: a pinned block's worth of a slab, or a whole slab of pinned memory.
struct ticket {
    std::int64_t slab = 0;
    std::size_t passage = 0;
    std::int64_t first = 0;  ///< elements
    std::int64_t count = 0;
};

/// Copies of one direction, slab by slab, given out to workers in order.
class ticket_list {
public:
    void add(std::size_t number, const passage& p, std::int64_t slab_count) {
        const bool has_rest = !p.rest.empty();
        const auto cut = [&](bool shorter, std::vector<ticket>& to) {
            const std::int64_t count = count_of(p.modes(shorter));
            const std::int64_t most = p.pinned ? count : planning::pinned_block_bytes / p.element_bytes;
            for (std::int64_t first = 0; first < count; first += most) {
                to.push_back({0, number, first, std::min(most, count - first)});
            }
        };
        cut(false, full_);
        cut(has_rest, rest_);
        slab_count_ = slab_count;
        bytes_ += static_cast<double>(p.device_bytes) * static_cast<double>(slab_count);
        staged_ = staged_ || !p.pinned;
    }
    [[nodiscard]] bool empty() const { return full_.empty(); }
    [[nodiscard]] bool staged() const { return staged_; }
    [[nodiscard]] double bytes() const { return bytes_; }
    [[nodiscard]] std::size_t size_of(std::int64_t slab) const { return list_of(slab).size(); }
    /// False when there is none left. The caller holds the lock.
    bool next(ticket& t) {
        if (slab_ >= slab_count_ || full_.empty()) {
            return false;
        }
        t = list_of(slab_)[at_];
        t.slab = slab_;
        if (++at_ == list_of(slab_).size()) {
            at_ = 0;
            ++slab_;
        }
        return true;
    }

private:
    [[nodiscard]] const std::vector<ticket>& list_of(std::int64_t slab) const {
        return slab + 1 == slab_count_ ? rest_ : full_;
    }
    std::vector<ticket> full_;
    std::vector<ticket> rest_;
    std::int64_t slab_count_ = 0;
    double bytes_ = 0;
    std::int64_t slab_ = 0;
    std::size_t at_ = 0;
    bool staged_ = false;
};

/// True when the device can copy [begin, begin + bytes) without help.
bool is_pinned(const std::byte* begin, std::int64_t bytes) {
    for (const std::byte* const at : {begin, begin + bytes - 1}) {
        unsigned int type = 0;
        if (driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           reinterpret_cast<CUdeviceptr>(at)) != CUDA_SUCCESS ||
            type != CU_MEMORYTYPE_HOST) {
            return false;
        }
    }
    return true;
}

/// One copy between host lines and contiguous device memory, by the device alone.
void copy_lines(std::byte* host, std::byte* device, const host_lines& lines, bool to_device, CUstream stream) {
    const auto on_device = reinterpret_cast<CUdeviceptr>(device);
    if (lines.count == 1) {
        const auto bytes = static_cast<std::size_t>(lines.bytes);
        if (to_device) {
            OTIMES_CUDA_CALL(cuMemcpyHtoDAsync(on_device, host, bytes, stream));
        } else {
            OTIMES_CUDA_CALL(cuMemcpyDtoHAsync(host, on_device, bytes, stream));
        }
        return;
    }
    CUDA_MEMCPY2D copy{};
    copy.WidthInBytes = static_cast<std::size_t>(lines.bytes);
    copy.Height = static_cast<std::size_t>(lines.count);
    (to_device ? copy.srcMemoryType : copy.dstMemoryType) = CU_MEMORYTYPE_HOST;
    (to_device ? copy.dstMemoryType : copy.srcMemoryType) = CU_MEMORYTYPE_DEVICE;
    (to_device ? copy.srcPitch : copy.dstPitch) = static_cast<std::size_t>(lines.distance);
    (to_device ? copy.dstPitch : copy.srcPitch) = static_cast<std::size_t>(lines.bytes);
    if (to_device) {
        copy.srcHost = host;
        copy.dstDevice = on_device;
    } else {
        copy.dstHost = host;
        copy.srcDevice = on_device;
    }
    OTIMES_CUDA_CALL(cuMemcpy2DAsync(&copy, stream));
}

/// One stage in flight. Slabs have two buffers on each side; a worker that copies slab s + 2 in waits until the kernels of
/// slab s are queued and lets the device wait until they are done; likewise outwards. The calling thread queues the kernels.
class stage_run {
public:
    /// @param wrote set before results may reach host memory
    stage_run(CUcontext context, CUstream stream, pinned_blocks& pinned, const stream_lanes& lanes,
              std::vector<passage>& passages, const stream_stage& stage, std::atomic<bool>& wrote)
        : context_(context),
          stream_(stream),
          pinned_(pinned),
          lanes_(lanes),
          passages_(passages),
          stage_(stage),
          wrote_(wrote),
          arriving_(static_cast<std::size_t>(stage.slab_count)),
          leaving_(static_cast<std::size_t>(stage.slab_count)) {
        for (std::size_t i = 0; i < passages.size(); ++i) {
            if (passages[i].what->cut_mode >= 0 && passages[i].what->read) {
                in_.add(i, passages[i], stage.slab_count);
            }
            if (passages[i].what->cut_mode >= 0 && passages[i].what->written) {
                out_.add(i, passages[i], stage.slab_count);
            }
        }
        for (std::int64_t s = 0; s < stage.slab_count; ++s) {
            arriving_[static_cast<std::size_t>(s)] = in_.empty() ? 0 : in_.size_of(s);
            leaving_[static_cast<std::size_t>(s)] = out_.empty() ? 0 : out_.size_of(s);
        }
    }

    /// @param queue(slab) queues the kernels of a slab on the executor's stream
    template <class Queue>
    void run(const Queue& queue) {
        std::vector<std::thread> workers;
        const auto start = [&](bool inwards) {
            const ticket_list& list = inwards ? in_ : out_;
            const int count = list.empty() ? 0 : list.staged() ? workers_for(list.bytes()) : 1;
            const auto work = [this, inwards](std::size_t) {
                guarded([&] {
                    const context_scope scope(context_);
                    inwards ? copy_in() : copy_out();
                });
            };
            if (start_threads(workers, static_cast<std::size_t>(count), work) == 0 && count > 0) {
                throw device_error(
                    "otimes: the system gives no thread for copies between the host and the GPU. Raise the limit of "
                    "threads, or keep the operands in device memory.");
            }
        };
        guarded([&] {
            start(true);
            start(false);
            for (std::int64_t s = 0; s < stage_.slab_count; ++s) {
                const auto buffer = static_cast<std::size_t>(s % 2);
                if (!wait([&] { return arriving_[at(s)] == 0 && (s < 2 || leaving_[at(s - 2)] == 0); })) {
                    return;
                }
                if (!in_.empty()) {
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(stream_, lanes_.arrived[buffer], 0));
                }
                if (s >= 2 && !out_.empty()) {
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(stream_, lanes_.drained[buffer], 0));
                }
                queue(s);
                OTIMES_CUDA_CALL(cuEventRecord(lanes_.computed[buffer], stream_));
                const std::lock_guard lock(mutex_);
                ++queued_;
                changed_.notify_all();
            }
        });
        for (std::thread& worker : workers) {
            worker.join();
        }
        if (failure_) {
            // Nothing of this run may touch the buffers once they are given back. A lost context waits for nothing.
            driver().cuStreamSynchronize(lanes_.in);
            driver().cuStreamSynchronize(lanes_.out);
            driver().cuStreamSynchronize(stream_);
            std::rethrow_exception(failure_);
        }
        OTIMES_CUDA_CALL(cuStreamSynchronize(lanes_.out));
        OTIMES_CUDA_CALL(cuStreamSynchronize(stream_));
    }

private:
    static constexpr auto block_bytes = static_cast<std::size_t>(planning::pinned_block_bytes);
    static std::size_t at(std::int64_t s) { return static_cast<std::size_t>(s); }

    /// A core copies several GB/s past its caches, a link takes about 50 each way. Few bytes do not pay for many threads.
    static int workers_for(double bytes) {
        const double cores = std::thread::hardware_concurrency();
        return static_cast<int>(
            std::clamp(bytes / 2e6, 1.0, std::clamp(cores / 2, 1.0, planning::streaming::most_workers)));
    }

    /// Waits for a condition on the shared state; false when another thread has failed.
    template <class Condition>
    bool wait(const Condition& holds) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return failure_ != nullptr || holds(); });
        return failure_ == nullptr;
    }

    template <class Work>
    void guarded(const Work& work) {
        try {
            work();
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!failure_) {
                failure_ = std::current_exception();
            }
            changed_.notify_all();
        }
    }

    bool take(ticket_list& list, ticket& t) {
        const std::lock_guard lock(mutex_);
        return failure_ == nullptr && list.next(t);
    }

    struct place {
        passage* of;
        std::byte* host;
        std::byte* device;
        std::span<const mode> modes;
        std::size_t buffer;
    };
    place place_of(const ticket& t) {
        passage& p = passages_[t.passage];
        const bool shorter = t.slab + 1 == stage_.slab_count && !p.rest.empty();
        const auto buffer = static_cast<std::size_t>(t.slab % 2);
        return {&p, p.host + t.slab * p.host_slab_bytes, p.device[buffer] + t.first * p.element_bytes, p.modes(shorter),
                buffer};
    }

    void copy_in() {
        std::array<std::unique_ptr<held_block>, 2> blocks;
        std::size_t turn = 0;
        ticket t;
        while (take(in_, t)) {
            const place to = place_of(t);
            held_block* block = nullptr;
            if (!to.of->pinned) {
                std::unique_ptr<held_block>& mine = blocks[turn++ % 2];
                if (!mine) {
                    mine = std::make_unique<held_block>(pinned_, lanes_.in, block_bytes);
                }
                block = mine.get();
                OTIMES_CUDA_CALL(cuEventSynchronize(block->get().done));
                gather_elements(to.host, to.modes, to.of->element_bytes, t.first, t.count, block->get().data);
            }
            const bool comes_back = to.of->what->written;
            if (t.slab >= 2 &&
                !wait([&] { return queued_ >= t.slab - 1 && (!comes_back || leaving_[at(t.slab - 2)] == 0); })) {
                return;
            }
            if (t.slab >= 2) {
                OTIMES_CUDA_CALL(
                    cuStreamWaitEvent(lanes_.in, (comes_back ? lanes_.drained : lanes_.computed)[to.buffer], 0));
            }
            if (block == nullptr) {
                copy_lines(to.host, to.device, lines_of(to.modes, to.of->element_bytes), true, lanes_.in);
            } else {
                OTIMES_CUDA_CALL(cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(to.device), block->get().data,
                                                   static_cast<std::size_t>(t.count * to.of->element_bytes),
                                                   lanes_.in));
                OTIMES_CUDA_CALL(cuEventRecord(block->get().done, lanes_.in));
            }
            const std::lock_guard lock(mutex_);
            if (arriving_[at(t.slab)] == 1) {
                OTIMES_CUDA_CALL(cuEventRecord(lanes_.arrived[to.buffer], lanes_.in));
            }
            --arriving_[at(t.slab)];
            changed_.notify_all();
        }
    }

    void copy_out() {
        std::unique_ptr<held_block> block;
        ticket t;
        while (take(out_, t)) {
            const place from = place_of(t);
            if (!wait([&] { return queued_ > t.slab; })) {
                return;
            }
            if (!from.of->pinned && !block) {
                block = std::make_unique<held_block>(pinned_, lanes_.out, block_bytes);
            }
            OTIMES_CUDA_CALL(cuStreamWaitEvent(lanes_.out, lanes_.computed[from.buffer], 0));
            if (from.of->pinned) {
                wrote_ = true;
                copy_lines(from.host, from.device, lines_of(from.modes, from.of->element_bytes), false, lanes_.out);
            } else {
                OTIMES_CUDA_CALL(cuMemcpyDtoHAsync(block->get().data, reinterpret_cast<CUdeviceptr>(from.device),
                                                   static_cast<std::size_t>(t.count * from.of->element_bytes),
                                                   lanes_.out));
                OTIMES_CUDA_CALL(cuEventRecord(block->get().done, lanes_.out));
            }
            {
                const std::lock_guard lock(mutex_);
                if (leaving_[at(t.slab)] == 1) {
                    OTIMES_CUDA_CALL(cuEventRecord(lanes_.drained[from.buffer], lanes_.out));
                }
                --leaving_[at(t.slab)];
                changed_.notify_all();
            }
            if (!from.of->pinned) {
                OTIMES_CUDA_CALL(cuEventSynchronize(block->get().done));
                wrote_ = true;
                scatter_elements(from.host, from.modes, from.of->element_bytes, t.first, t.count, block->get().data);
            }
        }
    }

    CUcontext context_;
    CUstream stream_;
    pinned_blocks& pinned_;
    const stream_lanes& lanes_;
    std::vector<passage>& passages_;
    const stream_stage& stage_;
    std::atomic<bool>& wrote_;
    ticket_list in_;
    ticket_list out_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::size_t> arriving_;  ///< copies of a slab that are not queued yet
    std::vector<std::size_t> leaving_;
    std::int64_t queued_ = 0;  ///< slabs whose kernels are queued
    std::exception_ptr failure_;
};

}  // namespace

std::shared_ptr<const prepared_stream> gpu_executor::prepare_stream(const plan& p, std::int64_t budget) const {
    auto ready = std::make_shared<prepared_stream>();
    ready->budget = budget;
    ready->plan = planning::plan_stream(p.source, device_.description(), p.wishes, budget);
    for (const planning::stream_stage& stage : ready->plan.stages) {
        prepared_stage s;
        s.stage = stage;
        s.slab = prepared(stage.slab);
        s.rest = stage.rest.passes.empty() ? nullptr : prepared(stage.rest);
        ready->stages.push_back(std::move(s));
    }
    return ready;
}

void gpu_executor::run_stage(const prepared_stage& ready, const bindings& b, std::atomic<bool>& wrote) const {
    const planning::stream_stage& stage = ready.stage;
    const std::int64_t rest_extent = stage.slab_extent > 0 ? stage.cut.extent % stage.slab_extent : 0;
    std::vector<passage> passages;
    bindings placed = b;
    for (const tensor& t : stage.source.tensors) {
        for (const streamed_operand& o : stage.operands) {
            const tensor& first = stage.source.at(o.tensor);
            if (t.role == tensor_role::output && first.role == tensor_role::output &&
                b.pointers[static_cast<std::size_t>(t.binding)] !=
                    b.pointers[static_cast<std::size_t>(first.binding)]) {
                throw unsupported_error(
                    "otimes: a program with several results in host memory cannot pass through the GPU. Evaluate them "
                    "one by one.");
            }
        }
    }
    struct cleanup {
        const gpu_executor& where;
        std::vector<passage>& passages;
        ~cleanup() {
            for (const passage& p : passages) {
                for (std::byte* const memory : p.device) {
                    if (memory != nullptr) {
                        where.release(memory, p.device_bytes);
                    }
                }
            }
        }
    } const at_end{*this, passages};
    for (const streamed_operand& o : stage.operands) {
        const tensor& t = stage.source.at(o.tensor);
        passage& p = passages.emplace_back();
        p.what = &o;
        p.host = static_cast<std::byte*>(b.pointers[static_cast<std::size_t>(t.binding)]);
        p.element_bytes = t.scalar_bytes;
        program host = o.cut_mode >= 0 ? planning::slice_of(stage.source, stage.cut, stage.slab_extent) : stage.source;
        p.full = planning::pack(host, o.tensor);
        if (o.cut_mode >= 0) {
            const mode& cut = stage.source.modes_of(t)[static_cast<std::size_t>(o.cut_mode)];
            p.host_slab_bytes = stage.slab_extent * cut.stride * p.element_bytes;
            if (rest_extent > 0) {
                program last = planning::slice_of(stage.source, stage.cut, rest_extent);
                p.rest = planning::pack(last, o.tensor);
            }
        }
        p.device_bytes = count_of(p.full) * p.element_bytes;
        if (p.device_bytes > 0) {
            for (std::size_t i = 0; i < (o.cut_mode >= 0 ? p.device.size() : 1); ++i) {
                p.device[i] = static_cast<std::byte*>(allocate(p.device_bytes));
            }
            const host_lines lines = lines_of(p.full, p.element_bytes);
            const std::int64_t reach = lines.distance * (lines.count - 1) + lines.bytes;
            p.pinned = o.cut_mode >= 0 &&
                       device_copies(lines, stage.bytes_in + stage.bytes_out, device_.description().l2_bytes) &&
                       (p.rest.empty() || lines_of(p.rest, p.element_bytes).count > 0) && is_pinned(p.host, reach) &&
                       is_pinned(p.host + (stage.slab_count - 1) * p.host_slab_bytes, p.element_bytes);
        }
    }
    const std::int32_t first = planning::streaming::first_device_binding(stage.source);
    const auto place = [&](std::size_t buffer) {
        for (std::size_t i = 0; i < passages.size(); ++i) {
            placed.pointers[static_cast<std::size_t>(first) + i] =
                passages[i].what->cut_mode >= 0 ? passages[i].device[buffer] : passages[i].device[0];
        }
    };
    while (placed.pointers.size() < static_cast<std::size_t>(first) + passages.size()) {
        placed.pointers.push_back(nullptr);
    }
    for (const passage& p : passages) {
        if (p.what->cut_mode < 0 && p.what->read && p.device_bytes > 0) {
            upload(p.device[0], {p.host, p.element_bytes, p.full});
        }
    }
    if (stage.cut.extent > 0) {
        // Each line of host memory has a page of its own. What kernels keep in the second-level cache drives the table of
        // these pages out, and the copies then wait for it line by line.
        const bool copies_lines = std::ranges::any_of(
            passages, [](const passage& p) { return p.pinned && lines_of(p.full, p.element_bytes).count > 1; });
        const auto kernels_of = [&](const std::shared_ptr<const prepared_plan>& usual) {
            return copies_lines && usual ? prepared(usual->made_for, lowered_for::passing) : usual;
        };
        const std::shared_ptr<const prepared_plan> slab_kernels = kernels_of(ready.slab),
                                                   rest_kernels = kernels_of(ready.rest);
        const stream_lanes lanes = device_.lanes().take();
        struct give_lanes_back {
            lanes_pool& pool;
            const stream_lanes& lanes;
            ~give_lanes_back() { pool.give_back(lanes); }
        } const keep{device_.lanes(), lanes};
        OTIMES_CUDA_CALL(cuEventRecord(lanes.ready, stream_));
        OTIMES_CUDA_CALL(cuStreamWaitEvent(lanes.in, lanes.ready, 0));
        OTIMES_CUDA_CALL(cuStreamWaitEvent(lanes.out, lanes.ready, 0));
        stage_run run(device_.handle(), stream_, device_.pinned(), lanes, passages, stage, wrote);
        run.run([&](std::int64_t slab) {
            place(static_cast<std::size_t>(slab % 2));
            run_on_device(slab + 1 == stage.slab_count && rest_kernels ? *rest_kernels : *slab_kernels, placed, {});
        });
    } else {
        place(0);
        run_on_device(*ready.slab, placed, {});
    }
    wrote = true;
    for (const passage& p : passages) {
        if (p.what->cut_mode < 0 && p.what->written && p.device_bytes > 0) {
            download({p.host, p.element_bytes, p.full}, p.device[0]);
        }
    }
}

void gpu_executor::run_with_host_operands(const prepared_plan& ready, const bindings& b) const {
    if (!ready.stream) {
        return;  // no elements
    }
    const context_scope scope(device_.handle());
    require_no_capture("an operand is in host memory");
    struct freed {
        void operator()(std::byte* memory) const noexcept { ::operator delete (memory, std::align_val_t{64}); }
    };
    std::shared_ptr<const prepared_stream> stream = ready.stream;
    for (std::atomic<bool> wrote{false};;) {
        try {
            std::unique_ptr<std::byte, freed> between;
            bindings bound = b;
            if (const std::int64_t bytes = stream->plan.host_temporary_bytes; bytes > 0) {
                between.reset(
                    static_cast<std::byte*>(::operator new (static_cast<std::size_t>(bytes), std::align_val_t{64})));
            }
            const auto place =
                static_cast<std::size_t>(planning::streaming::first_device_binding(ready.made_for.source));
            while (bound.pointers.size() <= place) {
                bound.pointers.push_back(nullptr);
            }
            bound.pointers[place] = between.get();
            for (const prepared_stage& stage : stream->stages) {
                run_stage(stage, bound, wrote);
            }
            return;
        } catch (const device_memory_error&) {
            // Others use the device too: smaller slabs, while nothing has been written and there are any.
            const std::int64_t before = stream->plan.device_bytes;
            stream = wrote || before < (2 << 20) ? nullptr : prepare_smaller_stream(ready.made_for, before);
            if (!stream) {
                throw;
            }
        }
    }
}

std::shared_ptr<const prepared_stream> gpu_executor::prepare_smaller_stream(const plan& p, std::int64_t before) const {
    try {
        return prepare_stream(p, before / 2);
    } catch (const budget_error& refused) {                // which nobody has asked for
        const std::int64_t least = refused.least_bytes();  // 0: the device has less
        return least > 0 && least < before ? prepare_stream(p, least) : nullptr;
    }
}

}  // namespace otimes::backend

namespace otimes {

pinned_scope::pinned_scope(const void* memory, std::int64_t bytes) {
    if (bytes <= 0) {
        return;
    }
    const auto& owner = dynamic_cast<const backend::gpu_executor&>(gpu());
    const backend::context_scope scope(owner.context());
    const backend::beside_captures pinning;
    void* const begin = const_cast<void*>(memory);
    OTIMES_CUDA_CALL(cuMemHostRegister(begin, static_cast<std::size_t>(bytes), CU_MEMHOSTREGISTER_PORTABLE));
    memory_ = begin;
    context_ = owner.context();
}

pinned_scope::~pinned_scope() {
    // At the end of the process the driver may be gone already; then the memory is no longer pinned. The thread may be one without a context,
    // or with another GPU's.
    const backend::driver_functions* const f = backend::find_driver();
    if (memory_ != nullptr && f != nullptr && f->cuCtxPushCurrent(static_cast<CUcontext>(context_)) == CUDA_SUCCESS) {
        CUcontext popped = nullptr;
        CUstreamCaptureMode mode =
            CU_STREAM_CAPTURE_MODE_RELAXED;  // as beside_captures, which throws where the context is lost
        f->cuThreadExchangeStreamCaptureMode(&mode);
        f->cuMemHostUnregister(memory_);
        f->cuThreadExchangeStreamCaptureMode(&mode);
        backend::reached_pages::forget();
        f->cuCtxPopCurrent(&popped);
    }
}

}  // namespace otimes
