// SPDX-License-Identifier: MIT
// The ranks of otimes/distributed.hpp: agreement, planning by rank 0, and running a distributed plan.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include <otimes/distributed.hpp>

#include "host_transport.hpp"
#include "transports.hpp"

namespace otimes {

namespace {

constexpr std::int64_t most_direct_runs = 4096;
constexpr std::size_t most_plans = 256;
using planning::packing_alignment;

/// Memory of one local rank that grows and is used again.
struct arena {
    void* data = nullptr;
    std::int64_t bytes = 0;
};

interconnect links_of(const transport& over, const communicator_options& how) {
    interconnect links = how.links;
    links.packs = over.local_count() < over.size();
    for (std::int32_t other = 1; other < over.local_count(); ++other) {
        links.packs = links.packs || !over.reaches(0, other) || !over.reaches(other, 0);
    }
    const machine& where = over.executor_of(0).target();
    const bool gpus = over.executor_of(0).where() == placement::gpu;
    if (gpus && links.store_bytes_per_second == 0) {
        links.store_bytes_per_second = 330e9;  // whole lines
    }
    if (links.bytes_per_second > 0) {
        return links;
    }
    if (gpus) {
        const double peer = where.gpus.front().peer_bytes_per_second;
        links.bytes_per_second = peer > 0 ? peer : where.gpus.front().host_bytes_per_second;
        links.exchange_seconds = links.packs ? 25e-6 : 20e-6;
        // What was packed is waited for, so that nothing of it goes on beside work.
        links.chunks = how.links.chunks > 1 || links.packs ? how.links.chunks : 6;
    } else {
        links.bytes_per_second = where.cpu.memory_bytes_per_second / 4;  // two copies, each read and written
        links.exchange_seconds = over.size() == over.local_count() ? 0 : 5e-6;
    }
    links.bytes_per_second = std::max(links.bytes_per_second, 1e6);
    return links;
}

}  // namespace

struct communicator_state {
    std::unique_ptr<transport> over;
    communicator_options how;
    interconnect links;
    std::map<std::string, std::shared_ptr<const distributed_plan>> plans;
    std::shared_ptr<const distributed_plan> last_plan;
    std::vector<distributed_problem> last_problems;  ///< that it is the plan of
    std::string last_likeness;                       ///< likewise
    /// Of those that have been run: this rank has what they hold beside X and Y. Only memory that could not be taken takes that away.
    std::set<const distributed_plan*> held_plans;
    bool some_lack = false;  ///< a rank does not have it for the plan that was agreed on last
    /// Of each local rank: the intermediates of each slab on its way, what it packs, what it unpacks.
    std::vector<std::array<arena, planning::most_slabs_on_their_way * planning::most_intermediates + 2>> arenas;
    bool captured = false;     ///< what is queued now becomes part of a graph
    std::int64_t started = 0;  ///< exchanges
    /// Fences and exchanges are barriers: what any rank has queued when one begins comes before what the ranks get after its end.
    std::int64_t begun = 0;  ///< barriers
    std::int64_t ended = 0;  ///< the last of them that has ended, and all before it
    std::array<std::int64_t, 8> begun_by_exchange{};
    std::optional<std::uint32_t> told;  ///< value of the last fence that stores have begun, if it has not ended
    /// Of each intermediate: `begun` when a stage that uses it was last queued. Other ranks may store into it once a barrier has begun
    /// and ended since.
    std::array<std::int64_t, planning::most_slabs_on_their_way * planning::most_intermediates + 2> used_at{};

    ~communicator_state() {
        for (std::size_t local = 0; local < arenas.size(); ++local) {
            for (const arena& a : arenas[local]) {
                if (a.data != nullptr) {
                    over->release(static_cast<std::int32_t>(local), a.data, a.bytes);
                }
            }
        }
    }

    std::byte* grown(std::int32_t local, std::size_t which, std::int64_t bytes) {
        arena& a = arenas[static_cast<std::size_t>(local)][which];
        if (a.bytes < bytes) {
            if (a.data != nullptr) {
                over->release(local, a.data, a.bytes);
            }
            a = {};
            try {
                a.data = over->allocate(local, bytes);
            } catch (...) {
                held_plans.clear();
                throw;
            }
            a.bytes = bytes;
            used_at[which] = begun;  // earlier work may still use what lay there
        }
        return static_cast<std::byte*>(a.data);
    }

    static constexpr std::size_t packing = planning::most_slabs_on_their_way * planning::most_intermediates;
    static constexpr std::size_t unpacking = packing + 1;

    /// What a local rank sends and receives of one chunk, and how much of it is packed.
    struct chunk_runs {
        std::vector<std::vector<moved_runs>> out;  ///< to each rank
        std::vector<std::vector<moved_runs>> in;
        std::int64_t packed_bytes = 0;
        std::int64_t unpacked_bytes = 0;
    };
    [[nodiscard]] chunk_runs runs_of(std::int32_t local, const planning::moved_chunk& chunk, std::int64_t rows,
                                     std::int64_t element_bytes) const;
    /// Takes the memory into which one chunk is packed and unpacked.
    void take_packing(const planning::moved_chunk& chunk, std::int64_t rows, std::int64_t element_bytes);
    /// Takes all that a plan holds beside X and Y. @pre ranks of several processes
    void take_all(const distributed_plan& plan);

    /// Moves one chunk of all blocks. What was started is still on its way when this returns, unless it had to be packed.
    /// @param further a chunk of the exchange that was started last (transport::start_further)
    void start_exchange(const planning::moved_chunk& chunk, std::int64_t rows, std::int64_t element_bytes,
                        std::span<const void* const> source, std::span<void* const> target, bool further,
                        bool beside_work);
    void exchange(const distribution& from, const distribution& to, std::int64_t rows, std::int64_t cols,
                  std::int64_t element_bytes, std::span<const void* const> source, std::span<void* const> target) {
        end_stores(told);
        start_exchange({from, to, cols}, rows, element_bytes, source, target, false, false);
        over->finish(0);
        ended = begun;
    }
    /// Ends the fence of these signals, if one of stores has not ended, and those before it.
    void end_stores(std::optional<std::uint32_t> value) {
        if (told && value) {
            over->end_signalled_fence(*value);
            told = told == value ? std::nullopt : told;
        }
    }

    [[nodiscard]] bool quiet(std::size_t arena) const noexcept { return used_at[arena] < ended; }
    /// True of an intermediate that need not be taken yet: a graph cannot take memory.
    [[nodiscard]] bool holds(const distributed_plan& plan, std::size_t arena) const;
    void fence() {
        end_stores(told);
        over->begin_fence();
        over->end_fence();
        ended = ++begun;
    }

