// SPDX-License-Identifier: MIT
#include "executor.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <complex>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <otimes/exec/plan_cache.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>

#include "../core/default_streams.hpp"
#include "../core/host_copy.hpp"
#include "../core/operand_reach.hpp"
#include "../core/process_launcher.hpp"
#include "../core/threads.hpp"
#include "../core/tuned_choices.hpp"
#include "core_set.hpp"

namespace otimes::backend {

namespace {

constexpr unsigned sliced_threads = 256;
constexpr std::int64_t copied_together = 4;  // accesses of a thread: kernels/scaled_copy.cuh, diagonal_scale.cuh
constexpr std::size_t most_prepared_plans = 512;

/// "storage, accumulator" as the kernels write them; `sums`: with the accumulator of reductions.
std::string types_of(dtype type, bool sums = false) {
    switch (type) {
        case dtype::f16: return "otimes::kernels::half, float";
        case dtype::bf16: return "otimes::kernels::bfloat16, float";
        case dtype::f32: return sums ? "float, double" : "float, float";
        case dtype::f64: return "double, double";
        case dtype::c64:
            return sums ? "otimes::kernels::complex<float>, otimes::kernels::complex<double>"
                        : "otimes::kernels::complex<float>, otimes::kernels::complex<float>";
        case dtype::c128: return "otimes::kernels::complex<double>, otimes::kernels::complex<double>";
        case dtype::other: break;
    }
    throw unsupported_error("otimes: the GPU does not know this scalar type; only the CPU's reference path does.");
}

std::string expression_of(const char* kernel, dtype type, bool sums = false) {
    return std::string("otimes::kernels::") + kernel + "<" + types_of(type, sums) + ">";
}

kernel_request request_of(const launch& l) {
    if (l.kind == launch_kind::partial_dots || l.kind == launch_kind::finish_dot) {
        return {"dot_product.cuh",
                expression_of(l.kind == launch_kind::finish_dot ? "finish_dot" : "partial_dots", l.type, true), ""};
    }
    if (l.kind == launch_kind::sparse) {
        return {"sparse_multiply.cuh", expression_of("sparse_multiply", l.type), ""};
    }
    if (l.kind == launch_kind::sliced) {
        if (l.sliced.blocks) {
            return blocked_request(*l.sliced.blocks, types_of(l.type), l.sliced.x_p == 1, l.sliced.f_p == 1);
        }
        const char* const kernel = copy_of(l)       ? "scaled_copy"
                                   : diagonal_of(l) ? "diagonal_scale"
                                                    : "generic_sliced_multiply";
        return {std::string(kernel) + ".cuh", expression_of(kernel, l.type), ""};
    }
    return backend::request_of(l.fused.group);
}

/// Blocks of a fused kernel that the device holds at once: whole clusters.
std::int64_t resident_blocks(CUfunction function, const gpu_group& group, unsigned shared_bytes,
                             const gpu_description& gpu) {
    int count = 0;
    if (group.tile.cluster == 1) {
        OTIMES_CUDA_CALL(
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, group.tile.threads, shared_bytes));
        return std::int64_t{count} * gpu.multiprocessors;
    }
    const cluster_launch one(group.tile.cluster, group.tile.threads, shared_bytes);
    OTIMES_CUDA_CALL(cuOccupancyMaxActiveClusters(&count, function, &one.config));
    return std::int64_t{count} * group.tile.cluster;
}

/// True where a kernel of kernels/ was compiled with the wait of launch_order.cuh, and the driver can launch it so.
bool waits_for_earlier_launches(const kernel_request& request, CUfunction function) {
    const bool waits = request.file == "fused_trailing.cuh" || request.file == "fused_outer.cuh" ||
                       request.file == "fused_terms.cuh" || request.file == "fused_scattered.cuh" ||
                       request.file == "generic_sliced_multiply.cuh" || request.file == "blocked_multiply.cuh" ||
                       request.file == "warpgroup_blocks.cuh" || request.file == "dot_product.cuh" ||
                       request.file == "sparse_multiply.cuh";
    return waits && may_launch_early(function);
}

/// Blocks of a launch that multiplies by a vector: where that takes no more turns, so many that each comes back to the same part of
/// the vector, which its multiprocessor's cache then holds.
std::int64_t blocks_that_come_back(const launch& l, std::int64_t useful, std::int64_t resident) {
    const planning::gpu_group& group = l.fused.group;
    const std::int64_t elements = l.fused.place.groups() * l.fused.place.inner * group.count_q();
    const std::int64_t period = elements < 1 ? 0 : useful * l.divisor / elements;  // tiles of the vector
    if (period < 2 || period > resident || useful * l.divisor % elements != 0 || group.tile.cluster > 1) {
        return resident;
    }
    const std::int64_t blocks = resident - resident % period;
    const auto turns = [useful](std::int64_t n) { return (useful + n - 1) / n; };
    return turns(blocks) == turns(resident) ? blocks : resident;
}

/// The launches of a plan begin early all or none: what was measured. But blocks that have a multiprocessor each settle evenly behind any
/// launch of the plan that is not in clusters, since they come where all of its blocks have left.
void launch_early_together(prepared_plan& p) {
    bool all = true;
    for (const std::vector<prepared_launch>* const part : {&p.before, &p.slab, &p.rest, &p.after}) {
        all = all && std::ranges::all_of(*part, &prepared_launch::early);
    }
    for (std::vector<prepared_launch>* const part : {&p.before, &p.slab, &p.rest, &p.after}) {
        const prepared_launch* front = nullptr;
        for (prepared_launch& l : *part) {
            l.early = all || (l.early && l.alone && front != nullptr && !front->clustered);
            front = &l;
        }
    }
}

/// The operands whose addresses kernels of a plan get, each once; those without elements have none.
std::vector<used_operand> operands_of(const prepared_plan& p) {
    std::vector<used_operand> used;
    const program& source = p.made_for.source;
    const auto add = [&](const memory_reference& at) {
        if (at.where != memory_reference::place::operand ||
            std::ranges::any_of(used, [&](const used_operand& o) { return o.binding == at.index; })) {
            return;
        }
        const auto bound = std::ranges::find_if(
            source.tensors, [&](const tensor& t) { return t.binding == at.index && count_of(source.modes_of(t)) > 0; });
        if (bound != source.tensors.end()) {
            used.push_back({at.index, bound->role});
        }
    };
    for (const std::vector<prepared_launch>* const part : {&p.before, &p.slab, &p.rest, &p.after}) {
        for (const prepared_launch& l : *part) {
            for (const argument_block::hole& hole : l.arguments.addresses) {
                add(hole.at);
            }
            for (const argument_block::distance_hole& hole : l.arguments.distances) {
                add(hole.from);
                add(hole.to);
            }
        }
    }
    return used;
}

/// Output elements of a sliced launch; 0: nothing to do.
std::int64_t outputs_of(const sliced_shape& s) {
    std::int64_t count = s.q_extent;
    for (const free_mode& m : s.free) {
        count *= m.extent;
    }
    return count;
}

/// Indices of a launch by blocks in which its factor differs.
std::int64_t batches_of(const sliced_shape& s) {
    std::int64_t count = 1;
    for (std::int32_t i = 0; i < s.batches; ++i) {
        count *= s.free[static_cast<std::size_t>(i)].extent;
    }
    return count;
}

/// Asks for the shared memory that a kernel says it needs.
void take_shared_memory(const loaded_kernel& kernel, const kernel_request& request, const gpu_description& gpu,
                        prepared_launch& ready) {
    if (kernel.value > gpu.shared_bytes_per_block) {
        throw device_error("otimes: the kernel " + request.expression + " needs " + std::to_string(kernel.value) +
                           " bytes of shared memory, a block has " + std::to_string(gpu.shared_bytes_per_block) + ".");
    }
    ready.shared_bytes = static_cast<unsigned>(kernel.value);
    OTIMES_CUDA_CALL(
        cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.value));
}

