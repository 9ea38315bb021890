// SPDX-License-Identifier: MIT
/// @file executors.hpp
/// The executors of GPUs: one on a stream, all of this process, and the one that places by cost; tuning and pinned memory.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <otimes/exec/executor.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/tuning_report.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
#include <otimes/exec/cpu.hpp>
#endif

struct CUstream_st;  // cudaStream_t and CUstream point to it

namespace otimes {

/// Supplies device memory for workspaces and DeviceMatrix. `stream` is the one on which the memory is used next and was
/// used last; both calls may be asynchronous in its order.
class device_memory_resource {
public:
    virtual ~device_memory_resource() = default;
    /// At least `bytes` bytes, aligned to 256. @throws anything
    virtual void* allocate(std::size_t bytes, CUstream_st* stream) = 0;
    virtual void deallocate(void* memory, std::size_t bytes, CUstream_st* stream) noexcept = 0;
};

/// Host memory as a list of modes, outermost first, in elements of `element_bytes` bytes.
struct host_tensor {
    void* data = nullptr;
    std::int64_t element_bytes = 0;
    std::vector<mode> modes;
};

/// An executor whose operands may be in device memory. Any thread may use it at any time; work is queued in the order of
/// the calls. It lives as long as the process, or until `forget_gpu` of its stream.
class device_executor : public executor {
public:
    /// The stream that everything is queued on.
    [[nodiscard]] virtual CUstream_st* stream() const noexcept = 0;
    /// Waits until everything queued so far is done. @throws device_error also for what failed since the last wait.
    virtual void synchronize() const = 0;
    /// Evaluates a lowered expression with default options.
    virtual void evaluate(const program& p, const bindings& b) const = 0;
    /// The plan of a program for this executor.
    [[nodiscard]] virtual plan make_plan_for(const program& p, const options& wishes) const = 0;
    /// Which kernels a plan launches and where their code came from (core_set, cache, nvrtc, generic), one per line.
    /// Loads the kernels. The text is for people; its form may change.
    [[nodiscard]] virtual std::string describe(const plan& p) const = 0;
    /// Measures the planner's best candidates for a program and keeps the winner; see otimes::tune. `b` holds the inputs; its
    /// output is not touched.
    virtual tuning_report tune(const program& p, const bindings& b, const options& wishes,
                               const tuning_options& how) const = 0;

    /// @throws device_error where the stream is being captured into a graph, for what cannot be part of one.
    virtual void require_no_capture(const char* /*what*/) const {}
    /// @throws device_error an operand's address is where kernels of this executor do not reach, or not aligned to its elements
    virtual void require_reach(const void* /*address*/, tensor_role /*role*/, std::int64_t /*element_bytes*/) const {}

    /// @name For matrices.
    /// @{
    [[nodiscard]] virtual void* allocate(std::int64_t bytes) const = 0;
    virtual void release(void* memory, std::int64_t bytes) const noexcept = 0;
    /// Copies host elements to contiguous device memory; the host may change them as soon as this returns.
    virtual void upload(void* to, const host_tensor& from) const = 0;
    /// Copies contiguous device memory to host elements, and waits for it.
    virtual void download(const host_tensor& to, const void* from) const = 0;
    /// A few numbers that kernels leave for the host: `queue(memory)` queues what writes the first bytes there, each once and `bytes` at most, and
    /// says how many; when they have come `read(memory)` has them. Waits for them.
    /// @throws device_error what was queued failed, as far as the numbers had not come
    virtual void receive(std::int64_t bytes, const std::function<std::int64_t(void*)>& queue,
                         const std::function<void(const void*)>& read) const;
    /// Work queued here from now on comes after what `other` has queued so far.
    virtual void wait_for(const device_executor& other) const = 0;
    /// @}
};

OTIMES_COLD inline void device_executor::receive(std::int64_t bytes, const std::function<std::int64_t(void*)>& queue,
                                                 const std::function<void(const void*)>& read) const {
    struct held {
        const device_executor& from;
        std::int64_t bytes;
        void* memory;
        ~held() { from.release(memory, bytes); }
    } const on_device{*this, bytes, allocate(bytes)};
    queue(on_device.memory);
    std::vector<char> copy(static_cast<std::size_t>(bytes));
    download({copy.data(), 1, {{1, bytes}, {bytes, 1}}}, on_device.memory);
    read(copy.data());
}

/// The executor on a non-blocking stream of its own, on the device that is current in this thread.
/// @throws device_error there is no usable GPU; the text says why and what to do.
[[nodiscard]] const device_executor& gpu();
/// The executor on a stream of the caller (a cudaStream_t), which must outlive what is queued on it and the matrices made
/// on it. One executor per stream: calling again is cheap. It is kept until `forget_gpu(stream)`.
[[nodiscard]] const device_executor& gpu(CUstream_st* stream);
/// The same, with memory from `resource`, which must outlive the executor.
[[nodiscard]] const device_executor& gpu(CUstream_st* stream, device_memory_resource& resource);
/// Ends the executors of a stream of the caller, those with memory resources too, and gives back what they keep: prepared plans, and
/// workspaces in the order of the stream. It waits for nothing where the device has memory pools. Call it before the stream is destroyed,
/// when no thread uses these executors and no graph that was captured on them is replayed again; `gpu(stream)` then makes a new one, for
/// which plans of before still hold. Any thread may call it, beside whatever is done on other streams.
/// @return false: the stream has no executor; nothing is done
/// @throws device_error matrices still have memory of such an executor, it is the default one of the process or of this thread, or the
///         stream is being captured into a graph. All of them are then as before.
bool forget_gpu(CUstream_st* stream);
/// gpu(), or nullptr where there is none; `why` receives the reason.
[[nodiscard]] const device_executor* find_gpu(std::string* why = nullptr);

/// Evaluates products of host operands on several executors at once: an index that runs through all steps (the rows) is cut
/// evenly, each executor has a part, nothing is exchanged. Each part is planned by itself: with options{.deterministic = true}
/// the bits of a row depend on neither the number of parts nor on the part it is in.
/// Cost: a thread for each part of each run. A failure on one executor is thrown when all have stopped; Y then holds what the
/// others wrote.
class spreading_executor final : public executor {
public:
    /// @param target a machine with as many GPUs as there are parts, for which plans are made.
    /// @param part gives executor i; called from the thread that runs part i, first when it is needed. All that it gives must
    ///        outlive this, and all must plan for host operands.
    spreading_executor(std::string name, machine target, std::function<const executor&(std::size_t)> part);
    ~spreading_executor() override;
    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] const machine& target() const noexcept override { return machine_; }
    [[nodiscard]] placement where() const noexcept override { return placement::gpus; }
    /// @throws unsupported_error operands in device memory: they belong to one GPU (a DistributedMatrix to all).
    [[nodiscard]] plan plan_for(const program& p) const override;
    /// The workspace is not used: each part has its own. Returns when Y is written.
    void run(const plan& p, const bindings& b, workspace_view workspace) const override;

private:
    struct prepared;
    [[nodiscard]] std::shared_ptr<const prepared> prepare(const plan& p) const;