    struct slab_on_its_way;
    void advance(slab_on_its_way& at, std::span<const std::vector<const void*>> factors, std::complex<double> alpha);
    /// @return true where what is stored is still on its way
    bool store(slab_on_its_way& at, const distributed_stage& stage, std::size_t arena, std::size_t other,
               std::span<const std::vector<const void*>> factors);
    [[nodiscard]] bool begins_with_portions(const slab_on_its_way& at, const distributed_stage& store) const;
    /// Where the ranks keep an intermediate of a plan.
    void take_intermediate(const distributed_plan& plan, std::size_t which, std::vector<void*>& output);
    /// One chunk, or all, of an exchange.
    [[nodiscard]] static planning::moved_chunk chunk_of_exchange(const distributed_plan& plan, std::size_t i,
                                                                 std::int32_t chunk);
    void take_output(const slab_on_its_way& at, std::size_t stage, std::vector<void*>& output);
    void run_chunk(const slab_on_its_way& at, const distributed_stage& stage, std::int32_t chunk,
                   std::span<const void* const> input, std::span<void* const> output,
                   std::span<const std::vector<const void*>> factors, std::complex<double> alpha);
    void run_in_chunks(slab_on_its_way& at, std::size_t i, std::span<const std::vector<const void*>> factors,
                       std::complex<double> alpha);
    void finish(const slab_on_its_way& at);
};

/// A plan whose stages are being done: one of several that take turns, or the only one.
struct communicator_state::slab_on_its_way {
    const distributed_plan* plan = nullptr;
    std::vector<const void*> current;  ///< of each local rank: what the next stage reads
    std::vector<void*> next;
    std::vector<void*> y;
    std::size_t first_arena = 0;
    std::size_t arena = packing;  ///< that `current` is in, or, of X, one that is no intermediate
    bool by_turns = false;        ///< with another slab, which is computed while this one's exchange goes on
    bool first = false;           ///< of the slabs
    bool last = false;
    std::size_t stage = 0;                ///< that comes next
    std::int64_t exchange = -1;           ///< that is on its way and must end before it; -1: none
    std::optional<std::uint32_t> stored;  ///< value of the fence of stores that are on their way, likewise
    std::int64_t barrier = 0;             ///< `begun` with that
    unsigned items = 0;  ///< of the portions in which those stores tell the next stage; 0: it waits for their end
    std::int64_t item_elements = 1;

    [[nodiscard]] bool done() const noexcept { return stage == plan->stages.size(); }
    [[nodiscard]] bool waits() const noexcept { return exchange >= 0 || stored; }
    /// What other slabs store goes on beside a local stage.
    [[nodiscard]] bool beside_stores() const {
        return by_turns && !(first && stage == 1) && !(last && stage == plan->stages.size()) &&
               std::ranges::count(plan->stages, stage_kind::store, &distributed_stage::kind) > 0;
    }
};

namespace {

strided_copy in_bytes(const moved_runs& m, std::int64_t bytes) {
    strided_copy c;
    c.run = m.run * bytes;
    c.counts = m.counts;
    for (std::size_t level = 0; level < 3; ++level) {
        c.from_strides[level] = m.from_strides[level] * bytes;
        c.to_strides[level] = m.to_strides[level] * bytes;
    }
    return c;
}

/// The strides of the same runs without gaps.
std::array<std::int64_t, 3> packed_strides(const strided_copy& c) {
    return {c.run * c.counts[2] * c.counts[1], c.run * c.counts[2], c.run};
}

/// Both sides decide by the same values, so they list the same messages.
bool goes_directly(const strided_copy& c, const transport& over) {
    const std::int64_t runs = c.counts[0] * c.counts[1] * c.counts[2];
    return runs == 1 || (c.run >= over.least_message_bytes() && runs <= most_direct_runs);
}

template <class Use>
void for_each_run(const strided_copy& c, const std::array<std::int64_t, 3>& strides, const Use& use) {
    for (std::int64_t i = 0; i < c.counts[0]; ++i) {
        for (std::int64_t j = 0; j < c.counts[1]; ++j) {
            for (std::int64_t k = 0; k < c.counts[2]; ++k) {
                use(i * strides[0] + j * strides[1] + k * strides[2]);
            }
        }
    }
}

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + packing_alignment - 1) / packing_alignment * packing_alignment;
}

/// What every agreement compares, so that any two calls can meet: a checksum of what is asked for and its complement, whether a rank
/// cannot make its call, whether one lacks what the others may have.
using agreed_words = std::array<std::uint64_t, 4>;

/// Compares what the ranks were asked for. None: it is the same everywhere; else what rank 0 was asked for. @throws device_error a rank
/// that could not make the call
/// @param lacks in: whether this rank lacks something; out: whether any does
std::optional<std::string> another_request(transport& t, const std::string& text, bool& lacks) {
    const std::uint64_t hash = planning::checksum_of(text);
    agreed_words words{hash, ~hash, 0, lacks ? std::uint64_t{1} : 0};
    t.maximum(words);
    lacks = words[3] != 0;
    if (words[2] != 0) {
        throw device_error(
            "otimes: another rank could not make this call, and threw an exception that says why; no rank has "
            "written anything.");
    }
    if (words[0] == ~words[1]) {
        return std::nullopt;
    }
    std::string of_root = text;
    t.broadcast(of_root);
    return of_root;
}

/// Behind each text of what is compared with a problem.
constexpr char separator = '\f';

/// What a rank was asked for, in words.
std::string in_words(const std::string& asked) {
    return asked.find(separator) == std::string::npos ? asked : "a product";
}

/// What rank 0 was asked for, beside a rank that was asked for `mine`.
std::string compared_with_root(const std::string& mine, const std::string& of_root) {
    return of_root == mine ? "rank 0 the same, another not" : "rank 0: " + in_words(of_root);
}

/// What a request says of the matrices that the terms of a sum have in common.
std::string likeness_of(const std::string& asked) {
    const std::size_t begin = asked.rfind(separator) + 1;
    const std::size_t end = asked.rfind(sum_at_once::end_of_likeness);
    return end == std::string::npos || end < begin ? std::string() : asked.substr(begin, end - begin);
}

/// How two requests of which this rank's is a product differ.
std::string difference_of(std::int32_t rank, const std::vector<distributed_problem>& mine, const std::string& asked,
                          const std::string& of_root) {
    if (asked == of_root) {
        return "this rank agrees with rank 0, another does not";
    }
    if (of_root.find(separator) == std::string::npos) {
        return "rank 0 is at " + of_root;
    }
    std::vector<distributed_problem> there;
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = of_root.find(separator, begin)) != std::string::npos; begin = end + 1) {
        there.push_back(distributed_problem_from_text(of_root.substr(begin, end - begin)));
    }
    const bool subtracts = asked.ends_with(detail::subtracted);
    std::string what = subtracts == of_root.ends_with(detail::subtracted) ? "Y needs memory, or there it does"
                       : subtracts                                        ? "the assignment is -= here, there +="
                                                                          : "the assignment is += here, there -=";
    if (mine.size() != there.size()) {
        what = "the products one after another are " + std::to_string(mine.size()) + " here, " +
               std::to_string(there.size()) + " there: a sum has another number of terms, or X or Y is cut both ways";
    } else if (mine != there) {
        const auto differs = std::ranges::mismatch(mine, there);
        what = describe_difference(*differs.in1, *differs.in2);
    } else if (likeness_of(asked) != likeness_of(of_root)) {
        what = "terms of the sum have matrices in common here that they have not there, or the other way round";
    }
    return "on rank " + std::to_string(rank) + ", compared with rank 0, " + what;
}

}  // namespace

