// SPDX-License-Identifier: MIT
// Ranks on GPUs: all of one process, or one for each process with agreements over another transport. Blocks go by grouped NCCL
// messages on a stream of their own, or, between GPUs of one process that reach each other's memory, by copies.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/program/errors.hpp>

#include "../cuda/device.hpp"
#include "../cuda/driver.hpp"
#include "../distributed/host_transport.hpp"
#include "../distributed/transports.hpp"
#include "nccl.hpp"

namespace otimes::backend {

namespace {

constexpr std::int64_t most_pitch = (std::int64_t{1} << 31) - 1;

/// One GPU of this process.
struct gpu_rank {
    CUdevice device = 0;
    CUcontext context = nullptr;
    const device_executor* executor = nullptr;
    nccl_communicator* nccl = nullptr;
    CUstream messages = nullptr;   ///< for NCCL
    CUevent ready = nullptr;       ///< what was queued before the messages
    CUevent arrived = nullptr;     ///< the messages
    CUevent waited_for = nullptr;  ///< for synchronize
    std::vector<CUstream> copies;  ///< to each local rank
    std::vector<CUevent> copied;
    std::vector<char> copy_used;  ///< since the last finish
};

class gpu_transport final : public transport {
public:
    gpu_transport(std::int32_t first_gpu, std::int32_t count, std::unique_ptr<transport> control,
                  std::chrono::milliseconds deadline, bool by_copies)
        : control_(std::move(control)), deadline_(deadline) {
        gpus_.resize(static_cast<std::size_t>(count));
        for (std::int32_t i = 0; i < count; ++i) {
            gpu_rank& g = gpus_[static_cast<std::size_t>(i)];
            OTIMES_CUDA_CALL(cuDeviceGet(&g.device, first_gpu + i));
            OTIMES_CUDA_CALL(cuDevicePrimaryCtxRetain(&g.context, g.device));
            const context_scope scope(g.context);
            g.executor = &gpu();
            OTIMES_CUDA_CALL(cuStreamCreate(&g.messages, CU_STREAM_NON_BLOCKING));
            for (CUevent* const event : {&g.ready, &g.arrived, &g.waited_for}) {
                OTIMES_CUDA_CALL(cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
            }
        }
        copies_ = control_ == nullptr && by_copies && let_reach();
        if (size() > 1 && !copies_) {
            connect();
        }
    }

    ~gpu_transport() override {
        const nccl_functions* const f = size() > 1 ? find_nccl(nullptr) : nullptr;
        for (gpu_rank& g : gpus_) {
            if (g.nccl != nullptr && f != nullptr) {
                broken_.empty() ? f->destroy(g.nccl) : f->abort(g.nccl);
            }
        }
        // Streams and events stay: a device may still be at work on them, and there are few.
    }

    [[nodiscard]] std::string_view name() const noexcept override {
        return size() == 1 ? "one GPU" : copies_ ? "copies between GPUs" : control_ ? "nccl and mpi" : "nccl";
    }
    [[nodiscard]] std::int32_t size() const noexcept override {
        return control_ ? control_->size() : static_cast<std::int32_t>(gpus_.size());
    }
    [[nodiscard]] std::int32_t first_rank() const noexcept override { return control_ ? control_->first_rank() : 0; }
    [[nodiscard]] std::int32_t local_count() const noexcept override { return static_cast<std::int32_t>(gpus_.size()); }
    [[nodiscard]] const executor& executor_of(std::int32_t local) const override { return *at(local).executor; }

    [[nodiscard]] void* allocate(std::int32_t local, std::int64_t bytes) override {
        return at(local).executor->allocate(std::max<std::int64_t>(bytes, 1));
    }
    void release(std::int32_t local, void* memory, std::int64_t bytes) noexcept override {
        at(local).executor->release(memory, std::max<std::int64_t>(bytes, 1));
    }
    [[nodiscard]] bool reaches(std::int32_t from, std::int32_t to) const noexcept override {
        return from == to || copies_;
    }

    void copy(std::int32_t local_from, const void* from, std::int32_t local_to, void* to,
              const strided_copy& what) override {
        gpu_rank& g = at(local_from);
        const context_scope scope(g.context);
        CUstream stream = g.executor->stream();
        if (local_from != local_to) {
            const auto n = static_cast<std::size_t>(local_to);
            stream = g.copies[n];
            g.copy_used[n] = 1;
        }
        copy_runs(reinterpret_cast<CUdeviceptr>(from), reinterpret_cast<CUdeviceptr>(to), what, stream);
    }

    void upload(std::int32_t local, void* to, const void* from, std::int64_t bytes) override {
        if (bytes > 0) {
            at(local).executor->upload(to, bytes_on_host(const_cast<void*>(from), bytes));
        }
    }
    void download(std::int32_t local, void* to, const void* from, std::int64_t bytes) override {
        synchronize();  // polled: `download` itself would wait for ever for a message that does not come
        if (bytes > 0) {
            at(local).executor->download(bytes_on_host(to, bytes), from);
        }
    }

    void start(std::span<const message> sends, std::span<const message> receives) override {
        require_whole();
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.ready, g.executor->stream()));
        }
        if (copies_) {
            for (gpu_rank& g : gpus_) {
                const context_scope scope(g.context);
                for (std::size_t to = 0; to < gpus_.size(); ++to) {
                    if (g.copies[to] != nullptr) {
                        OTIMES_CUDA_CALL(cuStreamWaitEvent(g.copies[to], g.ready, 0));
                        OTIMES_CUDA_CALL(cuStreamWaitEvent(g.copies[to], gpus_[to].ready, 0));
                    }
                }
            }
            return;
        }
        if (size() == 1) {
            return;
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuStreamWaitEvent(g.messages, g.ready, 0));
        }
        const nccl_functions& f = *find_nccl(nullptr);
        check(f.group_start(), "ncclGroupStart");
        for (const message& m : sends) {
            gpu_rank& g = at(m.from - first_rank());
            check(f.send(m.data, static_cast<std::size_t>(m.bytes), nccl_bytes, m.to, g.nccl, g.messages), "ncclSend");
        }
        for (const message& m : receives) {
            gpu_rank& g = at(m.to - first_rank());
            check(f.receive(m.data, static_cast<std::size_t>(m.bytes), nccl_bytes, m.from, g.nccl, g.messages),
                  "ncclRecv");
        }
        check(f.group_end(), "ncclGroupEnd");
        settle("the start of an exchange");
    }

    void finish() override {
        if (copies_) {
            for (gpu_rank& g : gpus_) {
                const context_scope scope(g.context);
                for (std::size_t to = 0; to < gpus_.size(); ++to) {
                    if (g.copy_used.empty() || g.copy_used[to] == 0) {
                        continue;
                    }
                    OTIMES_CUDA_CALL(cuEventRecord(g.copied[to], g.copies[to]));
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(g.executor->stream(), g.copied[to], 0));
                    OTIMES_CUDA_CALL(cuStreamWaitEvent(gpus_[to].executor->stream(), g.copied[to], 0));
                    g.copy_used[to] = 0;
                }
            }
            return;
        }
        if (size() == 1) {
            return;
        }
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.arrived, g.messages));
            OTIMES_CUDA_CALL(cuStreamWaitEvent(g.executor->stream(), g.arrived, 0));
        }
    }

    void maximum(std::span<std::uint64_t> words) override {
        if (control_) {
            control_->maximum(words);
        }
    }
    void broadcast(std::string& text) override {
        if (control_) {
            control_->broadcast(text);
        }
    }
    void collect(std::span<double> numbers) override {
        if (control_) {
            control_->collect(numbers);
        }
    }

    void synchronize() override {
        require_whole();
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
            OTIMES_CUDA_CALL(cuEventRecord(g.waited_for, g.executor->stream()));
        }
        const time_limit limit(deadline_);
        for (gpu_rank& g : gpus_) {
            const context_scope scope(g.context);
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

    /// One copy where the runs lie behind each other, one 2-D copy for each index of the other two levels otherwise.
    static void copy_runs(CUdeviceptr from, CUdeviceptr to, const strided_copy& c, CUstream stream) {
        std::size_t flat = 2;  // the level that the 2-D copies do
        for (std::size_t level = 0; level < 3; ++level) {
            flat = c.counts[level] > c.counts[flat] ? level : flat;
        }
        const std::size_t first = flat == 0 ? 1 : 0;
        const std::size_t second = flat == 2 ? 1 : 2;
        const bool pitched =
            c.counts[flat] > 1 && c.from_strides[flat] <= most_pitch && c.to_strides[flat] <= most_pitch;
        const std::int64_t single = pitched ? 1 : c.counts[flat];
        for (std::int64_t i = 0; i < c.counts[first]; ++i) {
            for (std::int64_t j = 0; j < c.counts[second]; ++j) {
                const std::int64_t at = i * c.from_strides[first] + j * c.from_strides[second];
                const std::int64_t there = i * c.to_strides[first] + j * c.to_strides[second];
                for (std::int64_t k = 0; k < single; ++k) {
                    const CUdeviceptr source = from + static_cast<CUdeviceptr>(at + k * c.from_strides[flat]);
                    const CUdeviceptr target = to + static_cast<CUdeviceptr>(there + k * c.to_strides[flat]);
                    if (!pitched) {
                        OTIMES_CUDA_CALL(cuMemcpyDtoDAsync(target, source, static_cast<std::size_t>(c.run), stream));
                        continue;
                    }
                    CUDA_MEMCPY2D rectangle{};
                    rectangle.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
                    rectangle.srcDevice = source;
                    rectangle.srcPitch = static_cast<std::size_t>(c.from_strides[flat]);
                    rectangle.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
                    rectangle.dstDevice = target;
                    rectangle.dstPitch = static_cast<std::size_t>(c.to_strides[flat]);
                    rectangle.WidthInBytes = static_cast<std::size_t>(c.run);
                    rectangle.Height = static_cast<std::size_t>(c.counts[flat]);
                    OTIMES_CUDA_CALL(cuMemcpy2DAsync(&rectangle, stream));
                }
            }
        }
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
            g.copies.assign(gpus_.size(), nullptr);
            g.copied.assign(gpus_.size(), nullptr);
            g.copy_used.assign(gpus_.size(), 0);
            for (std::size_t to = 0; to < gpus_.size(); ++to) {
                if (gpus_[to].device == g.device) {
                    continue;
                }
                if (!device_context::current().share_memory_with(gpus_[to].device)) {
                    return false;
                }
                OTIMES_CUDA_CALL(cuStreamCreate(&g.copies[to], CU_STREAM_NON_BLOCKING));
                OTIMES_CUDA_CALL(cuEventCreate(&g.copied[to], CU_EVENT_DISABLE_TIMING));
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
        for (std::int32_t i = 0; i < local_count(); ++i) {
            const context_scope scope(at(i).context);
            nccl_configuration how;
            check(f->init_rank(&at(i).nccl, size(), identity, first_rank() + i, &how), "ncclCommInitRankConfig");
        }
        check(f->group_end(), "ncclGroupEnd");
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

    void check(int code, const char* what) {
        if (code != nccl_success && code != nccl_in_progress) {
            fail(std::string(what) + " failed: " + find_nccl(nullptr)->error_text(code) + ".");
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