/// Asks for clusters that not every GPU takes.
void take_clusters(const loaded_kernel& kernel, const gpu_group& group) {
    if (group.tile.cluster > portable_cluster_blocks) {
        OTIMES_CUDA_CALL(cuFuncSetAttribute(kernel.function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    }
}

void require_room(std::int64_t resident, const kernel_request& request) {
    if (resident < 1) {
        throw device_error("otimes: the kernel " + request.expression + " does not fit on this device.");
    }
}

/// Notes why compiled kernels could not be had, and when that is tried again. Not for deterministic plans: their bits are those of their first
/// run.
void set_replaced(prepared_plan& p, const device_error& failure) {
    p.replaced = failure.what();
    const bool momentary = dynamic_cast<const out_of_device_memory*>(&failure) != nullptr ||
                           dynamic_cast<const compiler_failure*>(&failure) != nullptr;
    if (momentary && !p.made_for.wishes.deterministic) {
        p.try_again = std::chrono::steady_clock::now() + p.patience;
    }
}

/// A plan whose kernels were tried again and not had is tried again later and later.
void wait_longer(prepared_plan& p, const prepared_plan& before) {
    constexpr std::chrono::seconds longest{600};
    if (p.try_again != std::chrono::steady_clock::time_point::max()) {
        p.patience = std::min(2 * before.patience, longest);
        p.try_again = std::chrono::steady_clock::now() + p.patience;
    }
}

std::uint64_t key_of_plan(const plan& p) {
    std::uint64_t key = hash_value(p.source);
    key = (key ^ p.passes.size()) * 0x9e3779b97f4a7c15ull;
    key = (key ^ static_cast<std::uint64_t>(p.slab_extent)) * 0x9e3779b97f4a7c15ull;
    return key;
}

/// What a run depends on; the rest of a plan is for people.
bool same_work(const plan& a, const plan& b) {
    return a.slab_extent == b.slab_extent && a.slab_count == b.slab_count && a.buffer_elements == b.buffer_elements &&
           a.workspace_bytes == b.workspace_bytes && a.wishes == b.wishes && a.source == b.source &&
           a.passes == b.passes;
}

}  // namespace

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
    decided.placement = placement::gpu;
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
    if (late_.some_wait() && !is_captured(stream_)) {
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

// --- memory ---------------------------------------------------------------------------------------------------------

void* gpu_executor::allocate(std::int64_t bytes) const {
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
            // Graphs that were captured with it may still run: the old memory stays until the process ends, and growing by
            // halves bounds what is lost to twice the final size.
            bytes = std::max(bytes, memory.bytes + memory.bytes / 2);
        }
        memory.data = static_cast<std::byte*>(allocate(bytes));
        memory.bytes = bytes;
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

// Kernels write to page-locked memory of the host: no copy behind them, nothing to allocate on the device.
void gpu_executor::receive(std::int64_t bytes, const std::function<void(void*)>& queue,
                           const std::function<void(const void*)>& read) const {
    const context_scope scope(device_.handle());
    held_block shared(device_.pinned(), stream_,
                      static_cast<std::size_t>(bytes));  // where this fails kernels may still write
    queue(shared.get().data);
    OTIMES_CUDA_CALL(cuStreamSynchronize(stream_));
    shared.set_idle();
    read(shared.get().data);
}

// --- preparing ------------------------------------------------------------------------------------------------------

void gpu_executor::load(const launch_list& list) const {
    std::vector<kernel_request> requests;
    std::set<std::string> seen;
    for (const std::vector<launch>* const part : {&list.before, &list.slab, &list.rest, &list.after}) {
        for (const launch& l : *part) {
            kernel_request r = request_of(l);
            if (seen.insert(r.expression).second) {
                requests.push_back(std::move(r));
            }
        }
    }
    if (requests.size() < 2) {
        return;  // the one kernel is loaded where it is used
    }
    // The kernels of a plan compile at the same time.
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto work = [&](std::size_t) {
        for (std::size_t i = next++; i < requests.size(); i = next++) {
            try {
                device_.kernels().get(requests[i]);
            } catch (...) {
                const std::lock_guard lock(failure_mutex);
                failure = std::current_exception();
            }
        }
    };
    std::vector<std::thread> threads;
    const std::size_t count = std::min<std::size_t>(requests.size(), std::max(1u, std::thread::hardware_concurrency()));
    start_threads(threads, count - 1, work);
    work(0);
    for (std::thread& t : threads) {
        t.join();
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
}

std::vector<prepared_launch> gpu_executor::prepare(const std::vector<launch>& launches) const {
    std::vector<prepared_launch> result;
    const gpu_description& gpu = device_.description();
    for (const launch& l : launches) {
        const kernel_request request = request_of(l);
        std::string why;
        const std::shared_ptr<const loaded_kernel> kernel = device_.kernels().get(request, &why);
        if (kernel == nullptr) {
            throw device_error("otimes: the kernel " + request.expression + " cannot be had: " + why + ".");
        }
        if (!owns_stream_ || !driver().has_early_launch) {  // it may end while they run, or nothing tells of captures
            kernel->keep_for_good();
        }
        prepared_launch ready;
        ready.kernel = kernel;
        ready.arguments = make_arguments(l);
        ready.pass = l.pass;
        const char* source = nullptr;
        std::int64_t useful = 0;
        std::int64_t resident = 0;
        if (l.kind == launch_kind::sliced) {
            const std::int64_t outputs = outputs_of(l.sliced);
            if (outputs == 0) {
                continue;
            }
            if (l.sliced.blocks) {
                const planning::blocked_kernel& k = *l.sliced.blocks;
                ready.threads = static_cast<unsigned>(k.threads());
                take_shared_memory(*kernel, request, gpu, ready);
                int blocks = 0;
                OTIMES_CUDA_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &blocks, kernel->function, static_cast<int>(ready.threads), ready.shared_bytes));
                resident = std::int64_t{blocks} * gpu.multiprocessors;
                require_room(resident, request);
                const std::int64_t batches = batches_of(l.sliced);
                useful = batches * k.blocks(l.sliced.q_extent, outputs / l.sliced.q_extent / batches);
                source = to_string(kernel->source).data();
            } else {
                ready.threads = sliced_threads;
                const bool copies = copy_of(l).has_value() || diagonal_of(l).has_value();
                const std::int64_t each = sliced_threads * (copies ? copied_together : 1);  // outputs of a block's turn
                useful = ((outputs << l.sliced.lanes_log2) + each - 1) / each;
                resident = std::int64_t{32} * gpu.multiprocessors;
                source = copy_of(l) ? "copy" : copies ? "scale" : "generic";
            }
        } else if (l.kind == launch_kind::sparse) {
            std::int64_t sums = l.sparse.outputs * ((l.sparse.turn.extent + l.sparse.together - 1) / l.sparse.together);
            for (const free_mode& m : l.sparse.free) {
                sums *= m.extent;
            }
            if (sums == 0) {
                continue;
            }
            ready.threads = sliced_threads;
            useful = ((sums << l.sparse.lanes_log2) + sliced_threads - 1) / sliced_threads;
            resident = std::int64_t{32} * gpu.multiprocessors;
            source = to_string(kernel->source).data();
        } else if (l.kind != launch_kind::fused) {
            ready.threads = sliced_threads;
            resident = useful = l.kind == launch_kind::partial_dots ? l.dot.blocks : 1;
            source = to_string(kernel->source).data();
        } else {
            const gpu_group& group = l.fused.group;
            ready.threads = static_cast<unsigned>(group.tile.threads);
            take_shared_memory(*kernel, request, gpu, ready);
            take_clusters(*kernel, group);
            resident = resident_blocks(kernel->function, group, ready.shared_bytes, gpu);
            require_room(resident, request);
            useful = l.fused.place.tiles(group) * group.tile.cluster * group.tile.slices;
            // A tile's slices are neighbouring blocks of one turn. They do not wait for each other, so that on a small device
            // some may come after the others; fewer blocks than slices would leave a part of Y unwritten.
            const std::int64_t slices = group.tile.slices;
            resident = std::max(resident - resident % slices, slices);
            if (planning::sums_up(group.ending)) {
                const std::int64_t sharing = slices * group.tile.cluster;  // as many blocks as there is room for sums
                resident =
                    std::max(std::min<std::int64_t>(resident, l.dot.blocks) / sharing, std::int64_t{1}) * sharing;
            }
            if (group.ending == gpu_ending::scaled_along) {
                resident = blocks_that_come_back(l, useful, resident);
            }
            source = to_string(kernel->source).data();
        }
        // Blocks that move in early settle where there is room, not evenly: measured to gain where blocks are few, or so large
        // that room appears only as one leaves; 3 to 15 % slower with clusters and with more blocks a multiprocessor.
        const bool few = useful <= std::min<std::int64_t>(resident, 2 * gpu.multiprocessors);
        const bool large = l.kind == launch_kind::fused && l.fused.group.tile.cluster == 1 &&
                           resident <= std::int64_t{4} * gpu.multiprocessors;
        ready.early = (few || large) && waits_for_earlier_launches(request, kernel->function);
        ready.clustered = l.kind == launch_kind::fused && l.fused.group.tile.cluster > 1;
        ready.alone = large && resident <= gpu.multiprocessors;
        const auto grid_of = [useful](std::int64_t blocks) {
            return static_cast<unsigned>(std::clamp<std::int64_t>(std::min(useful, blocks), 1, (1ll << 31) - 1));
        };
        ready.grid = grid_of(resident);
        const std::int64_t sharing =
            l.kind == launch_kind::fused ? std::int64_t{l.fused.group.tile.slices} * l.fused.group.tile.cluster : 1;
        // Half of the links' bandwidth is no use: a pass that stores keeps a block on each multiprocessor.
        const std::int64_t least =
            l.kind == launch_kind::fused && l.fused.group.scattered ? gpu.multiprocessors : sharing;
        ready.half_grid = l.dot.blocks > 1 ? ready.grid : grid_of(std::max(resident / 2 / sharing * sharing, least));
        std::string name = request.expression;
        for (std::size_t at = name.find("otimes::kernels::"); at != std::string::npos;
             at = name.find("otimes::kernels::")) {
            name.erase(at, 17);
        }
        ready.trace = "pass " + std::to_string(l.pass + 1) + ": " + name + ", grid " + std::to_string(ready.grid) +
                      " x " + std::to_string(ready.threads) + ", " + std::to_string(ready.shared_bytes) +
                      " bytes shared, source: " + source;
        if (l.kind == launch_kind::sliced && !l.sliced.blocks) {
            ready.trace += " (code: " + std::string(to_string(kernel->source)) + ")";
        }
        result.push_back(std::move(ready));
    }
    return result;
}

std::shared_ptr<prepared_plan> gpu_executor::prepare(const plan& p, bool allow_fused) const {
    if (p.where != placement::gpu) {
        throw unsupported_error("otimes: executor '" + name_ +
                                "' runs plans for one GPU; this one was made for another place. Make it with "
                                "options{.placement = placement::gpu} and this executor's target().");
    }
    const context_scope scope(device_.handle());
    const beside_captures loading;  // also what is evaluated for the first time in a capture
    auto ready = std::make_shared<prepared_plan>();
    ready->made_for = p;
    for (const tensor& t : p.source.tensors) {
        if (t.binding >= 0 && t.space == memory_space::host) {
            (t.role == tensor_role::factor ? ready->host_factors : ready->host_operands) = true;
        }
    }
    if (ready->host_operands) {
        if (!p.passes.empty()) {
            ready->stream = prepare_stream(p, planning::streaming_budget(device_.description(), p.wishes));
            for (const prepared_stage& stage : ready->stream->stages) {
                for (const auto* const part : {&stage.slab, &stage.rest}) {
                    ready->try_again = *part ? std::min(ready->try_again, (*part)->try_again) : ready->try_again;
                }
            }
        }
        return ready;
    }
    const gpu_description& gpu = device_.description();
    try {
        ready->list = lower_to_launches(p, gpu, allow_fused);
        load(ready->list);
        ready->before = prepare(ready->list.before);
        ready->slab = prepare(ready->list.slab);
        ready->rest = prepare(ready->list.rest);
        ready->after = prepare(ready->list.after);
    } catch (const device_error& failure) {
        // A fused kernel that cannot be had or does not fit: the generic kernels do every plan.
        set_replaced(*ready, failure);
        ready->list = {};
        ready->list = lower_to_launches(p, gpu, false);
        ready->before = prepare(ready->list.before);
        ready->slab = prepare(ready->list.slab);
        ready->rest = prepare(ready->list.rest);
        ready->after = prepare(ready->list.after);
    }
    ready->operands = operands_of(*ready);
    launch_early_together(*ready);
    ready->reads_early = may_read_early(ready->list) && !ready->slab.empty() && ready->slab.front().early;
    return ready;
}

std::shared_ptr<prepared_plan> gpu_executor::prepare_scattered(const plan& p) const {
    const context_scope scope(device_.handle());
    const beside_captures loading;
    auto ready = std::make_shared<prepared_plan>();
    ready->made_for = p;
    ready->scattered = true;
    const gpu_description& gpu = device_.description();
    launch_list list = lower_to_launches(p, gpu);
    if (list.slab.size() != 1 || list.slab_count != 1 || !list.after.empty()) {
        return ready;
    }
    launch& last = list.slab.front();
    const planning::group_place& place = last.fused.place;
    const std::int64_t line = place.parts_per_line * last.fused.group.count_p();
    const std::optional<gpu_group> group =
        last.kind != launch_kind::fused || last.add || (place.lines > 1 && place.x_line != line) ||
                place.groups() >= std::int64_t{1} << 31
            ? std::nullopt
            : planning::scattered_group(last.fused.group, last.fused.group.tile.rows * last.fused.group.count_q(), gpu);
    if (!group) {
        return ready;
    }
    last.fused.group = *group;
    try {
        load(list);
        ready->before = prepare(list.before);
        ready->slab = prepare(list.slab);
    } catch (const device_error& failure) {
        set_replaced(*ready, failure);
        ready->before.clear();
        ready->slab.clear();
    }
    ready->host_factors = !list.staged.empty();
    ready->list = std::move(list);
    launch_early_together(*ready);
    return ready;
}

std::shared_ptr<const prepared_plan> gpu_executor::prepared(const plan& p, bool scattered) const {
    struct recent_plan {
        std::uint64_t executor_id = 0;
        const plan* address = nullptr;
        std::shared_ptr<const prepared_plan> ready;
    };
    using recent_plans = std::array<recent_plan, 64>;
    recent_plan none;
    recent_plans* const recent = otimes::detail::kept_by_thread<recent_plans, recent_plan>();
    // Ranks on several GPUs run the same plan by turns.
    const std::uint64_t where =
        (reinterpret_cast<std::uintptr_t>(&p) >> 4) + id() * 0x9e3779b97f4a7c15ull + (scattered ? 1 : 0);
    recent_plan& entry = recent != nullptr ? (*recent)[(where * 0x9e3779b97f4a7c15ull) >> 58] : none;
    if (entry.executor_id == id() && entry.address == &p && entry.ready->scattered == scattered &&
        same_work(entry.ready->made_for, p) && !entry.ready->is_stale()) {
        return entry.ready;
    }
    const std::uint64_t key = key_of_plan(p);
    std::shared_ptr<const prepared_plan> found;
    // The caller holds the lock.
    const auto place = [&] {
        const auto [begin, end] = plans_.equal_range(key);
        const auto at = std::find_if(begin, end, [&](const auto& known) {
            return known.second->scattered == scattered && same_work(known.second->made_for, p);
        });
        return at == end ? plans_.end() : at;
    };
    {
        const std::lock_guard lock(plans_mutex_);
        if (const auto at = place(); at != plans_.end()) {
            found = at->second;
        }
    }
    if (!found || found->is_stale()) {
        const std::shared_ptr<prepared_plan> fresh = scattered ? prepare_scattered(p) : prepare(p);
        if (found) {
            wait_longer(*fresh, *found);
        }
        found = fresh;
        const std::lock_guard lock(plans_mutex_);
        if (const auto at = place(); at != plans_.end()) {
            at->second = found;
        } else {
            if (plans_.size() >= most_prepared_plans) {
                plans_.clear();
            }
            plans_.emplace(key, found);
        }
    }
    entry = {id(), &p, found};
    return found;
}

std::string gpu_executor::describe(const plan& p) const {
    const std::shared_ptr<const prepared_plan> ready = prepared(p);
    if (ready->host_operands) {
        std::string text = "operands in host memory pass through the device\n";
        for (std::size_t i = 0; ready->stream && i < ready->stream->stages.size(); ++i) {
            const prepared_stage& stage = ready->stream->stages[i];
            text += "slabs: " + std::to_string(stage.stage.slab_count) + "\n" + describe(stage.stage.slab);
        }
        return text;
    }
    std::string text;
    if (!ready->replaced.empty()) {
        const bool again = ready->try_again != std::chrono::steady_clock::time_point::max();
        text = "generic kernels in the place of compiled ones" +
               std::string(again ? ", which are tried again later: " : ": ") + ready->replaced + "\n";
    }
    for (const std::vector<prepared_launch>* const part : {&ready->before, &ready->slab, &ready->rest, &ready->after}) {
        for (const prepared_launch& l : *part) {
            text += (part == &ready->before ? "factors, " : part == &ready->rest ? "last slab, " : "") + l.trace + "\n";
        }
    }
    return text;
}

// --- running --------------------------------------------------------------------------------------------------------

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
    const std::shared_ptr<const prepared_plan> ready = prepared(p, true);
    if (ready->slab.empty() || receivers.size() > most_receivers) {
        return false;
    }
    const gpu_group& group = ready->list.slab.front().fused.group;
    if (to.together() % (group.tile.rows * group.count_q()) != 0) {
        return false;
    }
    const scatter_target target{to, receivers, tell};
    run_on_device(*ready, b, {}, half, &target);
    return true;
}