communicator_state::chunk_runs communicator_state::runs_of(std::int32_t local, const planning::moved_chunk& chunk,
                                                           std::int64_t rows, std::int64_t element_bytes) const {
    const auto& [from, to, cols] = std::tie(chunk.from, chunk.to, chunk.cols);
    const std::int32_t ranks = over->size();
    const std::int32_t first = over->first_rank();
    const auto is_local = [&](std::int32_t rank) { return rank >= first && rank < first + over->local_count(); };
    const held_block mine = block_of(from, rows, cols, first + local);
    const held_block wanted = block_of(to, rows, cols, first + local);
    chunk_runs moved;
    for (std::int32_t other = 0; other < ranks; ++other) {
        moved.out.push_back(
            moved_between(mine, block_of(to, rows, cols, other), chunk_of(mine, from, chunk.number, chunk.count)));
        const held_block theirs = block_of(from, rows, cols, other);
        moved.in.push_back(moved_between(theirs, wanted, chunk_of(theirs, from, chunk.number, chunk.count)));
        const bool from_here = is_local(other) && over->reaches(local, other - first);
        const bool to_here = is_local(other) && over->reaches(other - first, local);
        for (const moved_runs& m : moved.out.back()) {
            const bool direct_run = from_here || goes_directly(in_bytes(m, element_bytes), *over);
            moved.packed_bytes += direct_run ? 0 : m.elements() * element_bytes;
        }
        for (const moved_runs& m : moved.in.back()) {
            const bool direct_run = to_here || goes_directly(in_bytes(m, element_bytes), *over);
            moved.unpacked_bytes += direct_run ? 0 : m.elements() * element_bytes;
        }
        moved.packed_bytes = aligned(moved.packed_bytes);
        moved.unpacked_bytes = aligned(moved.unpacked_bytes);
    }
    return moved;
}

void communicator_state::take_packing(const planning::moved_chunk& chunk, std::int64_t rows,
                                      std::int64_t element_bytes) {
    for (std::int32_t local = 0; local < over->local_count(); ++local) {
        const chunk_runs moved = runs_of(local, chunk, rows, element_bytes);
        static_cast<void>(grown(local, packing, moved.packed_bytes));
        static_cast<void>(grown(local, unpacking, moved.unpacked_bytes));
    }
}

void communicator_state::take_all(const distributed_plan& plan) {
    if (held_plans.contains(&plan)) {
        return;
    }
    const auto bytes = static_cast<std::int64_t>(element_bytes(plan.source.type));
    std::vector<void*> unused(static_cast<std::size_t>(over->local_count()));
    const std::size_t by_turns = plan.overlapped ? planning::most_slabs_on_their_way : 1;
    for (const distributed_plan& one : plan.slabs.empty() ? std::span<const distributed_plan>(&plan, 1)
                                                          : std::span<const distributed_plan>(plan.slabs)) {
        for (std::size_t i = 0; i < one.stages.size(); ++i) {
            for (std::size_t slab = 0; slab < by_turns && i + 1 < one.stages.size(); ++slab) {
                take_intermediate(one, slab * planning::most_intermediates + i % planning::most_intermediates, unused);
            }
            const distributed_stage& stage = one.stages[i];
            if (stage.kind == stage_kind::exchange) {
                const std::int32_t chunks = i == 0 ? 1 : one.stages[i - 1].chunks;
                for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
                    take_packing(chunk_of_exchange(one, i, chunk), one.source.rows, bytes);
                }
            }
        }
    }
    held_plans.insert(&plan);
}

void communicator_state::start_exchange(const planning::moved_chunk& chunk, std::int64_t rows,
                                        std::int64_t element_bytes, std::span<const void* const> source,
                                        std::span<void* const> target, bool further, bool beside_work) {
    const std::int32_t ranks = over->size();
    const std::int32_t first = over->first_rank();
    const std::int32_t locals = over->local_count();
    std::vector<message> sends;
    std::vector<message> receives;
    bool any_packed = false;
    std::vector<rank_copy> direct;
    std::vector<rank_copy> later;
    const auto is_local = [&](std::int32_t rank) { return rank >= first && rank < first + locals; };

    for (std::int32_t local = 0; local < locals; ++local) {
        const std::int32_t me = first + local;
        const chunk_runs moved = runs_of(local, chunk, rows, element_bytes);
        const std::vector<std::vector<moved_runs>>& out = moved.out;
        const std::vector<std::vector<moved_runs>>& in = moved.in;
        const std::int64_t packed_bytes = moved.packed_bytes;
        const std::int64_t unpacked_bytes = moved.unpacked_bytes;
        const auto* const base = static_cast<const std::byte*>(source[static_cast<std::size_t>(local)]);
        auto* const end = static_cast<std::byte*>(target[static_cast<std::size_t>(local)]);
        any_packed = any_packed || packed_bytes > 0 || unpacked_bytes > 0;
        std::byte* pack = packed_bytes > 0 ? grown(local, packing, packed_bytes) : nullptr;
        std::byte* unpack = unpacked_bytes > 0 ? grown(local, unpacking, unpacked_bytes) : nullptr;
        for (std::int32_t step = 0; step < ranks; ++step) {
            // Rank r begins with its neighbour r + 1, so that not all send to the same one at once.
            const std::int32_t other = (me + step) % ranks;
            if (is_local(other) && over->reaches(local, other - first)) {
                auto* const there = static_cast<std::byte*>(target[static_cast<std::size_t>(other - first)]);
                for (const moved_runs& m : out[static_cast<std::size_t>(other)]) {
                    direct.push_back({local, base + m.from_start * element_bytes, other - first,
                                      there + m.to_start * element_bytes, in_bytes(m, element_bytes)});
                }
                continue;
            }
            std::byte* const packed = pack;
            for (const moved_runs& m : out[static_cast<std::size_t>(other)]) {
                strided_copy c = in_bytes(m, element_bytes);
                const std::byte* const begin = base + m.from_start * element_bytes;
                if (goes_directly(c, *over)) {
                    for_each_run(c, c.from_strides, [&](std::int64_t at) {
                        sends.push_back({me, other, const_cast<std::byte*>(begin + at), c.run});
                    });
                    continue;
                }
                c.to_strides = packed_strides(c);
                over->copy(local, begin, pack, c);
                pack += m.elements() * element_bytes;
            }
            if (pack != packed) {
                sends.push_back({me, other, packed, pack - packed});
                pack = packed + aligned(pack - packed);
            }
        }
        for (std::int32_t step = 0; step < ranks; ++step) {
            const std::int32_t other = (me - step + ranks) % ranks;
            if (is_local(other) && over->reaches(other - first, local)) {
                continue;
            }
            std::byte* const packed = unpack;
            for (const moved_runs& m : in[static_cast<std::size_t>(other)]) {
                strided_copy c = in_bytes(m, element_bytes);
                std::byte* const begin = end + m.to_start * element_bytes;
                if (goes_directly(c, *over)) {
                    for_each_run(c, c.to_strides, [&](std::int64_t at) {
                        receives.push_back({other, me, begin + at, c.run});
                    });
                    continue;
                }
                c.from_strides = packed_strides(c);
                later.push_back({local, unpack, local, begin, c});
                unpack += m.elements() * element_bytes;
            }
            if (unpack != packed) {
                receives.push_back({other, me, packed, unpack - packed});
                unpack = packed + aligned(unpack - packed);
            }
        }
    }
    if (!further) {
        over->start(sends, receives, direct, beside_work);
    } else {
        over->start_further(sends, receives, direct, beside_work);
    }
    begun_by_exchange[static_cast<std::size_t>(started++) % begun_by_exchange.size()] = ++begun;
    if (!any_packed) {
        return;
    }
    over->finish(0);  // the memory that was packed into is used again by the next chunk
    ended = begun;
    for (const rank_copy& c : later) {
        over->copy(c.to, c.source, c.target, c.what);
    }
}

