// SPDX-License-Identifier: MIT
/// @file executor.hpp
/// The GPU executor: plans become launch lists once, and a run is a few address substitutions and launches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <otimes/cuda.hpp>

#include "../core/arguments.hpp"
#include "../core/early_reads.hpp"
#include "../core/late_frees.hpp"
#include "../core/launch_list.hpp"
#include "device.hpp"
#include "streaming.hpp"

namespace otimes::backend {

/// A launch with its kernel loaded and its argument block built.
struct prepared_launch {
    std::shared_ptr<const loaded_kernel> kernel;
    unsigned grid = 1;
    unsigned threads = 1;
    unsigned shared_bytes = 0;
    bool early = false;      ///< launched before the one in front has ended; the kernel waits for it itself
    bool alone = false;      ///< each block has a multiprocessor to itself
    bool clustered = false;  ///< in clusters
    unsigned half_grid = 1;  ///< that leaves room for about as many blocks of something else
    argument_block arguments;
    /// Of what adds up the sums that the launch in front leaves, to a number: the sums of so many blocks, where they are, and where the number goes.
    struct finished_sums {
        memory_reference sums;
        memory_reference number;
        int count = 0;
        dtype type = dtype::f64;
        std::int32_t scalar = -1;
    };
    std::optional<finished_sums> finishes;  ///< where the host may do that instead (receipt.hpp)
    std::int32_t pass = -1;
    std::string trace;  ///< "fused_trailing<...>, source: cache"
};

/// An operand whose address kernels get.
struct used_operand {
    std::int32_t binding = -1;
    tensor_role role = tensor_role::input;
    std::int64_t element_bytes = 1;
};

/// What a plan is lowered to: its usual kernels; that of run_scattered, without portions and with them; those of run_arriving; the
/// usual ones, beside which the device itself copies lines of host memory (`launch::evict_first`).
enum class lowered_for : std::uint8_t { run, scattered, telling, arriving, passing };

/// A plan ready to run.
struct prepared_plan {
    plan made_for;  ///< recognises the plan when its address is used again
    launch_list list;
    std::vector<prepared_launch> before;
    std::vector<prepared_launch> slab;
    std::vector<prepared_launch> rest;
    std::vector<prepared_launch> after;
    std::vector<used_operand> operands;
    bool host_operands = false;  ///< X or Y is in host memory: they pass through `stream`, and `list` is empty
    std::shared_ptr<const prepared_stream> stream;
    bool host_factors = false;
    bool reads_early = false;            ///< its first launch may read before the launch in front of the run has ended
    lowered_for use = lowered_for::run;  ///< the others: without launches where no kernel does that
    /// Why generic kernels stand for compiled ones; empty where they do not.
    std::string replaced;
    /// After that time the compiled kernels are tried again: what they lacked, memory say, comes and goes.
    std::chrono::steady_clock::time_point try_again = std::chrono::steady_clock::time_point::max();
    std::chrono::seconds patience{1};  ///< from one try to the next

    /// Cost: a look, at the clock too where something is to be tried again.
    [[nodiscard]] bool is_stale() const {
        return try_again != std::chrono::steady_clock::time_point::max() &&
               std::chrono::steady_clock::now() >= try_again;
    }
};

class gpu_executor final : public device_executor, public peer_stores {
public:
    /// @param owns_stream the stream lasts as long as the process
    gpu_executor(device_context& device, CUstream stream, bool owns_stream, device_memory_resource* resource);
    /// Gives its workspaces back in the order of the stream. @pre nobody has memory of it
    ~gpu_executor() override;
    gpu_executor(const gpu_executor&) = delete;
    gpu_executor& operator=(const gpu_executor&) = delete;

    /// @throws device_error it is in use, as far as can be seen: forget_gpu() says in which ways
    void require_unused() const;

    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] const machine& target() const noexcept override { return machine_; }
    [[nodiscard]] placement where() const noexcept override { return placement::gpu; }
    [[nodiscard]] plan plan_for(const program& p) const override;
    void run(const plan& p, const bindings& b, workspace_view workspace) const override;
    void run_beside(const plan& p, const bindings& b) const override;
    [[nodiscard]] const peer_stores* stores_for_peers() const noexcept override { return this; }
    bool run_scattered(const plan& p, const bindings& b, const scatter_shape& to, std::span<void* const> receivers,
                       const arrival_signal* tell, bool half) const override;
    [[nodiscard]] bool can_tell_portions(const plan& p) const override;
    [[nodiscard]] bool can_run_arriving(const plan& p) const override;
    void run_arriving(const plan& p, const bindings& b, const awaited_signal& awaited) const override;

