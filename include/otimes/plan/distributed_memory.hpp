// SPDX-License-Identifier: MIT
/// @file distributed_memory.hpp
/// What a rank holds beside X, Y and the factors while a distributed plan runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <otimes/plan/distributed_plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {

namespace planning {

/// How many intermediate buffers the stages take turns in: three, so that while chunks of a stage arrive in one, later chunks
/// still read another and write a third.
inline constexpr std::size_t most_intermediates = 3;
/// Slabs that are done by turns, each with intermediates of its own.
inline constexpr std::size_t most_slabs_on_their_way = 2;

/// Packed messages to different ranks begin at multiples of this.
inline constexpr std::int64_t packing_alignment = 256;

/// What a rank holds beside X, Y, the factors and the workspace of its steps, at most: bytes.
struct held_between {
    std::int64_t buffers = 0;  ///< intermediates
    std::int64_t each = 0;
    std::int64_t packed = 0;
    std::int64_t unpacked = 0;

    [[nodiscard]] std::int64_t total() const noexcept { return buffers * each + packed + unpacked; }
    /// Of two plans that run one after another: memory is used again.
    void join(const held_between& other) noexcept {
        buffers = (std::max)(buffers, other.buffers);
        each = (std::max)(each, other.each);
        packed = (std::max)(packed, other.packed);
        unpacked = (std::max)(unpacked, other.unpacked);
    }
};

/// What a limit leaves beside `held` bytes; no limit leaves no limit, one below 0 nothing.
[[nodiscard]] constexpr std::int64_t left_of(std::int64_t limit, std::int64_t held) noexcept {
    return limit == (std::numeric_limits<std::int64_t>::max)() ? limit : limit > held ? limit - held : std::int64_t{0};
}

OTIMES_COLD inline held_between held_by(const distributed_plan& p, const interconnect& net) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(p.source.type));
    held_between held;
    // A store may have to be done in two steps, with its block between them.
    const std::size_t moved_blocks = std::ranges::count(p.stages, stage_kind::store, &distributed_stage::kind) > 0;
    held.buffers = static_cast<std::int64_t>(
        (std::min)(most_intermediates, p.stages.empty() ? std::size_t{0} : p.stages.size() - 1 + moved_blocks));
    for (const std::int64_t elements : p.buffer_elements) {
        held.each = (std::max)(held.each, elements * bytes);
    }
    for (const distributed_stage& s : p.stages) {
        if (net.packs && s.moved.total > 0) {
            const std::int64_t gaps = packing_alignment * p.source.ranks;
            held.packed = (std::max)(held.packed, s.moved.most_sent * bytes + gaps);
            held.unpacked = (std::max)(held.unpacked, s.moved.most_received * bytes + gaps);
        }
    }
    return held;
}

/// What a rank takes at most for plans that run one after another, beside copies of X and Y: what one has taken the next uses again.
/// @pre none of them is several in turn
OTIMES_COLD inline std::int64_t workspace_in_turn(const std::vector<distributed_plan>& plans, const interconnect& net) {
    held_between together;
    std::int64_t steps = 0;
    for (const distributed_plan& one : plans) {
        held_between held = one.slabs.empty() ? held_by(one, net) : held_between{};
        for (const distributed_plan& slab : one.slabs) {
            held.join(held_by(slab, net));
        }
        held.buffers *= one.overlapped ? static_cast<std::int64_t>(most_slabs_on_their_way) : 1;
        together.join(held);
        steps = (std::max)(steps, one.workspace_bytes - held.total());
    }
    return together.total() + steps;
}

}  // namespace planning

}  // namespace otimes