communicator::communicator(std::unique_ptr<transport> over, const communicator_options& how)
    : state_(std::make_shared<communicator_state>()) {
    if (over == nullptr) {
        throw unsupported_error(
            "otimes: a communicator was made without a transport. Give it one, or use otimes::make_communicator().");
    }
    state_->how = how;
    state_->links = links_of(*over, how);
    state_->arenas.resize(static_cast<std::size_t>(over->local_count()));
    state_->over = std::move(over);
}

std::int32_t communicator::size() const noexcept { return state_ ? state_->over->size() : 0; }
std::int32_t communicator::rank() const noexcept { return state_ ? state_->over->first_rank() : 0; }
std::int32_t communicator::local_count() const noexcept { return state_ ? state_->over->local_count() : 0; }
bool communicator::on_device() const noexcept {
    return state_ && state_->over->executor_of(0).where() == placement::gpu;
}

transport& communicator::over() const {
    if (!state_) {
        throw unsupported_error(
            "otimes: a communicator without ranks was used. Make one by otimes::make_communicator().");
    }
    return *state_->over;
}

const options& communicator::wishes() const {
    static_cast<void>(over());
    return state_->how.wishes;
}

std::string communicator::name() const {
    return planning::counted(size(), "rank") + " over " + std::string(over().name()) + ", each on " +
           std::string(over().executor_of(0).name());
}

void communicator::barrier() const {
    detail::or_refuse(*this, [&] { over().synchronize(); });
    agree("a barrier");
}

double communicator::sum(std::span<const double> of_local_ranks, const std::string& of) const {
    std::vector<double> all;
    detail::or_refuse(*this, [&] {
        static_cast<void>(over());
        if (of_local_ranks.size() != static_cast<std::size_t>(local_count())) {
            throw shape_error("otimes: communicator::sum: " + std::to_string(of_local_ranks.size()) +
                              " numbers were given; each of the " + planning::counted(local_count(), "rank") +
                              " of this process has one.");
        }
        all.assign(static_cast<std::size_t>(size()), 0.0);
        std::ranges::copy(of_local_ranks, all.begin() + rank());
    });
    agree("the sum of " + of);
    over().collect(all);
    double total = 0;
    for (const double one : all) {
        total += one;
    }
    return total;
}

void communicator::refuse(const std::string&) const noexcept {
    try {
        if (state_) {
            agreed_words words{0, 0, 1, 0};
            state_->over->maximum(words);
        }
    } catch (...) {
        return;  // the transport is broken: the others learn of it by themselves
    }
}

void communicator::agree(const std::string& what) const {
    transport& t = over();
    if (t.local_count() == t.size()) {
        return;
    }
    bool lacks = false;
    if (const std::optional<std::string> of_root = another_request(t, what, lacks)) {
        throw unsupported_error("otimes: the ranks make different calls: rank " + std::to_string(rank()) + ": " + what +
                                "; " + compared_with_root(what, *of_root) +
                                ". All ranks must make the same calls in the same order.");
    }
}

std::shared_ptr<const distributed_plan> communicator::plan_for(const distributed_problem& problem,
                                                               const std::string& beside) const {
    return plan_for(std::vector<distributed_problem>{problem}, 0, beside);
}

