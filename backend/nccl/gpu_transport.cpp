// SPDX-License-Identifier: MIT
// Ranks on GPUs: all of one process, or one for each process with agreements over another transport. Blocks go by grouped NCCL
// messages, or, between GPUs of one process that reach each other's memory, by one kernel on each GPU that stores into all others.
// Both on a stream of their own, of high priority.
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/program/errors.hpp>

#include "../core/arguments.hpp"
#include "../cuda/core_set.hpp"
#include "../cuda/device.hpp"
#include "../cuda/driver.hpp"
#include "../distributed/host_transport.hpp"
#include "../distributed/transports.hpp"
#include "nccl.hpp"

namespace otimes::backend {

namespace {

/// Exchanges whose ends are told apart.
constexpr std::int64_t most_on_their_way = 4;
/// Threads that a kernel of an exchange has in all: enough to keep all links of a GPU busy, few enough to leave it to the steps
/// that are computed meanwhile.
constexpr unsigned exchange_threads = 256;
constexpr unsigned exchange_blocks = 128;
/// From this size on a rank's part of an exchange that goes on beside work is left to a copy engine: one takes no multiprocessor,
/// but is told of every block by itself, so that the copies must be large.
constexpr std::int64_t least_engine_bytes = 16 << 20;
constexpr std::int64_t least_engine_run = 32 << 10;
constexpr std::int64_t least_engine_copy = 2 << 20;
constexpr std::int64_t most_pitch = (std::int64_t{1} << 31) - 1;

/// One GPU of this process.
struct gpu_rank {
    CUdevice device = 0;
    CUcontext context = nullptr;
    const device_executor* executor = nullptr;
    const device_executor* beside = nullptr;  ///< on `exchange`
    nccl_communicator* nccl = nullptr;
    CUstream exchange = nullptr;                       ///< for NCCL's messages and for the kernel
    CUstream own = nullptr;                            ///< for what stays on the GPU, where copy engines do the rest
    CUevent stayed = nullptr;                          ///< its end
    CUevent ready = nullptr;                           ///< what was queued before the exchange
    CUevent fence = nullptr;                           ///< what was queued before begin_fence
    std::array<CUevent, most_on_their_way> arrived{};  ///< the exchanges, by number
    CUevent waited_for = nullptr;                      ///< for synchronize
    CUfunction kernel = nullptr;                       ///< kernels/exchange_blocks.cuh
    CUfunction await = nullptr;                        ///< kernels/arrivals.cuh
    bool await_early = false;                          ///< it may be launched early
    unsigned* arrivals = nullptr;  ///< (portions, GPUs): words that each GPU sets; and what its own kernels count in
};

class gpu_transport final : public transport {
public:
    gpu_transport(std::int32_t first_gpu, std::int32_t count, std::unique_ptr<transport> control,
                  std::chrono::milliseconds deadline, bool by_copies)
        : control_(std::move(control)), deadline_(deadline) {
        gpus_.resize(static_cast<std::size_t>(count));
        try {
            make_streams(first_gpu);
            copies_ = control_ == nullptr && by_copies && let_reach();
            if (size() > 1 && !copies_) {
                connect();
            }
        } catch (...) {
            end_streams();
            throw;
        }
    }

