// SPDX-License-Identifier: MIT
// From a plan to one that is ready to run: kernels loaded or compiled, their grids, clusters and argument blocks; and the cache of such plans.
#include "executor.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <otimes/plan/gpu_sparse.hpp>
#include <otimes/plan/placement.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/program/errors.hpp>

#include "../core/host_copy.hpp"
#include "../core/threads.hpp"
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

kernel_request usual_request_of(const launch& l) {
    if (l.kind == launch_kind::partial_dots || l.kind == launch_kind::finish_dot) {
        return {"dot_product.cuh",
                expression_of(l.kind == launch_kind::finish_dot ? "finish_dot" : "partial_dots", l.type, true), ""};
    }
    if (l.kind == launch_kind::sparse) {
        return sparse_request(types_of(l.type), l.sparse.tiles);
    }
    if (l.kind == launch_kind::sliced) {
        if (l.sliced.blocks) {
            return blocked_request(*l.sliced.blocks, types_of(l.type), l.sliced.x_p == 1, l.sliced.f_p == 1,
                                   l.sliced.ending);
        }
        if (l.sliced.fibres > 1) {
            return few_fibres_request(types_of(l.type), l.sliced.fibres);
        }
        const char* const kernel = copy_of(l)       ? "scaled_copy"
                                   : diagonal_of(l) ? "diagonal_scale"
                                                    : "generic_sliced_multiply";
        return {std::string(kernel) + ".cuh", expression_of(kernel, l.type), ""};
    }
    return backend::request_of(l.fused.group);
}

kernel_request request_of(const launch& l) {
    kernel_request request = usual_request_of(l);
    request.evict_first = l.evict_first;
    return request;
}

/// Threads of a block: beside those that compute the warpgroup that tells.
int threads_of(const gpu_group& group) { return group.tile.threads + (group.telling ? 128 : 0); }