std::shared_ptr<const distributed_plan> communicator::plan_for(const std::vector<distributed_problem>& problems,
                                                               std::int64_t copied_bytes, const std::string& beside,
                                                               const sum_at_once& whole) const {
    transport& t = over();
    const bool alone = t.local_count() == t.size();
    if (alone && state_->last_plan && state_->last_problems == problems && state_->last_likeness == whole.likeness) {
        return state_->last_plan;
    }
    const auto remember = [&](const std::shared_ptr<const distributed_plan>& made) {
        if (alone) {  // otherwise the ranks agree each time, and one of them may have no memory for the problems
            state_->last_plan = nullptr;
            state_->last_problems = problems;
            state_->last_likeness = whole.likeness;
            state_->last_plan = made;
        }
        return made;
    };
    std::string text;
    std::string asked;
    detail::or_refuse(*this, [&] {
        for (const distributed_problem& problem : problems) {
            (text += to_text(problem)) += separator;
        }
        text += whole.likeness;
        asked = text + beside;
    });
    const auto known = state_->plans.find(text);
    std::shared_ptr<const distributed_plan> made = known != state_->plans.end() ? known->second : nullptr;
    // A rank that had no memory for a plan, or for what it holds, lacks it later: then all get it once more.
    const auto has_memory = [&] {
        return !made->at_once.empty()  ? true  // a rank's own plans hold nothing between runs
               : made->in_turn.empty() ? state_->held_plans.contains(made.get())
                                       : std::ranges::all_of(made->in_turn, [&](const distributed_plan& one) {
                                             return state_->held_plans.contains(&one);
                                         });
    };
    bool lacks = made == nullptr || (!alone && !has_memory());
    if (!alone) {
        if (const std::optional<std::string> of_root = another_request(t, asked, lacks)) {
            throw unsupported_error("otimes: the ranks were asked for different products: " +
                                    difference_of(rank(), problems, asked, *of_root) +
                                    ". All ranks must execute the same assignments with the same shapes, types, "
                                    "options and distributions.");
        }
    }
    state_->some_lack = lacks;
    if (!lacks) {
        return remember(made);
    }
    // Rank 0 plans for all: hosts, tuning tables and compilers may differ. A plan that cannot be made is an error for all.
    std::string answer;
    if (rank() == 0) {
        try {
            if (made == nullptr) {
                const machine& where = t.executor_of(0).target();
                made = std::make_shared<const distributed_plan>(
                    !whole.likeness.empty() ? make_distributed_plan(problems, whole.programs(), where, state_->links)
                    : problems.size() == 1  ? make_distributed_plan(problems.front(), where, state_->links)
                                            : make_distributed_plan(problems, copied_bytes, where, state_->links));
            }
            answer = alone ? "P" : "P" + to_text(*made);
        } catch (const budget_error& failure) {
            answer = "B" + std::to_string(failure.least_bytes()) + " " + failure.what();
        } catch (const shape_error& failure) {
            answer = std::string("S") + failure.what();
        } catch (const device_error& failure) {
            answer = std::string("D") + failure.what();
        } catch (const std::bad_alloc&) {
            answer = "Dotimes: rank 0 has not enough memory left to plan a distributed product.";
        } catch (const std::exception& failure) {
            answer = std::string("U") + failure.what();
        } catch (...) {
            answer = "Uotimes: rank 0 could not plan a distributed product.";
        }
    }
    t.broadcast(answer);
    const char kind = answer.empty() ? 'U' : answer.front();
    if (kind != 'P') {
        const std::string rest = answer.empty() ? std::string() : answer.substr(1);
        switch (kind) {
            case 'B': {
                const std::size_t space = rest.find(' ');
                throw budget_error(rest.substr(space + 1), std::stoll(rest.substr(0, space)));
            }
            case 'S': throw shape_error(rest);
            case 'D': throw device_error(rest);
            default: throw unsupported_error(rest);
        }
    }
    detail::or_refuse(*this, [&] {
        // Rank 0 may have planned anew, with other tuned choices, what this rank still has from before.
        if (made == nullptr || rank() != 0) {
            distributed_plan sent = distributed_plan_from_text(answer.substr(1));
            if (made == nullptr || !(*made == sent)) {
                state_->held_plans.erase(made.get());
                made = std::make_shared<const distributed_plan>(std::move(sent));
            }
        }
        if (state_->plans.size() >= most_plans) {
            state_->plans.clear();
            state_->held_plans.clear();
        }
        state_->plans.insert_or_assign(text, made);
    });
    agree("the plan of a product");
    return remember(made);
}

void communicator_state::take_intermediate(const distributed_plan& plan, std::size_t which,
                                           std::vector<void*>& output) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(plan.source.type));
    for (std::int32_t local = 0; local < over->local_count(); ++local) {
        const std::int64_t wanted = plan.buffer_elements[static_cast<std::size_t>(over->first_rank() + local)] * bytes;
        output[static_cast<std::size_t>(local)] = wanted > 0 ? grown(local, which, wanted) : nullptr;
    }
}

bool communicator_state::holds(const distributed_plan& plan, std::size_t arena) const {
    const auto bytes = static_cast<std::int64_t>(element_bytes(plan.source.type));
    for (std::int32_t local = 0; local < over->local_count(); ++local) {
        const std::int64_t wanted = plan.buffer_elements[static_cast<std::size_t>(over->first_rank() + local)] * bytes;
        if (arenas[static_cast<std::size_t>(local)][arena].bytes < wanted) {
            return false;
        }
    }
    return true;
}

/// Every rank's pass stores what each receiver takes into its memory; all ranks are in this process. Where the executors cannot, the
/// blocks are stored in the intermediate `other`, and moved.
bool communicator_state::store(slab_on_its_way& at, const distributed_stage& stage, std::size_t arena,
                               std::size_t other, std::span<const std::vector<const void*>> factors) {
    const distributed_problem& whole = at.plan->source;
    const auto bytes = static_cast<std::int64_t>(element_bytes(whole.type));
    const std::int32_t ranks = over->size();
    const std::int64_t cols = planning::product_of(planning::extents_after(whole, stage));
    take_intermediate(*at.plan, arena, at.next);
    if (!quiet(arena)) {
        fence();  // a receiver may still read what was there before
    }
    // Where all ranks store, into all ranks, what they tell each other behind it is the fence.
    const bool by_all = stage.where.col_parts == ranks &&
                        std::ranges::none_of(stage.plan_of_rank, [](std::int32_t which) { return which < 0; });
    const std::span<const arrival_signal> signals =
        by_all ? over->signals_of_fence() : std::span<const arrival_signal>();
    bool beside = at.by_turns && !signals.empty();
    const bool in_portions = !at.by_turns && !signals.empty() && begins_with_portions(at, stage);
    bool scattered = true;
    std::vector<void*> blocks(static_cast<std::size_t>(ranks), nullptr);
    for (std::int32_t rank = 0, first_to_run = -1; rank < ranks; ++rank) {
        const std::int32_t which = stage.plan_of_rank[static_cast<std::size_t>(rank)];
        if (which < 0) {
            continue;
        }
        const plan& pass = stage.plans[static_cast<std::size_t>(which)];
        const auto n = static_cast<std::size_t>(rank);
        bindings b;
        b.pointers.push_back(const_cast<void*>(at.current[n]));
        for (const std::int32_t k : stage.factors) {
            b.pointers.push_back(const_cast<void*>(factors[static_cast<std::size_t>(k)][n]));
        }
        b.pointers.push_back(nullptr);
        if (scattered) {
            const std::int32_t parts = stage.where.col_parts;
            const std::int32_t first = rank - (rank - stage.where.first_rank) % parts;  // of the ranks with these rows
            const scatter_shape to = planning::scatter_of(stage, whole, rank);
            const std::span<void* const> receivers(at.next.data() + first, static_cast<std::size_t>(parts));
            const executor* const branch = beside ? over->branch_of(rank) : nullptr;
            beside = branch != nullptr;
            const executor& where = beside ? *branch : over->executor_of(rank);
            const bool half = beside || planning::half_stores(stage, pass);
            arrival_signal tell = signals.empty() ? arrival_signal() : signals[n];
            tell.items = in_portions ? static_cast<unsigned>(stage.portion_items) : 0;
            const peer_stores* const stores = where.stores_for_peers();
            if (stores != nullptr &&
                stores->run_scattered(pass, b, to, receivers, signals.empty() ? nullptr : &tell, half)) {
                first_to_run = rank;
                at.item_elements = to.below;
                continue;
            }
            if (first_to_run >= 0) {
                throw device_error("otimes: rank " + std::to_string(rank) +
                                   " has no kernel that stores into other ranks' memory, as rank " +
                                   std::to_string(first_to_run) + " has.");
            }
            scattered = false;
        }
        if (blocks[n] == nullptr) {
            take_intermediate(*at.plan, other, blocks);
        }
        b.pointers.back() = blocks[n];
        over->executor_of(rank).run(pass, b, {});
    }
    used_at[at.arena] = begun;
    if (scattered && !signals.empty()) {
        at.barrier = ++begun;
        at.stored = told = signals.front().value;
        if (beside) {
            return true;
        }
        if (in_portions) {
            at.items = static_cast<unsigned>(stage.portion_items);
            return false;
        }
        finish(at);
        at.stored.reset();
    } else if (scattered) {
        fence();
    } else {
        const std::vector<const void*> from(blocks.begin(), blocks.end());
        exchange(stage.from, stage.to, whole.rows, cols, bytes, from, at.next);
    }
    return false;
}