    void make_streams(std::int32_t first_gpu) {
        for (std::size_t i = 0; i < gpus_.size(); ++i) {
            gpu_rank& g = gpus_[i];
            OTIMES_CUDA_CALL(cuDeviceGet(&g.device, first_gpu + static_cast<std::int32_t>(i)));
            OTIMES_CUDA_CALL(cuDevicePrimaryCtxRetain(&g.context, g.device));
            const context_scope scope(g.context);
            g.executor = &gpu();
            const beside_captures making;
            int lowest = 0;
            int highest = 0;
            OTIMES_CUDA_CALL(cuCtxGetStreamPriorityRange(&lowest, &highest));
            OTIMES_CUDA_CALL(cuStreamCreateWithPriority(&g.exchange, CU_STREAM_NON_BLOCKING, highest));
            g.beside = &gpu(g.exchange);
            OTIMES_CUDA_CALL(cuStreamCreate(&g.own, CU_STREAM_NON_BLOCKING));
            OTIMES_CUDA_CALL(cuEventCreate(&g.stayed, CU_EVENT_DISABLE_TIMING));
            OTIMES_CUDA_CALL(cuEventCreate(&g.ready, CU_EVENT_DISABLE_TIMING));
            OTIMES_CUDA_CALL(cuEventCreate(&g.fence, CU_EVENT_DISABLE_TIMING));
            OTIMES_CUDA_CALL(cuEventCreate(&g.waited_for, CU_EVENT_DISABLE_TIMING));
            for (CUevent& event : g.arrived) {
                OTIMES_CUDA_CALL(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            }
        }
    }

    /// Gives streams, events and the second executor back; CUDA lets them last until what is queued there has ended.
    void end_streams() noexcept {
        const driver_functions* const f = find_driver();
        for (gpu_rank& g : gpus_) {
            if (f == nullptr || g.context == nullptr || f->cuCtxPushCurrent(g.context) != CUDA_SUCCESS) {
                continue;
            }
            bool forgotten = true;
            try {
                forget_gpu(g.exchange);
            } catch (const device_error&) {  // memory of that executor is in use: both stay
                forgotten = false;
            }
            for (const CUstream stream : {forgotten ? g.exchange : nullptr, g.own}) {
                if (stream != nullptr) {
                    f->cuStreamDestroy(stream);
                }
            }
            for (const CUevent event : {g.stayed, g.ready, g.fence, g.waited_for}) {
                if (event != nullptr) {
                    f->cuEventDestroy(event);
                }
            }
            for (const CUevent event : g.arrived) {
                if (event != nullptr) {
                    f->cuEventDestroy(event);
                }
            }
            CUcontext popped = nullptr;
            f->cuCtxPopCurrent(&popped);
        }
    }

    ~gpu_transport() override {
        // NCCL would wait for the end of every graph that holds its messages: then it stays, as streams do.
        if (!in_graphs_) {
            end_nccl();
        }
        for (gpu_rank& g : gpus_) {
            if (g.arrivals != nullptr && broken_.empty()) {  // the last fence has ended for all that set its words
                g.executor->release(g.arrivals, arrivals_bytes());
            }
        }
        // Graphs keep what they were captured with. Behind a loss nobody knows what is still queued, and a wait might not end.
        if (broken_.empty() && !in_graphs_) {
            end_streams();
        }
    }

    /// Ends the communicators of NCCL. What they still have to do is waited for until the deadline: a rank that is lost now would never
    /// answer, and `ncclCommDestroy` alone would wait for it.
    void end_nccl() noexcept {
        const nccl_functions* const f = size() > 1 ? find_nccl(nullptr) : nullptr;
        if (f == nullptr) {
            return;
        }
        const time_limit limit(deadline_);
        bool ends = broken_.empty();
        for (const gpu_rank& g : gpus_) {
            if (g.nccl != nullptr && ends) {
                const int begun = f->finalize(g.nccl);
                ends = begun == nccl_success || begun == nccl_in_progress;
            }
        }
        for (const gpu_rank& g : gpus_) {
            int state = g.nccl != nullptr ? nccl_in_progress : nccl_success;
            while (ends && state == nccl_in_progress) {
                ends = f->async_error(g.nccl, &state) == nccl_success && !limit.passed();
                std::this_thread::yield();
            }
            ends = ends && state == nccl_success;
        }
        for (gpu_rank& g : gpus_) {
            if (g.nccl != nullptr) {
                ends ? f->destroy(g.nccl) : f->abort(g.nccl);
                g.nccl = nullptr;
            }
        }
    }

    [[nodiscard]] std::string_view name() const noexcept override {
        return size() == 1 ? "one GPU" : copies_ ? "stores between GPUs" : control_ ? "nccl and mpi" : "nccl";
    }
    [[nodiscard]] std::int32_t size() const noexcept override {
        return control_ ? control_->size() : static_cast<std::int32_t>(gpus_.size());
    }
    [[nodiscard]] std::int32_t first_rank() const noexcept override { return control_ ? control_->first_rank() : 0; }
    [[nodiscard]] std::int32_t local_count() const noexcept override { return static_cast<std::int32_t>(gpus_.size()); }
    [[nodiscard]] const executor& executor_of(std::int32_t local) const override { return *at(local).executor; }

    [[nodiscard]] bool captured() const override {
        const gpu_rank& first = gpus_.front();
        const bool captured = is_captured(first.executor->stream());
        for (const gpu_rank& g : gpus_) {
            const CUstream stream = g.executor->stream();
            if (is_captured(stream) != captured ||
                place_in_capture(stream).sequence != place_in_capture(first.executor->stream()).sequence) {
                const auto number = std::to_string(first_rank() + (&g - gpus_.data()));
                throw device_error(
                    "otimes: of the streams of rank " + std::to_string(first_rank()) + " and of rank " + number +
                    " one is captured into a graph, and the other one is not, or into another graph. Begin "
                    "the capture on one and let the others wait there for an event that is recorded on it.");
            }
        }
        return captured;
    }

    [[nodiscard]] void* allocate(std::int32_t local, std::int64_t bytes) override {
        at(local).executor->require_no_capture("memory of a rank must be allocated");
        return at(local).executor->allocate(std::max<std::int64_t>(bytes, 1));
    }
    void release(std::int32_t local, void* memory, std::int64_t bytes) noexcept override {
        at(local).executor->release(memory, std::max<std::int64_t>(bytes, 1));
    }
    /// NCCL takes messages to one rank one after another, each at a fixed cost, and copies within a GPU are quick.
    [[nodiscard]] std::int64_t least_message_bytes() const noexcept override { return 16 << 20; }
    [[nodiscard]] bool reaches(std::int32_t from, std::int32_t to) const noexcept override {
        return from == to || copies_;
    }

    void copy(std::int32_t local, const void* from, void* to, const strided_copy& what) override {
        gpu_rank& g = at(local);
        const context_scope scope(g.context);
        const rank_copy one{local, from, local, to, what};
        launch_copies(g, {&one, 1}, g.executor->stream());
    }

    void upload(std::int32_t local, void* to, const void* from, std::int64_t bytes) override {
        if (bytes > 0) {
            synchronize();  // polled, as in download: pinned memory that is taken again waits for the copy before it
            at(local).executor->upload(to, bytes_on_host(const_cast<void*>(from), bytes));
        }
    }
    void download(std::int32_t local, void* to, const void* from, std::int64_t bytes) override {
        synchronize();  // polled: `download` itself would wait for ever for a message that does not come
        if (bytes > 0) {
            at(local).executor->download(bytes_on_host(to, bytes), from);
        }
    }

    void start(std::span<const message> sends, std::span<const message> receives, std::span<const rank_copy> copies,
               bool beside_work) override {
        start_part(sends, receives, copies, beside_work, true);
    }
    void start_further(std::span<const message> sends, std::span<const message> receives,
                       std::span<const rank_copy> copies, bool beside_work) override {
        start_part(sends, receives, copies, beside_work, false);
    }

    /// @param first as in `start`; else as in `start_further`
    void start_part(std::span<const message> sends, std::span<const message> receives,
                    std::span<const rank_copy> copies, bool beside_work, bool first) {
        require_whole();
        in_graphs_ = in_graphs_ || captured();
        const auto slot = static_cast<std::size_t>(started_ % most_on_their_way);
        if (size() == 1) {
            const context_scope scope(gpus_.front().context);
            launch_copies(gpus_.front(), copies, gpus_.front().executor->stream());
            return;
        }
        if (copies_ && !beside_work && started_ == finished_) {  // nothing beside it: on the executors' own streams
            begin_fence();
            end_fence();
            for_each_sender(copies, [this](std::size_t local, std::span<const rank_copy> of_one, std::int64_t) {
                launch_copies(gpus_[local], of_one, gpus_[local].executor->stream());
            });
            begin_fence();
            fenced_exchange_ = ++started_;
            return;
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.ready, g.executor->stream()));
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            for (const gpu_rank& other : gpus_) {
                // A copy must not meet what its target's GPU still does there.
                if (&other == &g || (copies_ && first)) {
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(g.exchange, other.ready, 0));
                }
            }
        }
        for_each_sender(copies, [&](std::size_t local, std::span<const rank_copy> of_one, std::int64_t bytes) {
            const bool by_engine =
                beside_work && bytes >= least_engine_bytes &&
                std::ranges::all_of(of_one, [](const rank_copy& c) { return c.to == c.from || suits_engine(c); });
            if (by_engine) {
                copy_by_engine(gpus_[local], of_one);
            } else {
                launch_copies(gpus_[local], of_one, gpus_[local].exchange);
            }
        });
        if (!copies_) {
            const nccl_functions& f = *find_nccl(nullptr);
            check(f.group_start(), "ncclGroupStart");
            open_group group(f);
            for (const message& m : sends) {
                gpu_rank& g = at(m.from - first_rank());
                check(group, f.send(m.data, static_cast<std::size_t>(m.bytes), nccl_bytes, m.to, g.nccl, g.exchange),
                      "ncclSend");
            }
            for (const message& m : receives) {
                gpu_rank& g = at(m.to - first_rank());
                check(group,
                      f.receive(m.data, static_cast<std::size_t>(m.bytes), nccl_bytes, m.from, g.nccl, g.exchange),
                      "ncclRecv");
            }
            check(group.end(), "ncclGroupEnd");
            settle("the start of an exchange");
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.arrived[slot], g.exchange));
        }
        ++started_;
    }

    void finish(std::int32_t leave) override {
        const std::int64_t last = started_ - leave;
        if (last <= finished_) {
            return;
        }
        finished_ = last;
        if (last == fenced_exchange_) {
            end_fence();
            return;
        }
        const auto slot = static_cast<std::size_t>((last - 1) % most_on_their_way);  // the streams keep the order
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            for (const gpu_rank& other : gpus_) {
                if (&other == &g || copies_) {
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(g.executor->stream(), other.arrived[slot], 0));
                }
            }
        }
    }

    void begin_fence() override {
        require_whole();
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.fence, g.executor->stream()));
        }
    }
    void end_fence() override {
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            for (const gpu_rank& other : gpus_) {
                if (&other != &g) {
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(g.executor->stream(), other.fence, 0));
                }
            }
        }
    }

    [[nodiscard]] std::span<const arrival_signal> signals_of_fence() override {
        require_whole();
        // A graph would keep the numbers that are told and waited for, and its replays would not wait: fences by events are captured as such.
        if (!copies_ || captured() || !prepare_signals()) {
            return {};
        }
        for (arrival_signal& s : signals_) {
            ++s.value;
        }
        return signals_;
    }
    void end_signalled_fence(std::uint32_t value) override {
        awaited_arrivals arguments{};
        arguments.count = static_cast<unsigned>(size());
        arguments.value = value;
        // Blocks that wait behind this kernel must not take the room of a pass on a branch that has yet to tell.
        arguments.room = !branched_;
        branched_ = branched_ && value != signals_.front().value;
        // Long after synchronize() gives up: what is lost is told as an error of the ranks, not of the GPU.
        arguments.deadline = static_cast<unsigned long long>(nanoseconds_of(deadline_, 10));
        void* parameters[] = {&arguments};
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            arguments.words = g.arrivals;
            launch_kernel(g.await, 1, 32, 0, g.executor->stream(), parameters, g.await_early);
        }
    }
    [[nodiscard]] awaited_signal awaited_by(std::int32_t local, std::uint32_t value) const override {
        awaited_signal awaited;
        awaited.words = at(local).arrivals;
        awaited.senders = static_cast<unsigned>(size());
        awaited.value = value;
        awaited.deadline = std::chrono::nanoseconds(nanoseconds_of(deadline_, 10));
        return awaited;
    }
    [[nodiscard]] const executor* branch_of(std::int32_t local) override {
        gpu_rank& g = at(local);
        const context_scope scope(g.context);
        in_graphs_ = in_graphs_ || captured();
        OTIMES_CUDA_CALL(cuEventRecord(g.ready, g.executor->stream()));
        OTIMES_CUDA_CALL(cuStreamWaitEvent(g.exchange, g.ready, 0));
        branched_ = true;
        return g.beside;
    }

    void maximum(std::span<std::uint64_t> words) override {
        agree([&](transport& control) { control.maximum(words); });
    }
    void broadcast(std::string& text) override {
        agree([&](transport& control) { control.broadcast(text); });
    }
    void collect(std::span<double> numbers) override {
        agree([&](transport& control) { control.collect(numbers); });
    }

    void synchronize() override {
        require_whole();
        for (const gpu_rank& g : gpus_) {
            g.executor->require_no_capture("the ranks are waited for");
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.waited_for, g.executor->stream()));
        }
        const time_limit limit(deadline_);
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            const beside_captures asking;  // another thread may capture a stream that has nothing to do with this one
            for (int polls = 0;; ++polls) {
                const CUresult state = driver().cuEventQuery(g.waited_for);
                if (state == CUDA_SUCCESS) {
                    break;
                }
                if (state != CUDA_ERROR_NOT_READY) {
                    fail(describe(state, "cuEventQuery"));
                }
                if (polls % 64 == 63) {
                    look_at_errors();
                    if (limit.passed()) {
                        fail("waited " + std::to_string(deadline_.count()) +
                             " ms for a GPU: another rank has died, hangs, or does something else.");
                    }
                    std::this_thread::yield();
                }
            }
        }
    }

