// SPDX-License-Identifier: MIT
// The GPU executor: expressions to plans, and plans to launches. prepare.cpp makes plans ready, executor_memory.cpp has its memory, receipt.cpp what a thread waits for.
#include "executor.hpp"

#include <array>
#include <complex>
#include <cstring>

#include <otimes/exec/plan_cache.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>

#include "../core/operand_reach.hpp"
#include "../core/tuned_choices.hpp"
#include "receipt.hpp"

namespace otimes::backend {

gpu_executor::gpu_executor(device_context& device, CUstream stream, bool owns_stream, device_memory_resource* resource)
    : device_(device),
      stream_(stream),
      owns_stream_(owns_stream),
      resource_(resource),
      name_("gpu " + device.description().name) {
    machine_.gpus = {device.description()};
    const context_scope scope(device_.handle());
    OTIMES_CUDA_CALL(cuEventCreate(&marker_, CU_EVENT_DISABLE_TIMING));
}

plan gpu_executor::plan_for(const program& p) const { return make_plan_for(p, {}); }

plan gpu_executor::make_plan_for(const program& p, const options& wishes) const {
    options decided = wishes;
    if (decided.placement == placement::automatic) {
        decided.placement = placement::gpu;
    }
    const std::string choice = decided.deterministic ? std::string() : tuned_choice(p);
    if (choice.empty()) {
        return make_plan(p, machine_, decided);
    }
    machine tuned = machine_;
    tuned.tuning.push_back({hash_value(p), choice, 0});
    return make_plan(p, tuned, decided);
}

void gpu_executor::evaluate(const program& p, const bindings& b) const {
    // The usual way in: one comparison leads from the program to its launches, where a product's program is kept where it was
    // (device/evaluate.hpp); from others one hash more.
    struct recent_program {
        std::uint64_t executor_id = 0;
        std::uint64_t tunings = 0;
        std::shared_ptr<const prepared_plan> ready;
    };
    constexpr std::size_t slots = 32;
    struct recent_programs {
        std::array<recent_program, slots> at_address;
        std::array<recent_program, slots> of_hash;
    };
    const std::uint64_t tunings = tuned_choices::of_process().version();
    recent_programs* const recent = otimes::detail::kept_by_thread<recent_programs, gpu_executor>();
    if (recent == nullptr) {  // and the process's table of plans may be gone, too
        return run(plan_for(p), b, {});
    }
    const auto holds = [&](const recent_program& entry) {
        return entry.executor_id == id() && entry.tunings == tunings && entry.ready->made_for.source == p &&
               !entry.ready->is_stale();
    };
    const std::uint64_t address = (reinterpret_cast<std::uintptr_t>(&p) >> 4) + id() * 0x9e3779b97f4a7c15ull;
    recent_program& entry = recent->at_address[(address * 0x9e3779b97f4a7c15ull >> 32) % slots];
    if (!holds(entry)) {
        recent_program& hashed = recent->of_hash[static_cast<std::size_t>(hash_value(p) >> 32) % slots];
        if (!holds(hashed)) {
            // The process's table of plans does not know of tuning.
            hashed = {id(), tunings, prepared(tunings == 0 ? *cached_plan_for(p, *this) : plan_for(p))};
        }
        entry = hashed;
    }
    // A copy: evaluating host operands comes back here.
    const std::shared_ptr<const prepared_plan> ready = entry.ready;
    if (ready->host_operands) {
        run_with_host_operands(*ready, b);
    } else {
        run_on_device(*ready, b, {});
    }
}

void gpu_executor::require_no_capture(const char* what) const {
    if (is_captured(stream_)) {
        throw device_error(
            std::string("otimes: ") + what +
            " while the stream is being captured into a graph (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED). "
            "Keep all operands and factors in device memory, and evaluate the expression once before the "
            "capture.");
    }
}

void gpu_executor::synchronize() const {
    const context_scope scope(device_.handle());
    require_no_capture("synchronize() would wait");  // which makes the capture invalid
    if (late_.some_wait()) {
        give_back_late();
    }
    OTIMES_CUDA_CALL(cuStreamSynchronize(stream_));
}

void gpu_executor::wait_for(const device_executor& other) const {
    const auto& source = dynamic_cast<const gpu_executor&>(other);
    if (source.stream_ == stream_ || is_captured(stream_) || is_captured(source.stream_)) {
        return;  // a captured stream cannot wait for one that is not; cuda.hpp says what the caller sees to
    }
    const context_scope scope(source.device_.handle());
    const std::lock_guard lock(source.marker_mutex_);
    OTIMES_CUDA_CALL(cuEventRecord(source.marker_, source.stream_));
    OTIMES_CUDA_CALL(cuStreamWaitEvent(stream_, source.marker_, 0));
}

void gpu_executor::run(const plan& p, const bindings& b, workspace_view workspace) const {
    const std::shared_ptr<const prepared_plan> ready = prepared(p);
    if (workspace.data != nullptr && workspace.bytes < p.workspace_bytes) {
        throw budget_error("otimes: the workspace has " + std::to_string(workspace.bytes) + " bytes, the plan needs " +
                               std::to_string(p.workspace_bytes) + " (plan.workspace_bytes).",
                           p.workspace_bytes);
    }
    if (ready->host_operands) {
        run_with_host_operands(*ready, b);
    } else {
        run_on_device(*ready, b, workspace);
    }
}

void gpu_executor::run_beside(const plan& p, const bindings& b) const {
    const std::shared_ptr<const prepared_plan> ready = prepared(p);
    if (ready->host_operands) {
        run_with_host_operands(*ready, b);
    } else {
        run_on_device(*ready, b, {}, true);
    }
}

bool gpu_executor::run_scattered(const plan& p, const bindings& b, const scatter_shape& to,
                                 std::span<void* const> receivers, const arrival_signal* tell, bool half) const {
    const std::shared_ptr<const prepared_plan> ready =
        prepared(p, tell != nullptr && tell->items > 0 ? lowered_for::telling : lowered_for::scattered);
    if (ready->slab.empty() || receivers.size() > most_receivers) {
        return false;
    }
    const gpu_group& group = ready->list.slab.front().fused.group;
    const std::int64_t tile = group.tile.rows * group.count_q();
    if (to.together() % tile != 0 || (tell != nullptr && tell->items > 0 && to.below % tile != 0)) {
        return false;
    }
    const scatter_target target{to, receivers, tell};
    run_on_device(*ready, b, {}, half, &target);
    return true;
}

bool gpu_executor::can_tell_portions(const plan& p) const { return !prepared(p, lowered_for::telling)->slab.empty(); }

bool gpu_executor::can_run_arriving(const plan& p) const { return !prepared(p, lowered_for::arriving)->slab.empty(); }

void gpu_executor::run_arriving(const plan& p, const bindings& b, const awaited_signal& awaited) const {
    const std::shared_ptr<const prepared_plan> ready = prepared(p, lowered_for::arriving);
    run_on_device(*ready, b, {}, false, nullptr, &awaited);
}

reach gpu_executor::reach_of(const void* address) const {
    reached_pages* const pages = otimes::detail::kept_by_thread<reached_pages, gpu_executor>();
    if (pages != nullptr && pages->holds(&device_, address)) {
        return reach::here;
    }
    const reach found = device_.reach_of(address);
    if (found == reach::host_memory && is_captured(stream_) && !host_reads(address)) {
        return reach::here;  // memory of the graph that is being made, such as a temporary of this expression
    }
    if (found == reach::here && pages != nullptr) {
        pages->keep(&device_, address);
    }
    return found;
}

void gpu_executor::require_operand(const void* address, tensor_role role, std::int64_t element_bytes) const {
    if (const reach found = reach_of(address); found != reach::here) {
        throw device_error(refusal_of(role, address, found));
    }
    if (!is_aligned(reinterpret_cast<std::uintptr_t>(address), element_bytes)) {
        throw device_error(refusal_of_alignment(role, address, element_bytes));
    }
}

void gpu_executor::require_reach(const void* address, tensor_role role, std::int64_t element_bytes) const {
    const context_scope scope(device_.handle());
    require_operand(address, role, element_bytes);
}

void gpu_executor::require_workspace(const void* workspace) const {
    const reach found = reach_of(workspace);
    if (found != reach::here || !is_aligned(reinterpret_cast<std::uintptr_t>(workspace), workspace_alignment)) {
        throw device_error(refusal_of_workspace(workspace, found));
    }
}

std::byte* gpu_executor::take_sums(const prepared_launch::finished_sums& finishes, const bindings& b) const {
    receipt* const waited_for = receipt::of_this_thread(*this);
    if (waited_for == nullptr) {
        return nullptr;
    }
    const std::complex<double> alpha = finishes.scalar < 0 ? 1.0 : b.scalars[static_cast<std::size_t>(finishes.scalar)];
    auto* const operand = static_cast<std::byte*>(b.pointers[static_cast<std::size_t>(finishes.number.index)]);
    return waited_for->take_sums(finishes.count, finishes.type, alpha, operand + finishes.number.offset_bytes);
}

void gpu_executor::run_on_device(const prepared_plan& ready, const bindings& b, workspace_view workspace, bool beside,
                                 const scatter_target* to, const awaited_signal* awaited) const {
    const context_scope scope(device_.handle());
    if (to == nullptr) {  // else Y is in several matrices, whose owner knows who reaches them
        for (const used_operand& o : ready.operands) {
            require_operand(b.pointers[static_cast<std::size_t>(o.binding)], o.role, o.element_bytes);
        }
    }
    const launch_list& list = ready.list;
    if (workspace.data != nullptr && list.workspace_bytes > 0) {
        require_workspace(workspace.data);
    }
    const std::lock_guard lock(queue_mutex_);
    if (late_.some_wait() && !is_captured(stream_)) {
        give_back_late();
    }
    if (ready.host_factors) {
        require_no_capture("a factor is in host memory");
    }
    // Generic kernels that stand for compiled ones may take more than the plan says. A graph must not share that with other work.
    const bool of_caller = workspace.data != nullptr && workspace.bytes >= list.workspace_bytes;
    if (workspace.data != nullptr && !of_caller) {
        require_no_capture("generic kernels in the place of compiled ones take more than the given workspace");
    }
    auto* const buffers = of_caller                  ? static_cast<std::byte*>(workspace.data)
                          : list.workspace_bytes > 0 ? grown(workspace_, list.workspace_bytes)
                                                     : nullptr;
    // With a workspace of the caller a graph may be replayed beside other work of this executor: what kernels take besides is the graph's.
    struct memory_of_graph {
        const gpu_executor& owner;
        std::int64_t bytes;
        void* memory;
        ~memory_of_graph() {
            if (memory != nullptr) {
                owner.release(memory, bytes);
            }
        }
    };
    const bool of_graph = list.scratch_bytes > 0 && workspace.data != nullptr && is_captured(stream_);
    const memory_of_graph graphs{*this, list.scratch_bytes, of_graph ? allocate(list.scratch_bytes) : nullptr};
    std::byte* const scratch = of_graph                 ? static_cast<std::byte*>(graphs.memory)
                               : list.scratch_bytes > 0 ? grown(scratch_, list.scratch_bytes)
                                                        : nullptr;
    for (const staged_factor& f : list.staged) {
        const program& source = ready.made_for.source;
        const tensor& t = source.at(f.tensor);
        send(scratch + f.scratch_bytes, b.pointers[static_cast<std::size_t>(t.binding)], f.modes, t.scalar_bytes);
    }
    // For a number that this thread waits for, the host adds up what the blocks of the last launch but one leave.
    const prepared_launch::finished_sums* const finishes =
        list.slab_count == 1 && ready.after.empty() && !ready.slab.empty() && ready.slab.back().finishes
            ? &*ready.slab.back().finishes
            : nullptr;
    std::byte* const sums_for_host = finishes != nullptr ? take_sums(*finishes, b) : nullptr;
    const auto address_of = [&](const memory_reference& at, std::int64_t slab) {
        if (sums_for_host != nullptr && same_place(at, finishes->sums)) {
            return sums_for_host;
        }
        std::byte* base = nullptr;
        switch (at.where) {
            case memory_reference::place::none: break;
            case memory_reference::place::operand:
                base = static_cast<std::byte*>(b.pointers[static_cast<std::size_t>(at.index)]);
                break;
            case memory_reference::place::buffer:
                base = buffers + list.buffer_bytes[static_cast<std::size_t>(at.index)];
                break;
            case memory_reference::place::scratch: base = scratch; break;
            case memory_reference::place::one:
                // Half-precision storage is read as stored.
                base = reinterpret_cast<std::byte*>(device_.one(static_cast<dtype>(at.index)));
                break;
            case memory_reference::place::sparse_starts:
            case memory_reference::place::sparse_inner:
            case memory_reference::place::sparse_values:
                base = static_cast<std::byte*>(sparse_array(at, b.pointers[static_cast<std::size_t>(at.index)]));
                break;
        }
        return base == nullptr ? base : base + at.offset_bytes + slab * at.slab_bytes;
    };
    // In a graph it is known which kernel this run follows: what that does not write may be read while it runs.
    const captured_place here = place_in_capture(stream_);
    const early_reads early =
        ready.reads_early && !beside && to == nullptr && here.node != nullptr && here == last_captured_.behind
            ? early_reads_of(list, ready.made_for.source, b, last_captured_.written)
            : early_reads{};
    bool launched = false;
    const auto launch_all = [&](const std::vector<prepared_launch>& launches, std::int64_t slab) {
        launched = launched || !launches.empty();
        for (const prepared_launch& l : launches) {
            if (sums_for_host != nullptr && l.finishes) {
                continue;
            }
            if (here.captured) {
                l.kernel->keep_for_good();
            }
            alignas(16) std::array<std::byte, most_argument_bytes> arguments;
            std::memcpy(arguments.data(), l.arguments.bytes.data(), l.arguments.bytes.size());
            for (const argument_block::hole& hole : l.arguments.addresses) {
                std::byte* const base = address_of(hole.at, slab);
                std::memcpy(arguments.data() + hole.offset, &base, sizeof(base));
            }
            for (const argument_block::distance_hole& hole : l.arguments.distances) {
                const long long distance = (reinterpret_cast<std::intptr_t>(address_of(hole.to, slab)) -
                                            reinterpret_cast<std::intptr_t>(address_of(hole.from, slab))) /
                                           hole.element_bytes;
                std::memcpy(arguments.data() + hole.offset, &distance, sizeof(distance));
            }
            for (const argument_block::scalar_hole& hole : l.arguments.more_scalars) {
                write_scalar(arguments.data() + hole.offset, l.arguments.accumulator,
                             b.scalars[static_cast<std::size_t>(hole.scalar)]);
            }
            if (l.arguments.scalar >= 0) {
                write_scalar(arguments.data() + l.arguments.alpha_offset, l.arguments.accumulator,
                             b.scalars[static_cast<std::size_t>(l.arguments.scalar)]);
            }
            const bool first = l.arguments.ready_offset > 0 && &l == launches.data() &&
                               (&launches == &ready.slab || &launches == &ready.rest);
            const bool behind_slab = &launches == &ready.rest ? list.rest_factors_ready : list.slab_factors_ready;
            if (first && (slab == 0 ? early.factors : behind_slab)) {
                const std::array<bool, 2> flags{true, slab == 0 && early.x};
                std::memcpy(arguments.data() + l.arguments.ready_offset, flags.data(), sizeof(flags));
            }
            if (to != nullptr && l.arguments.rest_offset > 0) {
                write_scattered(arguments.data() + l.arguments.rest_offset, to->shape, to->receivers,
                                list.slab.front().fused.group.count_q(), to->tell);
            }
            const bool arrives = awaited != nullptr && l.arguments.rest_offset > 0;
            if (arrives) {
                write_arriving(arguments.data() + l.arguments.rest_offset, *awaited);
            }
            void* parameters[] = {arguments.data()};
            // Beside other work not early: blocks that wait for the launch in front would take the room that is left. What waits for
            // portions begins beside the launch that tells of them, in the room that this leaves.
            launch_kernel(l.kernel->function, beside || arrives ? l.half_grid : l.grid, l.threads, l.shared_bytes,
                          stream_, parameters, arrives || (l.early && !beside));
        }
    };
    launch_all(ready.before, 0);
    for (std::int64_t s = 0; s < list.slab_count; ++s) {
        launch_all(s + 1 == list.slab_count && !ready.rest.empty() ? ready.rest : ready.slab, s);
    }
    launch_all(ready.after, 0);
    if (here.captured && launched && to == nullptr) {
        last_captured_ = {place_in_capture(stream_), ranges_written(ready.made_for.source, b, workspace)};
    }
}

}  // namespace otimes::backend