void gpu_executor::require_reach(const prepared_plan& ready, const bindings& b) const {
    reached_pages* const pages = otimes::detail::kept_by_thread<reached_pages, gpu_executor>();
    for (const used_operand& o : ready.operands) {
        const void* const address = b.pointers[static_cast<std::size_t>(o.binding)];
        if (pages != nullptr && pages->holds(&device_, address)) {
            continue;
        }
        const reach found = device_.reach_of(address);
        if (found == reach::host_memory && is_captured(stream_) && !host_reads(address)) {
            continue;  // memory of the graph that is being made, such as a temporary of this expression
        }
        if (found != reach::here) {
            throw device_error(refusal_of(o.role, address, found));
        }
        if (pages != nullptr) {
            pages->keep(&device_, address);
        }
    }
}

void gpu_executor::run_on_device(const prepared_plan& ready, const bindings& b, workspace_view workspace, bool beside,
                                 const scatter_target* to) const {
    const context_scope scope(device_.handle());
    if (to == nullptr) {  // else Y is in several matrices, whose owner knows who reaches them
        require_reach(ready, b);
    }
    const launch_list& list = ready.list;
    const std::lock_guard lock(queue_mutex_);
    if (late_.some_wait() && !is_captured(stream_)) {
        give_back_late();
    }
    if (ready.host_factors) {
        require_no_capture("a factor is in host memory");
    }
    auto* const buffers = workspace.data != nullptr  ? static_cast<std::byte*>(workspace.data)
                          : list.workspace_bytes > 0 ? grown(workspace_, list.workspace_bytes)
                                                     : nullptr;
    std::byte* const scratch = list.scratch_bytes > 0 ? grown(scratch_, list.scratch_bytes) : nullptr;
    for (const staged_factor& f : list.staged) {
        const program& source = ready.made_for.source;
        const tensor& t = source.at(f.tensor);
        send(scratch + f.scratch_bytes, b.pointers[static_cast<std::size_t>(t.binding)], f.modes, t.scalar_bytes);
    }
    const auto address_of = [&](const memory_reference& at, std::int64_t slab) {
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
            if (early.factors && &l == ready.slab.data() && slab == 0) {
                const std::array<bool, 2> flags{true, early.x};
                std::memcpy(arguments.data() + l.arguments.ready_offset, flags.data(), sizeof(flags));
            }
            if (to != nullptr && l.arguments.scattered_offset > 0) {
                write_scattered(arguments.data() + l.arguments.scattered_offset, to->shape, to->receivers,
                                list.slab.front().fused.group.count_q(), to->tell);
            }
            void* parameters[] = {arguments.data()};
            // Beside other work not early: blocks that wait for the launch in front would take the room that is left.
            launch_kernel(l.kernel->function, beside ? l.half_grid : l.grid, l.threads, l.shared_bytes, stream_,
                          parameters, l.early && !beside);
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

// --- the executors of the process -----------------------------------------------------------------------------------

namespace {

const device_executor& executor_of(device_context& device, CUstream stream, bool own_stream,
                                   device_memory_resource* resource) {
    struct key {
        CUcontext context;
        CUstream stream;
        device_memory_resource* resource;
        auto operator<=>(const key&) const = default;
    };
    static std::mutex* const mutex = new std::mutex;  // never destroyed: matrices may outlive static objects
    static auto* const known = new std::map<key, std::unique_ptr<gpu_executor>>;
    const std::lock_guard lock(*mutex);
    std::unique_ptr<gpu_executor>& slot = (*known)[{device.handle(), own_stream ? nullptr : stream, resource}];
    if (!slot) {
        if (own_stream) {
            const context_scope scope(device.handle());
            OTIMES_CUDA_CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        }
        slot = std::make_unique<gpu_executor>(device, stream, own_stream, resource);
        if (own_stream) {
            device.kernels().run_on(stream);
        }
    }
    return *slot;
}

}  // namespace

}  // namespace otimes::backend

namespace otimes {

const device_executor& gpu() {
    return backend::executor_of(backend::device_context::current(), nullptr, true, nullptr);
}

namespace {

/// @throws device_error the stream is one of CUDA's default streams
void require_own_stream(CUstream_st* stream, const char* call) {
    const std::string objection = backend::objection_to_stream(stream, call);
    if (!objection.empty()) {
        throw device_error(objection);
    }
}

}  // namespace

const device_executor& gpu(CUstream_st* stream) {
    require_own_stream(stream, "gpu(stream)");
    return backend::executor_of(backend::device_context::of(stream), stream, false, nullptr);
}

const device_executor& gpu(CUstream_st* stream, device_memory_resource& resource) {
    require_own_stream(stream, "gpu(stream, resource)");
    return backend::executor_of(backend::device_context::of(stream), stream, false, &resource);
}

namespace {

/// The executor on a stream of its own on GPU `number`, in its primary context.
const executor& executor_of_gpu(std::size_t number) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    OTIMES_CUDA_CALL(cuDeviceGet(&device, static_cast<int>(number)));
    OTIMES_CUDA_CALL(cuDevicePrimaryCtxRetain(&context, device));
    const backend::context_scope scope(context);
    return gpu();
}

/// How many GPUs the process sees; 0 without a driver.
int visible_gpus() {
    const backend::driver_functions* const f = backend::find_driver(nullptr);
    int count = 0;
    return f != nullptr && f->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

}  // namespace

const executor& gpus() {
    static const spreading_executor* const all = [] {
        const executor& first = executor_of_gpu(0);  // throws what gpu() would
        machine target = first.target();
        const auto count = static_cast<std::size_t>(std::max(visible_gpus(), 1));
        target.gpus.assign(count, target.gpus.front());
        return new spreading_executor(std::to_string(count) + " of " + std::string(first.name()), std::move(target),
                                      executor_of_gpu);  // as long as the process
    }();
    return *all;
}

const executor* find_gpus() { return visible_gpus() > 1 && !backend::is_one_rank_of_several() ? &gpus() : nullptr; }

const device_executor* find_gpu(std::string* why) {
    if (backend::find_driver(why) == nullptr) {
        return nullptr;
    }
    try {
        return &gpu();
    } catch (const device_error& failure) {
        if (why != nullptr) {
            *why = failure.what();
        }
        return nullptr;
    }
}

}  // namespace otimes