private:
    [[nodiscard]] gpu_rank& at(std::int32_t local) { return gpus_[static_cast<std::size_t>(local)]; }
    [[nodiscard]] const gpu_rank& at(std::int32_t local) const { return gpus_[static_cast<std::size_t>(local)]; }

    static host_tensor bytes_on_host(void* data, std::int64_t bytes) {
        host_tensor t;
        t.data = data;
        t.element_bytes = bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 1;
        t.modes = {{bytes / t.element_bytes, 1}};
        return t;
    }

    [[nodiscard]] std::int64_t arrivals_bytes() const noexcept {
        return static_cast<std::int64_t>((2 + 2 * most_portions * gpus_.size()) * sizeof(unsigned));
    }

    /// The words by which GPUs tell each other what they have stored, and the kernel that waits for them. False where it cannot be had.
    bool prepare_signals() {
        if (!signals_.empty() || size() > static_cast<std::int32_t>(most_receivers)) {
            return !signals_.empty();
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            const std::shared_ptr<const loaded_kernel> found =
                device_context::current().kernels().get(arrivals_request());
            if (found == nullptr) {
                return false;
            }
            found->keep_for_good();
            g.await = found->function;
            g.await_early = may_launch_early(g.await);
        }
        std::vector<unsigned> zero(static_cast<std::size_t>(arrivals_bytes()) / sizeof(unsigned), 0);
        for (gpu_rank& g : gpus_) {
            if (g.arrivals == nullptr) {  // else of a call that failed behind it
                g.arrivals = static_cast<unsigned*>(g.executor->allocate(arrivals_bytes()));
            }
            g.executor->upload(g.arrivals, bytes_on_host(zero.data(), arrivals_bytes()));
            g.executor->synchronize();
        }
        for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
            arrival_signal s;
            for (const gpu_rank& g : gpus_) {
                s.words.push_back(g.arrivals + rank);
            }
            s.tiles_done = gpus_[rank].arrivals + most_portions * gpus_.size();
            s.tiles_dealt = s.tiles_done + most_portions * gpus_.size();
            s.blocks_done = s.tiles_dealt + 1;
            signals_.push_back(std::move(s));
        }
        return true;
    }

    /// use(local rank, its copies, their bytes) for each that has some, with its context current.
    template <class Use>
    void for_each_sender(std::span<const rank_copy> copies, const Use& use) {
        std::vector<rank_copy> of_one;
        for (std::size_t local = 0; !copies.empty() && local < gpus_.size(); ++local) {
            of_one.clear();
            std::int64_t bytes = 0;
            for (const rank_copy& c : copies) {
                if (c.from == static_cast<std::int32_t>(local)) {
                    of_one.push_back(c);
                    bytes += bytes_of(c);
                }
            }
            if (!of_one.empty()) {
                const context_scope scope(gpus_[local].context);
                use(local, of_one, bytes);
            }
        }
    }

    static std::int64_t bytes_of(const rank_copy& c) {
        return c.what.run * c.what.counts[0] * c.what.counts[1] * c.what.counts[2];
    }

    /// How copy engines take a block: the runs of one level, or of two, by each copy.
    struct engine_copies {
        std::array<std::size_t, 3> levels{2, 1, 0};  ///< innermost first
        std::int64_t from_height = 1;  ///< runs from one index of the second level to the next; with `to_height`
        std::int64_t to_height = 1;
        std::int64_t deep = 1;  ///< indices of the second level that a copy takes
        std::int64_t count = 1;
    };
    static engine_copies engine_copies_of(const strided_copy& c) {
        engine_copies e;
        std::ranges::sort(e.levels, [&](std::size_t a, std::size_t b) { return c.counts[a] > c.counts[b]; });
        const auto [first, second, third] = e.levels;
        // A 3-D copy has whole rows between its planes.
        if (c.counts[second] > 1 && c.from_strides[first] > 0 && c.to_strides[first] > 0 &&
            c.from_strides[second] % c.from_strides[first] == 0 && c.to_strides[second] % c.to_strides[first] == 0) {
            e.from_height = c.from_strides[second] / c.from_strides[first];
            e.to_height = c.to_strides[second] / c.to_strides[first];
            if (e.from_height >= c.counts[first] && e.to_height >= c.counts[first]) {
                e.deep = c.counts[second];
            }
        }
        e.count = c.counts[third] * (e.deep > 1 ? 1 : c.counts[second]);
        return e;
    }
    static bool suits_engine(const rank_copy& one) {
        const strided_copy& c = one.what;
        const engine_copies e = engine_copies_of(c);
        return c.run >= least_engine_run && c.from_strides[e.levels[0]] <= most_pitch &&
               c.to_strides[e.levels[0]] <= most_pitch && bytes_of(one) >= e.count * least_engine_copy;
    }

    /// Queues what one GPU sends as 3-D copies, one receiver after another: a copy engine fills all links by one copy, and ranks
    /// begin with different receivers. What stays is copied meanwhile, on a stream of its own; where that is as much as is sent (two
    /// ranks) an engine would take longer for it than the kernel takes of the GPU's own work. Its context is current.
    static void copy_by_engine(gpu_rank& g, std::span<const rank_copy> copies) {
        std::int64_t stays = 0;
        std::int64_t sent = 0;
        for (const rank_copy& one : copies) {
            (one.to == one.from ? stays : sent) += bytes_of(one);
        }
        const bool by_kernel = 2 * stays > sent;
        std::vector<rank_copy> own;
        OTIMES_CUDA_CALL(cuStreamWaitEvent(g.own, g.ready, 0));
        for (const rank_copy& one : copies) {
            if (one.to == one.from && (by_kernel || !suits_engine(one))) {
                own.push_back(one);
                continue;
            }
            const CUstream stream = one.to == one.from ? g.own : g.exchange;
            const strided_copy& c = one.what;
            const engine_copies e = engine_copies_of(c);
            const auto [first, second, third] = e.levels;
            for (std::int64_t i = 0; i < c.counts[third]; ++i) {
                for (std::int64_t j = 0; j < c.counts[second]; j += e.deep) {
                    CUDA_MEMCPY3D box{};
                    box.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
                    box.srcDevice = reinterpret_cast<CUdeviceptr>(one.source) +
                                    static_cast<CUdeviceptr>(i * c.from_strides[third] + j * c.from_strides[second]);
                    box.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
                    box.dstDevice = reinterpret_cast<CUdeviceptr>(one.target) +
                                    static_cast<CUdeviceptr>(i * c.to_strides[third] + j * c.to_strides[second]);
                    const bool pitched = c.counts[first] > 1;
                    box.srcPitch = static_cast<std::size_t>(pitched ? c.from_strides[first] : c.run);
                    box.dstPitch = static_cast<std::size_t>(pitched ? c.to_strides[first] : c.run);
                    box.srcHeight = static_cast<std::size_t>(e.deep > 1 ? e.from_height : c.counts[first]);
                    box.dstHeight = static_cast<std::size_t>(e.deep > 1 ? e.to_height : c.counts[first]);
                    box.WidthInBytes = static_cast<std::size_t>(c.run);
                    box.Height = static_cast<std::size_t>(c.counts[first]);
                    box.Depth = static_cast<std::size_t>(e.deep);
                    OTIMES_CUDA_CALL(cuMemcpy3DAsync(&box, stream));
                }
            }
        }
        launch_copies(g, own, g.executor->stream());
        OTIMES_CUDA_CALL(cuEventRecord(g.stayed, g.own));
        OTIMES_CUDA_CALL(cuStreamWaitEvent(g.exchange, g.stayed, 0));
    }

    /// Queues copies from one GPU, by one kernel for every `most_moves` of them. Its context is current.
    static void launch_copies(gpu_rank& g, std::span<const rank_copy> copies, CUstream stream) {
        if (!copies.empty() && g.kernel == nullptr) {
            std::string why;
            const std::shared_ptr<const loaded_kernel> found =
                device_context::current().kernels().get(exchange_request(), &why);
            if (found == nullptr) {
                throw device_error("otimes: the kernel that copies between GPUs could not be had: " + why + ".");
            }
            found->keep_for_good();
            g.kernel = found->function;
        }
        exchange_arguments arguments{};
        std::int64_t bytes = 0;
        const auto launch = [&] {
            if (arguments.count == 0) {
                return;
            }
            const auto count = static_cast<unsigned>(arguments.count);
            const std::int64_t needed = (bytes / arguments.unit + exchange_threads - 1) / exchange_threads;
            const auto blocks =
                static_cast<unsigned>(std::clamp<std::int64_t>(needed, count, std::max(exchange_blocks, count)));
            void* parameters[] = {&arguments};
            OTIMES_CUDA_CALL(
                cuLaunchKernel(g.kernel, blocks, 1, 1, exchange_threads, 1, 1, 0, stream, parameters, nullptr));
            arguments = {};
            bytes = 0;
        };
        for (const rank_copy& c : copies) {
            if (bytes_of(c) == 0) {
                continue;
            }
            const int unit = widest_unit(c);
            if (arguments.count == most_moves || (arguments.count > 0 && unit != arguments.unit)) {
                launch();
            }
            arguments.unit = unit;
            block_move& m = arguments.moves[static_cast<std::size_t>(arguments.count++)];
            m.from = c.source;
            m.to = c.target;
            m.run = c.what.run;
            for (std::size_t level = 0; level < 3; ++level) {
                m.counts[level] = c.what.counts[level];
                m.from_strides[level] = c.what.from_strides[level];
                m.to_strides[level] = c.what.to_strides[level];
            }
            bytes += bytes_of(c);
        }
        launch();
    }
    /// The widest access that divides a copy's run, addresses and strides.
    static int widest_unit(const rank_copy& c) {
        auto all = static_cast<std::uint64_t>(c.what.run) | reinterpret_cast<std::uintptr_t>(c.source) |
                   reinterpret_cast<std::uintptr_t>(c.target);
        for (std::size_t level = 0; level < 3; ++level) {
            if (c.what.counts[level] > 1) {
                all |= static_cast<std::uint64_t>(c.what.from_strides[level]) |
                       static_cast<std::uint64_t>(c.what.to_strides[level]);
            }
        }
        return static_cast<int>(std::min<std::uint64_t>(all & (~all + 1), 16));
    }

    /// Lets all GPUs of this process reach each other's matrices. False where one cannot.
    bool let_reach() {
        for (const gpu_rank& from : gpus_) {
            for (const gpu_rank& to : gpus_) {
                if (from.device != to.device && !can_reach(from.device, to.device)) {
                    return false;
                }
            }
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            for (const gpu_rank& to : gpus_) {
                if (to.device != g.device && !device_context::current().share_memory_with(to.device)) {
                    return false;
                }
            }
        }
        return true;
    }
    static bool can_reach(CUdevice from, CUdevice to) {
        int yes = 0;
        OTIMES_CUDA_CALL(cuDeviceCanAccessPeer(&yes, from, to));
        return yes != 0;
    }

    void connect() {
        std::string why;
        const nccl_functions* const f = find_nccl(&why);
        std::uint64_t missing = f == nullptr ? 1 : 0;
        maximum({&missing, 1});
        if (missing != 0) {
            throw device_error(
                "otimes: several GPUs need NCCL: " + (f == nullptr ? why : std::string("another rank has none")) + ".");
        }
        nccl_identity identity{};
        std::string text;
        if (first_rank() == 0) {
            check(f->get_unique_id(&identity), "ncclGetUniqueId");
            text.assign(identity.bytes, sizeof(identity.bytes));
        }
        broadcast(text);
        if (text.size() != sizeof(identity.bytes)) {
            throw device_error("otimes: NCCL's identity did not arrive.");
        }
        std::memcpy(identity.bytes, text.data(), sizeof(identity.bytes));
        check(f->group_start(), "ncclGroupStart");
        open_group group(*f);
        for (std::int32_t i = 0; i < local_count(); ++i) {
            const context_scope scope(at(i).context);
            nccl_configuration how;
            check(group, f->init_rank(&at(i).nccl, size(), identity, first_rank() + i, &how), "ncclCommInitRankConfig");
        }
        check(group.end(), "ncclGroupEnd");
        settle("NCCL's start");
    }

    /// Waits until calls that a non-blocking communicator answered with "in progress" are done.
    void settle(const char* what) {
        const nccl_functions& f = *find_nccl(nullptr);
        const time_limit limit(deadline_);
        for (gpu_rank& g : gpus_) {
            int state = nccl_in_progress;
            while (true) {
                if (g.nccl != nullptr) {
                    check(f.async_error(g.nccl, &state), "ncclCommGetAsyncError");
                    if (state != nccl_in_progress) {
                        check(state, what);
                        break;
                    }
                }
                if (limit.passed()) {
                    fail("waited " + std::to_string(deadline_.count()) + " ms for " + what + ".");
                }
                std::this_thread::yield();
            }
        }
    }

    void look_at_errors() {
        for (const gpu_rank& g : gpus_) {
            if (g.nccl == nullptr) {
                continue;
            }
            int state = nccl_success;
            check(find_nccl(nullptr)->async_error(g.nccl, &state), "ncclCommGetAsyncError");
            check(state, "a message");
        }
    }

    /// A group of NCCL's calls that this thread has begun. One that stays open keeps what the thread asks of NCCL next, also of other
    /// communicators, and also to abort.
    class open_group {
    public:
        explicit open_group(const nccl_functions& f) : f_(f) {}
        open_group(const open_group&) = delete;
        open_group& operator=(const open_group&) = delete;
        ~open_group() {
            if (open_) {
                f_.group_end();
            }
        }
        int end() {
            open_ = false;
            return f_.group_end();
        }

    private:
        const nccl_functions& f_;
        bool open_ = true;
    };
    /// Of a call in a group, which ends where the call has failed.
    void check(open_group& group, int code, const char* what) {
        if (code != nccl_success && code != nccl_in_progress) {
            group.end();
        }
        check(code, what);
    }
    void check(int code, const char* what) {
        if (code != nccl_success && code != nccl_in_progress) {
            fail(std::string(what) + " failed: " + find_nccl(nullptr)->error_text(code) + ".");
        }
    }

    // What goes through the processes; where one does not answer, messages that wait for it on the GPUs are ended, too.
    template <class Use>
    void agree(const Use& use) {
        require_whole();
        if (control_) {
            try {
                use(*control_);
            } catch (const device_error& why) {
                fail(why.what());
            }
        }
    }

    [[noreturn]] void fail(const std::string& what) {
        broken_ = "otimes: rank " + std::to_string(first_rank()) + " of " + std::to_string(size()) + " over " +
                  std::string(name()) + ": " + what + " The communicator cannot be used any more.";
        const nccl_functions* const f = find_nccl(nullptr);
        for (gpu_rank& g : gpus_) {
            if (g.nccl != nullptr && f != nullptr) {
                f->abort(g.nccl);  // ends kernels that wait for a message
                g.nccl = nullptr;
            }
        }
        throw device_error(broken_);
    }
    void require_whole() const {
        if (!broken_.empty()) {
            throw device_error("otimes: the communicator is broken since: " + broken_);
        }
    }

    std::unique_ptr<transport> control_;
    std::chrono::milliseconds deadline_;
    std::vector<gpu_rank> gpus_;
    bool copies_ = false;
    bool in_graphs_ = false;               ///< exchanges or branches were captured
    std::vector<arrival_signal> signals_;  ///< of each rank
    bool branched_ = false;                ///< a fence that has not ended is begun by work of branches
    std::int64_t started_ = 0;             ///< exchanges
    std::int64_t finished_ = 0;            ///< of those, the first ones
    std::int64_t fenced_exchange_ =
        -1;  ///< `started_` of the last one that went on the executors' streams: a fence ends it
    std::string broken_;
};

}  // namespace

std::int32_t visible_gpus() {
    const driver_functions* const f = find_driver();
    int count = 0;
    return f != nullptr && f->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

std::unique_ptr<transport> make_gpu_transport(std::int32_t first_gpu, std::int32_t count,
                                              std::unique_ptr<transport> control, std::chrono::milliseconds deadline,
                                              bool by_copies) {
    const std::int32_t visible = visible_gpus();
    if (count == 0) {
        count = visible - first_gpu;
    }
    if (count < 1 || first_gpu + count > visible) {
        std::string why;
        static_cast<void>(find_gpu(&why));
        throw device_error("otimes::gpu_communicator(): this process sees " + std::to_string(visible) + " GPUs, " +
                           std::to_string(std::max(count, 1)) + " are needed" + (why.empty() ? "" : ": " + why) + ".");
    }
    return std::make_unique<gpu_transport>(first_gpu, count, std::move(control), deadline, by_copies);
}

}  // namespace otimes::backend