    std::string name_;
    machine machine_;
    std::function<const executor&(std::size_t)> part_;
    mutable std::mutex mutex_;
    mutable std::vector<std::shared_ptr<const prepared>> known_;  ///< the last ones that were run
};

/// The executor over all GPUs that this process sees, for operands in host memory; with one GPU it is as gpu().
/// @throws device_error there is no usable GPU; the text says why and what to do.
[[nodiscard]] const executor& gpus();
/// gpus() where a process that is no rank of several sees at least two GPUs, else nullptr: ranks share the GPUs of a host.
[[nodiscard]] const executor* find_gpus();

/// Pins host memory as long as it lives: operands in it are copied to and from GPUs at the full rate of the link and without the
/// help of the CPU; of column-major ones rows pass in lines, which are copied so where they are long enough. Without it they pass
/// through pinned blocks of the library, which costs nothing to set up. Pinning takes about as long as three products, so it is
/// worth it for memory that is used often.
class pinned_scope {
public:
    /// @throws device_error there is no GPU, or the system pins no more memory.
    pinned_scope(const void* memory, std::int64_t bytes);
    /// The elements of a plain Eigen matrix, which must not be resized meanwhile.
    template <class Matrix>
    requires requires(const Matrix& m) {
        m.data();
        m.size();
    }
    explicit pinned_scope(const Matrix& m)
        : pinned_scope(m.data(), static_cast<std::int64_t>(m.size()) *
                                     static_cast<std::int64_t>(sizeof(typename Matrix::Scalar))) {}
    pinned_scope(const pinned_scope&) = delete;
    pinned_scope& operator=(const pinned_scope&) = delete;
    ~pinned_scope();

private:
    void* memory_ = nullptr;
    void* context_ = nullptr;  ///< a CUcontext, in which it was pinned
};

/// The plan that costs least on a machine, transfers included.
[[nodiscard]] plan plan_by_cost(const program& p, const machine& where);

/// Places each expression by cost between a CPU executor, a GPU and, for operands in host memory, all GPUs.
class placing_executor final : public executor {
public:
    /// @param several an executor of placement::gpus, or nullptr
    placing_executor(const executor& host, const device_executor& device, const executor* several = nullptr)
        : host_(host), device_(device), several_(several), machine_(host.target()) {
        machine_.gpus = several != nullptr ? several->target().gpus : device.target().gpus;
        name_ = std::string(host.name()) + " or " + std::string(device.name());
        if (several != nullptr) {
            name_ += " or " + std::string(several->name());
        }
    }
    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] const machine& target() const noexcept override { return machine_; }
    [[nodiscard]] placement where() const noexcept override { return placement::automatic; }
    [[nodiscard]] plan plan_for(const program& p) const override { return plan_by_cost(p, machine_); }
    void run(const plan& p, const bindings& b, workspace_view workspace) const override {
        if (p.where == placement::cpu) {
            host_.run(p, b, workspace);
        } else if (p.where == placement::gpus && several_ != nullptr) {
            several_->run(p, b, workspace);
        } else {
            device_.run(p, b, workspace);
        }
    }
    [[nodiscard]] const device_executor& device() const noexcept { return device_; }

private:
    const executor& host_;
    const device_executor& device_;
    const executor* several_;
    machine machine_;
    std::string name_;
};

#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
inline namespace OTIMES_TARGET {
/// What this machine has: an executor that places each expression by cost when there is a GPU (products of large host operands
/// on all GPUs by rows, where there are several), else `cpu()`. Use:
/// `otimes::set_default_executor(otimes::make_executor());`
[[nodiscard]] inline const executor& make_executor() {
    static const executor* const chosen = []() -> const executor* {
        const device_executor* const device = find_gpu();
        if (device == nullptr) {
            return &cpu();
        }
        return new placing_executor(cpu(), *device, find_gpus());  // as long as the process
    }();
    return *chosen;
}
}  // namespace OTIMES_TARGET
#endif

}  // namespace otimes