/// Blocks of a fused kernel that the device holds at once: whole clusters.
std::int64_t resident_blocks(CUfunction function, const gpu_group& group, unsigned shared_bytes,
                             const gpu_description& gpu) {
    int count = 0;
    if (group.tile.cluster == 1) {
        OTIMES_CUDA_CALL(
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, threads_of(group), shared_bytes));
        return std::min<std::int64_t>(count, planning::most_resident_blocks(group)) * gpu.multiprocessors;
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
                       request.file == "warpgroup_blocks.cuh" || request.file == "staying_factor.cuh" ||
                       request.file == "few_fibres.cuh" || request.file == "dot_product.cuh" ||
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
/// launch of the plan that is not in clusters, since they come where all of its blocks have left; and one block settles anywhere.
void launch_early_together(prepared_plan& p) {
    bool all = true;
    for (const std::vector<prepared_launch>* const part : {&p.before, &p.slab, &p.rest, &p.after}) {
        all = all && std::ranges::all_of(*part, &prepared_launch::early);
    }
    bool first = true;
    for (std::vector<prepared_launch>* const part : {&p.before, &p.slab, &p.rest, &p.after}) {
        const prepared_launch* front = nullptr;
        for (prepared_launch& l : *part) {
            const bool settles_evenly = (l.grid == 1 && !first) || (l.alone && front != nullptr && !front->clustered);
            l.early = all || (l.early && settles_evenly);
            front = &l;
            first = false;
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
            used.push_back({at.index, bound->role, bound->scalar_bytes});
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

/// Asks for the shared memory of a kernel without clusters; of that it gets `used` bytes, or all. @return its blocks that the device then holds at once
/// @pre ready.threads is set
std::int64_t take_room(const loaded_kernel& kernel, const kernel_request& request, const gpu_description& gpu,
                       prepared_launch& ready, std::int64_t used = std::numeric_limits<std::int64_t>::max()) {
    take_shared_memory(kernel, request, gpu, ready);
    ready.shared_bytes = static_cast<unsigned>(std::min<std::int64_t>(ready.shared_bytes, used));
    int blocks = 0;
    OTIMES_CUDA_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.function,
                                                                 static_cast<int>(ready.threads), ready.shared_bytes));
    const std::int64_t resident = std::int64_t{blocks} * gpu.multiprocessors;
    require_room(resident, request);
    return resident;
}

/// Sums of a product by a sparse matrix: as many elements as it writes, `together` to a sum.
std::int64_t sums_of(const sparse_shape& s) {
    std::int64_t sums = s.outputs * ((s.turn.extent + s.together - 1) / s.together);
    for (const free_mode& m : s.free) {
        sums *= m.extent;
    }
    return sums;
}

bool writes_nothing(const launch& l) {
    return (l.kind == launch_kind::sliced && outputs_of(l.sliced) == 0) ||
           (l.kind == launch_kind::sparse && sums_of(l.sparse) == 0);
}

/// How many blocks of a launch have something to do, and how many of them are to be on the device at once.
struct block_counts {
    std::int64_t useful = 0;
    std::int64_t resident = 0;
};

/// Of the blocks that a device holds at once as many as there is room for sums, where they leave sums; `sharing` of them share a tile.
std::int64_t with_room_for_sums(std::int64_t resident, gpu_ending ending, const launch& l, std::int64_t sharing) {
    return planning::sums_up(ending)
               ? std::max(std::min<std::int64_t>(resident, l.dot.blocks) / sharing, std::int64_t{1}) * sharing
               : resident;
}

/// A long factor by blocks.
block_counts size_blocked(const launch& l, const kernel_request& request, const loaded_kernel& kernel,
                          const gpu_description& gpu, prepared_launch& ready) {
    ready.threads = static_cast<unsigned>(l.sliced.blocks->threads());
    const std::int64_t resident = with_room_for_sums(take_room(kernel, request, gpu, ready), l.sliced.ending, l, 1);
    return {blocked_tiles(l.sliced), resident};
}

/// A long factor for few fibres.
block_counts size_few_fibres(const launch& l, const kernel_request& request, const loaded_kernel& kernel,
                             const gpu_description& gpu, prepared_launch& ready) {
    ready.threads = sliced_threads;
    const std::int64_t resident = take_room(kernel, request, gpu, ready);
    const std::int64_t together =
        planning::columns_of_few * (sliced_threads >> l.sliced.lanes_log2);  // new indices of a block
    const std::int64_t fibres = outputs_of(l.sliced) / l.sliced.q_extent;
    return {(l.sliced.q_extent + together - 1) / together * ((fibres + l.sliced.fibres - 1) / l.sliced.fibres),
            resident};
}

/// A fused group.
block_counts size_fused(const launch& l, const kernel_request& request, const loaded_kernel& kernel,
                        const gpu_description& gpu, prepared_launch& ready) {
    const gpu_group& group = l.fused.group;
    ready.threads = static_cast<unsigned>(threads_of(group));
    take_shared_memory(kernel, request, gpu, ready);
    take_clusters(kernel, group);
    std::int64_t resident = resident_blocks(kernel.function, group, ready.shared_bytes, gpu);
    require_room(resident, request);
    const std::int64_t useful = l.fused.place.tiles(group) * group.tile.cluster * group.tile.slices;
    // A tile's slices are neighbouring blocks of one turn. They do not wait for each other, so that on a small device
    // some may come after the others; fewer blocks than slices would leave a part of Y unwritten.
    const std::int64_t slices = group.tile.slices;
    resident = std::max(resident - resident % slices, slices);
    resident = with_room_for_sums(resident, group.ending, l, slices * group.tile.cluster);
    if (group.ending == gpu_ending::scaled_along) {
        resident = blocks_that_come_back(l, useful, resident);
    }
    return {useful, resident};
}

/// Sets the launch's threads and shared memory. @pre it writes something
block_counts size_launch(const launch& l, const kernel_request& request, const loaded_kernel& kernel,
                         const gpu_description& gpu, prepared_launch& ready) {
    if (l.kind == launch_kind::fused) {
        return size_fused(l, request, kernel, gpu, ready);
    }
    if (l.kind == launch_kind::sliced && l.sliced.blocks) {
        return size_blocked(l, request, kernel, gpu, ready);
    }
    if (l.kind == launch_kind::sliced && l.sliced.fibres > 1) {
        return size_few_fibres(l, request, kernel, gpu, ready);
    }
    if (l.kind == launch_kind::sparse && l.sparse.tiles) {
        ready.threads = static_cast<unsigned>(planning::sparse_tile_threads);
        const std::int64_t tile = l.sparse.inputs * l.sparse.together * element_bytes(l.type);  // kernel.value at most
        return {sparse_tile_count(l.sparse), take_room(kernel, request, gpu, ready, tile)};
    }
    ready.threads = sliced_threads;
    const std::int64_t most_resident = std::int64_t{32} * gpu.multiprocessors;
    if (l.kind == launch_kind::sliced) {
        const bool copies = copy_of(l).has_value() || diagonal_of(l).has_value();
        const std::int64_t each = sliced_threads * (copies ? copied_together : 1);  // outputs of a block's turn
        return {((outputs_of(l.sliced) << l.sliced.lanes_log2) + each - 1) / each, most_resident};
    }
    if (l.kind == launch_kind::sparse) {
        return {((sums_of(l.sparse) << l.sparse.lanes_log2) + sliced_threads - 1) / sliced_threads, most_resident};
    }
    const std::int64_t blocks = l.kind == launch_kind::partial_dots ? l.dot.blocks : 1;
    return {blocks, blocks};
}

/// Of a launch that adds up, alone, what the one before it leaves: sums as many as that has blocks, so that nobody waits for zeros, and the host may do it.
/// @param prepared up to that launch
void let_host_finish(const std::vector<launch>& launches, const launch& finish,
                     std::vector<prepared_launch>& prepared) {
    if (launches.size() < 2 || &finish != &launches.back() || prepared.size() != launches.size()) {
        return;
    }
    const auto leaves = [&finish](const launch& l) {
        return same_place(l.sums_or_diagonal, finish.x) || same_place(l.y, finish.x);
    };
    launch summing = launches[launches.size() - 2];
    if (!leaves(summing) || std::ranges::count_if(launches, leaves) != 1 || summing.dot.blocks != finish.dot.blocks ||
        finish.add) {
        return;
    }
    const int count = std::min(summing.dot.blocks, static_cast<int>(prepared[prepared.size() - 2].grid));
    launch fewer = finish;
    summing.dot.blocks = fewer.dot.blocks = count;
    prepared[prepared.size() - 2].arguments = make_arguments(summing);
    prepared.back().arguments = make_arguments(fewer);
    prepared.back().finishes = prepared_launch::finished_sums{finish.x, finish.y, count, finish.type, finish.scalar};
}

/// "pass 1: fused_trailing<...>, grid 132 x 256, 65536 bytes shared, source: cache"
std::string trace_of(const launch& l, const kernel_request& request, const loaded_kernel& kernel,
                     const prepared_launch& ready) {
    std::string name = request.expression;
    constexpr std::string_view space = "otimes::kernels::";
    for (std::size_t at = name.find(space); at != std::string::npos; at = name.find(space)) {
        name.erase(at, space.size());
    }
    const std::string code(to_string(kernel.source));
    const bool generic = l.kind == launch_kind::sliced && !l.sliced.blocks && l.sliced.fibres == 1;
    const std::string source = !generic ? code : copy_of(l) ? "copy" : diagonal_of(l) ? "scale" : "generic";
    return "pass " + std::to_string(l.pass + 1) + ": " + name + ", grid " + std::to_string(ready.grid) + " x " +
           std::to_string(ready.threads) + ", " + std::to_string(ready.shared_bytes) +
           " bytes shared, source: " + source + (generic ? " (code: " + code + ")" : std::string());
}

/// Notes why compiled kernels could not be had, and when that is tried again. Not for deterministic plans: their bits are those of their first
/// run.
void set_replaced(prepared_plan& p, const device_error& failure) {
    p.replaced = failure.what();
    const bool momentary = dynamic_cast<const device_memory_error*>(&failure) != nullptr ||
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

void gpu_executor::load(const launch_list& list) const {
    std::vector<kernel_request> requests;
    for (const std::vector<launch>* const part : {&list.before, &list.slab, &list.rest, &list.after}) {
        for (const launch& l : *part) {
            kernel_request r = request_of(l);
            if (std::ranges::find(requests, r) == requests.end()) {
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
        if (writes_nothing(l)) {
            continue;
        }
        prepared_launch ready;
        ready.kernel = kernel;
        ready.arguments = make_arguments(l);
        ready.pass = l.pass;
        const auto [useful, resident] = size_launch(l, request, *kernel, gpu, ready);
        // Blocks that move in early settle where there is room, not evenly: measured to gain where blocks are few, or so large
        // that room appears only as one leaves; 3 to 15 % slower with clusters and with more blocks a multiprocessor.
        const bool few = useful <= std::min<std::int64_t>(resident, 2 * gpu.multiprocessors);
        const bool large = can_read_early(l) && !(l.kind == launch_kind::fused && l.fused.group.tile.cluster > 1) &&
                           resident <= std::int64_t{4} * gpu.multiprocessors;
        ready.early = (few || large) && waits_for_earlier_launches(request, kernel->function);
        ready.clustered = l.kind == launch_kind::fused && l.fused.group.tile.cluster > 1;
        ready.alone = large && resident <= gpu.multiprocessors;
        const auto grid_of = [most = useful](std::int64_t blocks) {
            return static_cast<unsigned>(std::clamp<std::int64_t>(std::min(most, blocks), 1, (1ll << 31) - 1));
        };
        ready.grid = grid_of(resident);
        const std::int64_t sharing =
            l.kind == launch_kind::fused ? std::int64_t{l.fused.group.tile.slices} * l.fused.group.tile.cluster : 1;
        // Half of the links' bandwidth is no use: a pass that stores keeps a block on each multiprocessor.
        const std::int64_t least =
            l.kind == launch_kind::fused && l.fused.group.scattered ? gpu.multiprocessors : sharing;
        ready.half_grid = l.dot.blocks > 1 ? ready.grid : grid_of(std::max(resident / 2 / sharing * sharing, least));
        ready.trace = trace_of(l, request, *kernel, ready);
        result.push_back(std::move(ready));
        if (l.kind == launch_kind::finish_dot) {
            let_host_finish(launches, l, result);
        }
    }
    return result;
}

launch_list gpu_executor::lower_to_generic(const plan& p, const std::string& why) const {
    const gpu_description& gpu = device_.description();
    const std::int64_t limit = p.wishes.workspace_limit_bytes;
    const auto taken_by = [](const launch_list& list) { return list.workspace_bytes + list.intermediate_bytes; };
    launch_list list = lower_to_launches(p, gpu, false);
    if (list.intermediate_bytes == 0 || taken_by(list) <= limit) {
        return list;
    }
    // They keep what compiled kernels hold on chip: in other slabs, then.
    machine without_compiler = machine_;
    without_compiler.gpus.front().compiles = false;
    options wishes = p.wishes;
    wishes.placement = placement::gpu;
    list = lower_to_launches(make_plan(p.source, without_compiler, wishes), gpu, false);
    if (list.intermediate_bytes > 0 && taken_by(list) > limit) {
        throw budget_error("otimes: the kernels that this plan was made for cannot be had (" + why +
                               "), and the generic ones need a workspace of " + std::to_string(taken_by(list)) +
                               " bytes, but workspace_limit_bytes is " + std::to_string(limit) +
                               ". Raise the limit to that or more.",
                           taken_by(list));
    }
    return list;
}

std::shared_ptr<prepared_plan> gpu_executor::prepare(const plan& p, bool allow_fused, lowered_for use) const {
    if (p.where != placement::gpu) {
        throw unsupported_error("otimes: executor '" + name_ +
                                "' runs plans for one GPU; this one was made for another place. Make it with "
                                "options{.placement = placement::gpu} and this executor's target().");
    }
    const context_scope scope(device_.handle());
    const beside_captures loading;  // also what is evaluated for the first time in a capture
    auto ready = std::make_shared<prepared_plan>();
    ready->made_for = p;
    ready->use = use;
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
        for (std::vector<launch>* const part : {&ready->list.slab, &ready->list.rest}) {
            for (launch& l : *part) {
                l.evict_first = use == lowered_for::passing;
            }
        }
        load(ready->list);
        ready->before = prepare(ready->list.before);
        ready->slab = prepare(ready->list.slab);
        ready->rest = prepare(ready->list.rest);
        ready->after = prepare(ready->list.after);
    } catch (const device_error& failure) {
        // A fused kernel that cannot be had or does not fit: the generic kernels do every plan.
        set_replaced(*ready, failure);
        ready->list = {};
        ready->list = lower_to_generic(p, ready->replaced);
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

std::shared_ptr<prepared_plan> gpu_executor::prepare_scattered(const plan& p, bool in_portions) const {
    const context_scope scope(device_.handle());
    const beside_captures loading;
    auto ready = std::make_shared<prepared_plan>();
    ready->made_for = p;
    ready->use = in_portions ? lowered_for::telling : lowered_for::scattered;
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
    if (!group || (in_portions && !planning::may_tell(*group))) {
        return ready;
    }
    last.fused.group = *group;
    last.fused.group.telling = in_portions;
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

std::shared_ptr<prepared_plan> gpu_executor::prepare_arriving(const plan& p) const {
    const context_scope scope(device_.handle());
    const beside_captures loading;
    auto ready = std::make_shared<prepared_plan>();
    ready->made_for = p;
    ready->use = lowered_for::arriving;
    const gpu_description& gpu = device_.description();
    launch_list list = lower_to_launches(p, gpu);
    if (list.slab.empty() || list.slab_count != 1 || !list.before.empty() || !list.rest.empty() ||
        !list.staged.empty() || list.slab.front().kind != launch_kind::fused ||
        !planning::may_arrive(list.slab.front().fused.group)) {
        return ready;
    }
    list.slab.front().fused.group.arriving = true;
    try {
        load(list);
        ready->slab = prepare(list.slab);
        ready->after = prepare(list.after);
    } catch (const device_error& failure) {
        set_replaced(*ready, failure);
        ready->slab.clear();
        ready->after.clear();
    }
    if (!ready->slab.empty() && !may_launch_early(ready->slab.front().kernel->function)) {
        ready->slab.clear();
    }
    ready->list = std::move(list);
    ready->operands = operands_of(*ready);
    launch_early_together(*ready);
    return ready;
}

std::shared_ptr<const prepared_plan> gpu_executor::prepared(const plan& p, lowered_for use) const {
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
        (reinterpret_cast<std::uintptr_t>(&p) >> 4) + id() * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(use);
    recent_plan& entry = recent != nullptr ? (*recent)[(where * 0x9e3779b97f4a7c15ull) >> 58] : none;
    if (entry.executor_id == id() && entry.address == &p && entry.ready->use == use &&
        same_work(entry.ready->made_for, p) && !entry.ready->is_stale()) {
        return entry.ready;
    }
    const std::uint64_t key = key_of_plan(p);
    std::shared_ptr<const prepared_plan> found;
    // The caller holds the lock.
    const auto place = [&] {
        const auto [begin, end] = plans_.equal_range(key);
        const auto at = std::find_if(begin, end, [&](const auto& known) {
            return known.second->use == use && same_work(known.second->made_for, p);
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
        const std::shared_ptr<prepared_plan> fresh =
            use == lowered_for::run || use == lowered_for::passing ? prepare(p, true, use)
            : use == lowered_for::arriving                         ? prepare_arriving(p)
                                                                   : prepare_scattered(p, use == lowered_for::telling);
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

}  // namespace otimes::backend