/// True where the stage behind a store begins with what has arrived, as planned, and the transport and the ranks' executors can do so.
bool communicator_state::begins_with_portions(const slab_on_its_way& at, const distributed_stage& store) const {
    if (store.portion_items == 0) {
        return false;
    }
    const distributed_stage& next = at.plan->stages[at.stage];
    const auto plan_of = [](const distributed_stage& stage, std::int32_t rank) -> const plan& {
        return stage.plans[static_cast<std::size_t>(stage.plan_of_rank[static_cast<std::size_t>(rank)])];
    };
    for (std::int32_t rank = 0; rank < over->local_count(); ++rank) {
        const peer_stores* const stores = over->executor_of(rank).stores_for_peers();
        if (stores == nullptr || over->awaited_by(rank, 0).words == nullptr ||
            !stores->can_tell_portions(plan_of(store, rank)) || !stores->can_run_arriving(plan_of(next, rank))) {
            return false;
        }
    }
    return true;
}

planning::moved_chunk communicator_state::chunk_of_exchange(const distributed_plan& plan, std::size_t i,
                                                            std::int32_t chunk) {
    const distributed_stage& exchange = plan.stages[i];
    return i == 0 ? planning::moved_chunk{exchange.from, exchange.to, planning::product_of(exchange.extents)}
                  : planning::moved_by_chunk(plan.stages[i - 1], exchange,
                                             i + 1 < plan.stages.size() ? &plan.stages[i + 1] : nullptr, chunk);
}

/// Where the output of a stage lies.
void communicator_state::take_output(const slab_on_its_way& at, std::size_t stage, std::vector<void*>& output) {
    if (stage + 1 == at.plan->stages.size()) {
        output = at.y;
    } else {
        take_intermediate(*at.plan, at.first_arena + stage % planning::most_intermediates, output);
    }
}

/// One chunk of a local stage on every rank; the stage is one chunk where it has no more.
void communicator_state::run_chunk(const slab_on_its_way& at, const distributed_stage& stage, std::int32_t chunk,
                                   std::span<const void* const> input, std::span<void* const> output,
                                   std::span<const std::vector<const void*>> factors, std::complex<double> alpha) {
    const distributed_plan& plan = *at.plan;
    const auto bytes = static_cast<std::int64_t>(element_bytes(plan.source.type));
    const std::int32_t mode = planning::chunked_mode(stage);
    // Of a mode that no rank cuts what lies between the two stages is given as the chunk's own.
    const bool whole_input = stage.chunk_mode < 0 || &stage != &plan.stages.back();
    const bool whole_output = stage.chunk_mode < 0 || &stage == &plan.stages.back();
    const bool beside = at.beside_stores();
    for (std::int32_t local = 0; local < over->local_count(); ++local) {
        const auto n = static_cast<std::size_t>(local);
        const std::int32_t rank = over->first_rank() + local;
        const std::int32_t which = stage.plan_of_rank[static_cast<std::size_t>(rank * stage.chunks + chunk)];
        if (which < 0) {
            continue;
        }
        // The rank's indices in front of the chunk, and elements from one of them to the next in the input and in the output.
        std::int64_t begin = 0;
        std::int64_t step_before = 1;
        std::int64_t step_after = 1;
        std::int64_t cut_index = 0;  // the first one of the cut mode that is done
        if (mode >= 0) {
            const std::vector<std::int64_t> own = planning::local_extents(stage.extents, stage.where, stage.mode, rank);
            begin = planning::range_of_chunk(stage, own[static_cast<std::size_t>(mode)], chunk).begin;
            for (std::size_t k = static_cast<std::size_t>(mode) + 1; k < own.size(); ++k) {
                const bool applied =
                    std::ranges::find(stage.factors, static_cast<std::int32_t>(k)) != stage.factors.end();
                step_before *= own[k];
                step_after *= applied ? plan.source.factors[k].q_extent : own[k];
            }
        }
        if (stage.mode >= 0) {
            const std::int32_t part = (rank - stage.where.first_rank) % stage.where.col_parts;
            cut_index =
                part_of(stage.where.extent, stage.where.col_parts, part).begin + (mode == stage.mode ? begin : 0);
        }
        bindings b;
        b.pointers.push_back(const_cast<std::byte*>(static_cast<const std::byte*>(input[n]) +
                                                    (whole_input ? begin * step_before * bytes : 0)));
        for (const std::int32_t k : stage.factors) {
            const distributed_factor& f = plan.source.factors[static_cast<std::size_t>(k)];
            const std::int64_t skipped = k == stage.mode ? cut_index * (f.row_stride + f.col_stride) : 0;
            b.pointers.push_back(static_cast<std::byte*>(const_cast<void*>(factors[static_cast<std::size_t>(k)][n])) +
                                 skipped * static_cast<std::int64_t>(element_bytes(f.type)));
        }
        b.pointers.push_back(static_cast<std::byte*>(output[n]) + (whole_output ? begin * step_after * bytes : 0));
        if (stage.scaled) {
            b.scalars.push_back(alpha);
        }
        const otimes::plan& steps = stage.plans[static_cast<std::size_t>(which)];
        if (at.items > 0) {
            awaited_signal awaited = over->awaited_by(local, *at.stored);
            awaited.items = at.items;
            awaited.item_elements = at.item_elements;
            over->executor_of(local).stores_for_peers()->run_arriving(steps, b, awaited);
        } else if (beside) {
            over->executor_of(local).run_beside(steps, b);
        } else {
            over->executor_of(local).run(steps, b, {});
        }
    }
}