    [[nodiscard]] CUstream_st* stream() const noexcept override { return stream_; }
    void synchronize() const override;
    void evaluate(const program& p, const bindings& b) const override;
    [[nodiscard]] plan make_plan_for(const program& p, const options& wishes) const override;
    [[nodiscard]] std::string describe(const plan& p) const override;
    tuning_report tune(const program& p, const bindings& b, const options& wishes,
                       const tuning_options& how) const override;
    [[nodiscard]] void* allocate(std::int64_t bytes) const override;
    void release(void* memory, std::int64_t bytes) const noexcept override;
    void upload(void* to, const host_tensor& from) const override;
    void download(const host_tensor& to, const void* from) const override;
    void receive(std::int64_t bytes, const std::function<std::int64_t(void*)>& queue,
                 const std::function<void(const void*)>& read) const override;
    void wait_for(const device_executor& other) const override;
    void require_no_capture(const char* what) const override;
    void require_reach(const void* address, tensor_role role, std::int64_t element_bytes) const override;
    [[nodiscard]] CUcontext context() const noexcept { return device_.handle(); }

private:
    std::shared_ptr<const prepared_plan> prepared(const plan& p, lowered_for use = lowered_for::run) const;
    std::shared_ptr<prepared_plan> prepare(const plan& p, bool allow_fused = true,
                                           lowered_for use = lowered_for::run) const;
    /// For generic kernels alone; planned again where they take more than the plan's limit. @throws budget_error it cannot be kept
    [[nodiscard]] launch_list lower_to_generic(const plan& p, const std::string& why) const;
    std::shared_ptr<prepared_plan> prepare_scattered(const plan& p, bool in_portions) const;
    std::shared_ptr<prepared_plan> prepare_arriving(const plan& p) const;
    /// The choice that was tuned for a program on such a GPU, by any executor of this process or in an earlier one; empty: none.
    [[nodiscard]] std::string tuned_choice(const program& p) const;
    std::vector<prepared_launch> prepare(const std::vector<launch>& launches) const;
    void load(const launch_list& list) const;
    /// Where the output of a scattered plan goes.
    struct scatter_target {
        const scatter_shape& shape;
        std::span<void* const> receivers;
        const arrival_signal* tell;
    };
    /// Whether kernels of this stream reach an address. Cost: some nanoseconds where this thread has seen its page.
    [[nodiscard]] reach reach_of(const void* address) const;
    /// What require_reach does, in the context that is current.
    void require_operand(const void* address, tensor_role role, std::int64_t element_bytes) const;
    /// The same of a caller's workspace.
    void require_workspace(const void* workspace) const;
    /// Where kernels leave sums for the host, nullptr: in device memory, and a kernel adds them up.
    [[nodiscard]] std::byte* take_sums(const prepared_launch::finished_sums& finishes, const bindings& b) const;
    void run_on_device(const prepared_plan& ready, const bindings& b, workspace_view workspace, bool beside = false,
                       const scatter_target* to = nullptr, const awaited_signal* awaited = nullptr) const;
    /// The caller's workspace is not used: it was planned for the strides in host memory.
    void run_with_host_operands(const prepared_plan& ready, const bindings& b) const;
    /// @param wrote set as soon as results may have reached host memory
    void run_stage(const prepared_stage& ready, const bindings& b, std::atomic<bool>& wrote) const;
    /// @throws budget_error nothing fits in `budget` bytes of device memory
    std::shared_ptr<const prepared_stream> prepare_stream(const plan& p, std::int64_t budget) const;
    /// In half of `before` bytes, or in the least that is less; nullptr where there is none.
    std::shared_ptr<const prepared_stream> prepare_smaller_stream(const plan& p, std::int64_t before) const;

    /// Device memory that grows and is used again by the next run on this stream.
    struct arena {
        std::byte* data = nullptr;
        std::int64_t bytes = 0;
    };
    /// What `allocate` gives, not counted as anybody's.
    [[nodiscard]] void* take_memory(std::int64_t bytes) const;
    /// Copies elements of the host to contiguous device memory by way of pinned blocks. The context is current, nothing captured.
    void send(void* to, const void* from, std::span<const mode> modes, std::int64_t element_bytes) const;
    std::byte* grown(arena& memory, std::int64_t bytes) const;
    /// To the resource or to the pool. The context is current.
    void give_back(void* memory, std::int64_t bytes) const noexcept;
    /// Gives back what waited for the end of a capture, which is the caller's to know. The context is current.
    void give_back_late() const noexcept;

    device_context& device_;
    CUstream stream_;
    bool owns_stream_;
    device_memory_resource* resource_;
    std::string name_;
    machine machine_;
    mutable std::mutex plans_mutex_;
    mutable std::unordered_multimap<std::uint64_t, std::shared_ptr<const prepared_plan>> plans_;
    /// Held while a run queues its launches: runs of several threads share the stream and its workspace.
    mutable std::mutex queue_mutex_;
    /// The last run that was captured: where the stream stood behind it, and what it wrote.
    struct captured_run {
        captured_place behind;
        std::vector<address_range> written;
    };
    mutable captured_run last_captured_;
    mutable late_frees late_;
    mutable arena workspace_;
    mutable arena scratch_;
    mutable std::vector<arena> outgrown_;  ///< of before they grew: graphs may hold them
    /// What others have of `allocate` and have not given back.
    mutable std::atomic<std::int64_t> blocks_in_use_{0};
    mutable std::atomic<std::int64_t> bytes_in_use_{0};
    CUevent marker_ = nullptr;  ///< for wait_for
    mutable std::mutex marker_mutex_;
};

}  // namespace otimes::backend