/// Stage `i`, the exchange behind it and the last stage, chunk by chunk of a mode that no rank cuts: a chunk is on its way while the next one is
/// computed and the one before it is multiplied further.
void communicator_state::run_in_chunks(slab_on_its_way& at, std::size_t i,
                                       std::span<const std::vector<const void*>> factors, std::complex<double> alpha) {
    const distributed_plan& plan = *at.plan;
    const distributed_stage& before = plan.stages[i];
    const distributed_stage& exchange = plan.stages[i + 1];
    const distributed_stage& behind = plan.stages[i + 2];
    const auto bytes = static_cast<std::int64_t>(element_bytes(plan.source.type));
    const std::int64_t cols = planning::product_of(exchange.extents);
    const auto locals = static_cast<std::size_t>(over->local_count());
    std::vector<void*> all_arrived(locals);
    take_output(at, i + 1, all_arrived);
    std::vector<void*> sent(locals);
    std::vector<void*> arrives(locals);
    std::vector<const void*> arrived(locals);
    for (std::int32_t chunk = 0; chunk <= before.chunks; ++chunk) {
        const bool further_one = chunk < before.chunks;
        arrived.assign(arrives.begin(), arrives.end());  // the chunk before
        if (further_one) {
            const planning::moved_chunk moved = chunk_of_exchange(plan, i + 1, chunk);
            const auto chunk_in = [&](void* memory, const distribution& d, std::size_t n) -> void* {
                const held_block block =
                    block_of(d, plan.source.rows, cols, over->first_rank() + static_cast<std::int32_t>(n));
                return memory == nullptr ? nullptr
                                         : static_cast<std::byte*>(memory) + moved.begin(block.elements()) * bytes;
            };
            for (std::size_t n = 0; n < locals; ++n) {
                sent[n] = chunk_in(at.next[n], exchange.from, n);
                arrives[n] = chunk_in(all_arrived[n], exchange.to, n);
            }
            run_chunk(at, before, chunk, at.current, sent, factors, alpha);
            const std::vector<const void*> source(sent.begin(), sent.end());
            start_exchange(moved, plan.source.rows, bytes, source, arrives, chunk > 0, true);
        }
        if (chunk > 0) {
            const std::int64_t ends = started - (further_one ? 2 : 1);
            over->finish(further_one ? 1 : 0);
            ended = std::max(ended, begun_by_exchange[static_cast<std::size_t>(ends) % begun_by_exchange.size()]);
            run_chunk(at, behind, chunk - 1, arrived, at.y, factors, alpha);
        }
    }
    used_at[at.first_arena + (i + 1) % planning::most_intermediates] = begun;
    at.current.assign(at.y.begin(), at.y.end());
    at.arena = packing;
    at.stage = i + 3;
}

/// Does stages up to the end, or to an exchange that is then on its way.
void communicator_state::advance(slab_on_its_way& at, std::span<const std::vector<const void*>> factors,
                                 std::complex<double> alpha) {
    const distributed_plan& plan = *at.plan;
    const std::int32_t locals = over->local_count();
    const auto bytes = static_cast<std::int64_t>(element_bytes(plan.source.type));
    const auto arena_of = [&](std::size_t i) { return at.first_arena + i % planning::most_intermediates; };
    at.exchange = -1;
    at.stored.reset();
    while (!at.done()) {
        const std::size_t i = at.stage++;
        const distributed_stage& stage = plan.stages[i];
        if (stage.kind == stage_kind::store) {
            // In turns with the intermediate that a last stage does not need: so each is quiet when it is stored into again, and
            // ranks wait for each other once, after the pass.
            const bool two = i + 2 == plan.stages.size();
            const bool turn =
                two && !quiet(arena_of(i)) && quiet(arena_of(i + 1)) && (!captured || holds(plan, arena_of(i + 1)));
            const std::size_t arena = arena_of(turn ? i + 1 : i);
            const bool on_its_way = store(at, stage, arena, arena_of(turn ? i : i + 1), factors);
            at.current.assign(at.next.begin(), at.next.end());
            at.arena = arena;
            if (on_its_way) {
                return;
            }
            continue;
        }
        take_output(at, i, at.next);
        used_at[at.arena] = begun;
        at.arena = i + 1 == plan.stages.size() ? packing : arena_of(i);
        used_at[at.arena] = begun;
        if (stage.kind == stage_kind::exchange) {
            if (i == 0 || plan.stages[i - 1].chunks == 1) {  // else it has been started with its chunks
                start_exchange(chunk_of_exchange(plan, i, 0), plan.source.rows, bytes, at.current, at.next, false,
                               at.by_turns);
            }
            at.current.assign(at.next.begin(), at.next.end());
            at.exchange = started - 1;
            return;
        }
        if (stage.chunk_mode >= 0) {  // with the exchange and the last stage
            run_in_chunks(at, i, factors, alpha);
            return;
        }
        std::vector<void*> arrived(static_cast<std::size_t>(locals));
        for (std::int32_t chunk = 0; chunk < stage.chunks; ++chunk) {
            run_chunk(at, stage, chunk, at.current, at.next, factors, alpha);
            if (stage.chunks == 1) {
                break;
            }
            take_output(at, i + 1, arrived);
            const std::vector<const void*> from(at.next.begin(), at.next.end());
            start_exchange(chunk_of_exchange(plan, i + 1, chunk), plan.source.rows, bytes, from, arrived, chunk > 0,
                           chunk + 1 < stage.chunks);
        }
        at.current.assign(at.next.begin(), at.next.end());
        if (at.items > 0) {  // what the ranks get now comes after all that was told
            told.reset();
            at.stored.reset();
            at.items = 0;
            ended = std::max(ended, at.barrier);
        }
    }
}

/// Ends the exchange or the stores that a slab waits for, and those before them.
void communicator_state::finish(const slab_on_its_way& at) {
    if (at.stored) {
        end_stores(at.stored);
        ended = std::max(ended, at.barrier);
    }
    if (at.exchange >= 0) {
        over->finish(static_cast<std::int32_t>(started - 1 - at.exchange));
        ended = std::max(ended, begun_by_exchange[static_cast<std::size_t>(at.exchange) % begun_by_exchange.size()]);
    }
}

namespace {

void require_plan_of(const distributed_problem& made_for, std::int32_t ranks, bool on_device) {
    const auto memory = [](bool device) { return device ? " in device memory" : " in host memory"; };
    const bool for_device = made_for.space == memory_space::device;
    if (made_for.ranks != ranks || for_device != on_device) {
        throw unsupported_error("otimes: communicator::run: the plan was made for " +
                                planning::counted(made_for.ranks, "rank") + memory(for_device) + "; here are " +
                                std::to_string(ranks) + memory(on_device) + ".");
    }
}

void require_addresses(const char* call, const char* what, std::size_t given, std::size_t wanted) {
    if (given != wanted) {
        throw unsupported_error("otimes: communicator::" + std::string(call) + ": addresses of " +
                                std::to_string(given) + " " + what + " were given; there are " +
                                std::to_string(wanted) + ".");
    }
}

}  // namespace

void communicator::run(const distributed_plan& plan, std::span<const void* const> x, std::span<void* const> y,
                       std::span<const std::vector<const void*>> factors, std::complex<double> alpha) const {
    const transport& t = over();
    if (!plan.in_turn.empty() || !plan.at_once.empty()) {
        throw unsupported_error(
            "otimes: a plan of several in turn, or of several at once, was run; each of them is to be run by itself.");
    }
    require_plan_of(plan.source, t.size(), on_device());
    const auto locals = static_cast<std::size_t>(t.local_count());
    require_addresses("run", "blocks of X", x.size(), locals);
    require_addresses("run", "blocks of Y", y.size(), locals);
    require_addresses("run", "factors", factors.size(), plan.source.factors.size());
    for (const std::vector<const void*>& one : factors) {
        require_addresses("run", "copies of a factor", one.size(), locals);
    }
    state_->captured = t.captured();
    if (t.local_count() < t.size() && state_->some_lack) {
        detail::or_refuse(*this, [&] { state_->take_all(plan); });
        agree("memory for what a product holds");
    }
    const std::int32_t first = t.first_rank();
    const distributed_problem& whole = plan.source;
    const auto bytes = static_cast<std::int64_t>(element_bytes(whole.type));
    std::int64_t cols[2] = {1, 1};
    for (const distributed_factor& f : whole.factors) {
        cols[0] *= f.p_extent;
        cols[1] *= f.q_extent;
    }
    using slab_on_its_way = communicator_state::slab_on_its_way;
    const auto begin = [&](std::int64_t s) {
        slab_on_its_way slab;
        slab.plan = plan.slabs.empty() ? &plan : s + 1 == plan.slab_count ? &plan.slabs.back() : &plan.slabs.front();
        slab.by_turns = plan.overlapped;
        slab.first = s == 0;
        slab.last = plan.slabs.empty() || s + 1 == plan.slab_count;
        slab.current.assign(x.begin(), x.end());
        slab.y.assign(y.begin(), y.end());
        slab.next.resize(locals);
        slab.first_arena = plan.overlapped ? static_cast<std::size_t>(s) % planning::most_slabs_on_their_way *
                                                 planning::most_intermediates
                                           : 0;
        // The rows of a part lie one after another in the blocks of X and of Y.
        for (std::size_t n = 0; s > 0 && n < locals; ++n) {
            const auto rank = first + static_cast<std::int32_t>(n);
            const held_block in = block_of(whole.operand, whole.rows, cols[0], rank);
            const held_block out = block_of(plan.result, whole.rows, cols[1], rank);
            if (in.elements() > 0) {
                slab.current[n] =
                    static_cast<const std::byte*>(slab.current[n]) + s * plan.slab_rows * in.cols.size() * bytes;
            }
            if (out.elements() > 0) {
                slab.y[n] = static_cast<std::byte*>(slab.y[n]) + s * plan.slab_rows * out.cols.size() * bytes;
            }
        }
        return slab;
    };
    // One slab after another; or two by turns, so that one's exchange goes on while the other is computed.
    const std::int64_t slabs = plan.slabs.empty() ? 1 : plan.slab_count;
    const std::size_t by_turns = plan.overlapped ? planning::most_slabs_on_their_way : 1;
    std::deque<slab_on_its_way> on_their_way;
    for (std::int64_t s = 0; s < slabs || !on_their_way.empty();) {
        slab_on_its_way slab;
        if (s < slabs && on_their_way.size() < by_turns) {
            slab = begin(s++);
        } else {
            slab = std::move(on_their_way.front());
            on_their_way.pop_front();
            state_->finish(slab);
        }
        try {
            state_->advance(slab, factors, alpha);
        } catch (const std::bad_alloc&) {
            throw device_error("otimes: rank " + std::to_string(first) +
                               " has no memory left for a step of a product.");
        }
        if (!slab.done() || slab.waits()) {
            on_their_way.push_back(std::move(slab));
        }
    }
}

void communicator::move(const distribution& from, std::span<const void* const> source, const distribution& to,
                        std::span<void* const> target, std::int64_t rows, std::int64_t cols,
                        std::int64_t element_bytes) const {
    std::string asked;
    detail::or_refuse(*this, [&] {
        require_addresses("move", "blocks to move from", source.size(), static_cast<std::size_t>(over().local_count()));
        require_addresses("move", "blocks to move to", target.size(), static_cast<std::size_t>(over().local_count()));
        if (rows < 0 || cols < 0 || element_bytes < 1) {
            throw shape_error("otimes: communicator::move: " + detail::shape_text(rows, cols) + " elements of " +
                              std::to_string(element_bytes) + " bytes are no matrix.");
        }
        require_fits(from, cols, size());
        require_fits(to, cols, size());
        const auto where = [](const distribution& d) {
            return to_string(d) + (d.parts() > 1 ? " from rank " + std::to_string(d.first_rank) + " on" : "");
        };
        asked = std::to_string(rows) + " x " + std::to_string(cols) + " elements of " + std::to_string(element_bytes) +
                " bytes, " + where(from) + ", to " + where(to);
        if (over().local_count() < size()) {
            state_->take_packing({from, to, cols}, rows, element_bytes);
        }
    });
    if (over().local_count() < size()) {
        bool lacks = false;
        if (const std::optional<std::string> of_root = another_request(over(), asked, lacks)) {
            throw unsupported_error("otimes: the ranks were asked to move different matrices: rank " +
                                    std::to_string(rank()) + ": " + asked + "; " + compared_with_root(asked, *of_root) +
                                    ". All ranks must make the same calls.");
        }
    }
    state_->captured = over().captured();
    state_->exchange(from, to, rows, cols, element_bytes, source, target);
}

namespace {

void require_gpu_count(const communicator_options& how) {
    if (how.gpu_count < 0) {
        throw unsupported_error("otimes: communicator_options::gpu_count is " + std::to_string(how.gpu_count) +
                                ". Ask for 1 or more, or for 0, which takes all GPUs of the process.");
    }
}

}  // namespace

namespace detail {

communicator in_process_communicator(const executor& where, std::int32_t ranks, const communicator_options& how) {
    if (ranks < 1) {
        throw shape_error("otimes::in_process(" + std::to_string(ranks) + "): at least one rank is needed.");
    }
    return {std::make_unique<backend::in_process_transport>(where, ranks), how};
}

communicator found_communicator(const executor& where, const communicator_options& how) {
    require_gpu_count(how);
    const std::int32_t gpus = how.use_gpus ? backend::visible_gpus() : 0;
    if (backend::started_by_mpi()) {
        std::unique_ptr<transport> control = backend::make_mpi_transport(where, how.deadline);
        // All on GPUs, or all on CPUs: decided together.
        std::uint64_t without = gpus == 0 ? 1 : 0;
        control->maximum({&without, 1});
        if (without != 0) {
            return {std::move(control), how};
        }
        const std::int32_t gpu = backend::mpi_rank_on_host(*control) % gpus;
        return {backend::make_gpu_transport(gpu, 1, std::move(control), how.deadline, false), how};
    }
    if (gpus > 0) {
        return gpu_communicator(how);
    }
    return in_process_communicator(where, 1, how);
}

}  // namespace detail

bool started_by_mpi() { return backend::started_by_mpi(); }

communicator gpu_communicator(const communicator_options& how) {
    require_gpu_count(how);
    return {backend::make_gpu_transport(0, how.gpu_count, nullptr, how.deadline, how.exchange_by_copies), how};
}

}  // namespace otimes
