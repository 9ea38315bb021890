// SPDX-License-Identifier: MIT
/// @file lowering_to_launches.hpp
/// How a plan becomes launches (launch_list.hpp): what its parts share. The passes are in launch_list.cpp, the other steps in
/// lower_steps.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>

#include "launch_list.hpp"

namespace otimes::backend {

/// A P x Q factor in device memory.
struct placed_factor {
    memory_reference at;
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    std::int64_t p_stride = 0;
    std::int64_t q_stride = 0;
    bool conjugate = false;
};

/// One mode on its way through a pass.
struct pass_extent {
    std::int64_t extent = 1;
    std::int64_t stride = 0;
    friend bool operator==(const pass_extent&, const pass_extent&) = default;
};

/// A pass and its memory, of one slab.
struct pass_in_memory {
    dtype type = dtype::f64;
    memory_reference from;
    memory_reference to;    ///< of a pass that reduces what it would store: what that is multiplied by
    memory_reference with;  ///< of one that has to store it after all: the same
    std::vector<pass_extent> in;
    std::vector<pass_extent> out;
};

/// Brings the free modes into Y's memory order, outermost first, merges neighbours that are nested in X, Y and F alike, and
/// finds q's place among them.
void order_free_modes(sliced_shape& shape);

/// One lowering of one plan: collects the launches, the scratch memory and what is staged.
class lowering_to_launches {
public:
    lowering_to_launches(const plan& p, const gpu_description& gpu, bool allow_fused)
        : plan_(p), gpu_(gpu), allow_fused_(allow_fused) {}
    launch_list run();

private:
    /// What slabs cut of a contraction with a factor for each item: the fibres of each factor, or the factors.
    enum class slabs_cut : std::uint8_t { nothing, fibres, factors };

    /// Indices of the slab mode in all; 0 without slabs.
    [[nodiscard]] std::int64_t slab_total() const;
    void lower_passes(std::vector<launch>& to, std::int64_t slab);
    /// Of `count` in a slab, in all of them. @pre the slab's indices divide it
    [[nodiscard]] std::int64_t of_all_slabs(std::int64_t count) const {
        return slab_ > 0 ? count / slab_ * total_ : count;
    }
    /// Which mode of a tensor the slabs of the whole program cut; -1: none.
    [[nodiscard]] std::int32_t cut_of(std::int32_t id) const;

    // --- memory -----------------------------------------------------------------------------------------------------
    memory_reference reference_to(std::int32_t name) const;
    /// Whether the plan's workspace limit leaves so many bytes for what makes a step quicker.
    [[nodiscard]] bool has_room(std::int64_t bytes) const;
    memory_reference take_scratch(std::int64_t bytes);

    // --- factors ----------------------------------------------------------------------------------------------------
    /// A factor of the program as it lies in device memory, staged if it comes from the host. Each is placed once.
    placed_factor place(std::int32_t id);
    /// The factors of a sweep as one matrix of `type`: real ones promoted, several multiplied out, first factor outermost.
    placed_factor place_all(std::span<const std::int32_t> ids, dtype type);
    placed_factor promote(const placed_factor& f, dtype from, dtype to);
    placed_factor multiply_out(const placed_factor& a, const placed_factor& b, dtype type);
    static memory_reference one(dtype type);
    /// Makes `l` contract an index of these strides in X and Y with `f`.
    static void contract(launch& l, const placed_factor& f, std::int64_t x_stride, std::int64_t y_stride);

    // --- steps ------------------------------------------------------------------------------------------------------
    /// Of a slab.
    std::span<const mode> modes_of(std::int32_t id) const;
    /// Of the whole, as stored.
    std::span<const mode> whole_modes_of(std::int32_t id) const;
    /// What a plan calls a tensor: its number, or -2 - a buffer.
    std::int32_t name_of(std::int32_t id) const;
    /// The launch that adds up such pairs, as lines of equal steps, Y's innermost mode last.
    launch partial_sums(dtype type, sliced_shape pairs) const;
    /// out (+)= alpha * sum conj(in) * factor, or of |in|^2: sums of the blocks of a grid, then one number.
    void lower_reduction(const pass& p, const step& s);
    /// The same, where the kernels in front of it have left the sums of their blocks.
    void finish_sums(const pass& p);
    /// The reduction that a pass does instead of storing what the program never stores; nullptr: it stores.
    const step* reduction_of(const pass& p) const;
    /// Makes a launch, fused or by blocks, into what `reduction` reads one that sums up.
    void end_in_sums(const step& reduction, launch& l);
    /// Memory for what the plan does not store, where its kernel cannot be had.
    memory_reference stored_after_all(std::int32_t name);
    /// What a scaling multiplies by, in device memory and of the result's type: `strides` for each mode of its input.
    struct placed_diagonal {
        memory_reference at;
        std::vector<std::int64_t> strides;
    };
    placed_diagonal place_diagonal(std::int32_t id, dtype type);
    placed_diagonal place_whole_diagonal(std::int32_t id, dtype type);
    /// out (+)= alpha * in * factor, element by element; in place too.
    void lower_scale(const pass& p, const step& s);
    /// A contraction with a sparse factor in device memory.
    void lower_sparse(const step& s, launch l);
    /// A contraction whose factor has elements of its own for each free index, or some of them.
    void lower_items(const step& s, launch l);
    /// A sum of `pieces` sums of as many products as all have, into scratch memory, and the sum of these. `along`: a piece takes every pieces-th element,
    /// else neighbours. The elements that are left over are in neither.
    std::pair<launch, launch> in_pieces(const launch& l, std::int64_t pieces, bool along);
    /// Few long sums: pieces of them, as many as keep a GPU busy, and then the sums of these. Neighbouring threads read neighbouring elements, also
    /// where the sum runs along the memory: a piece then takes every so many-th of them. Depends on the shapes of the whole alone, so that slabs change no bit.
    /// @param cut what the slabs of the whole program cut
    void sum_in_pieces(launch l, slabs_cut cut);
    void lower_step(const pass& p);

    // --- passes -----------------------------------------------------------------------------------------------------
    dtype type_of(const pass& p) const;
    void lower_pass(const pass& p, std::int64_t slab);
    /// Where a pass reads and stores. @param reduces it has a `reduction` and its kernel may do that instead of storing
    pass_in_memory memory_of(const pass& p, std::int64_t slab, const step* reduction, bool reduces);
    /// A launch that does all of a pass, without kernel and factors.
    [[nodiscard]] launch whole_pass(const pass& p, const pass_in_memory& at) const;
    /// to (+)= alpha * from, in another order.
    void lower_copy(const pass& p, const pass_in_memory& at);
    /// Makes a pass that would have reduced one that stores.
    void store_after_all(const pass& p, pass_in_memory& at);
    /// One launch by blocks that reduces what it would store; false: there is none, and `at` is where the product is stored.
    bool lower_sums_by_blocks(const pass& p, const step& reduction, pass_in_memory& at);
    /// The launches of a pass by its tile, with the reduction that follows if there is one; false: it has none, and `at` is as above.
    bool lower_fused(const pass& p, const step* reduction, pass_in_memory& at);
    /// One mode at a time; an intermediate keeps the modes' order, without gaps. False: the last result lies in an intermediate, and `at` is the way
    /// from there.
    bool lower_sweeps(const pass& p, pass_in_memory& at);
    /// True where one launch by blocks does a pass that stores where it reads.
    bool fits_one_kernel_in_place(const pass& p, const pass_in_memory& at);
    /// Makes `l` one sweep of a pass by the kernel that the pass names. @param count elements that it writes
    /// @returns the pieces of each sum, beside each other
    std::int64_t take_sliced_kernel(const pass& p, std::int64_t count, bool in_place, launch& l) const;
    /// A launch whose `sums` sums are done in so many pieces, and the sum of these; of one piece as it is.
    void push_in_pieces(launch l, std::int64_t pieces, std::int64_t sums);
    /// A shorter last slab that the kernel of the others does not take: sums in their place.
    void sum_what_was_stored(const step& reduction, const pass_in_memory& at);
    /// Makes a sliced launch go by blocks where that kernel suits it. @param cut of what all slabs' number decides, so that slabs change no bit
    /// @param in_place the kernel must be one that may store where it reads
    void take_blocks(launch& l, slabs_cut cut = slabs_cut::nothing, bool in_place = false) const;
    /// By name, or since the result has its operand's binding.
    [[nodiscard]] bool stores_where_it_reads(const pass& p) const;
    void generic(const sweep& s, const std::vector<pass_extent>& in, const std::vector<pass_extent>& out, launch& l);
    /// Makes `l` the launch of a fused pass over these extents (of one slab); false where they do not suit its tile.
    bool make_fused(const pass& p, const std::vector<pass_extent>& in, const std::vector<pass_extent>& out, launch& l);
    /// Fused kernels read factors as they are: a conjugated one is copied first.
    placed_factor without_conjugation(const placed_factor& f, dtype type);

    struct combined {
        std::vector<std::int32_t> ids;
        placed_factor where;
    };

    const plan& plan_;
    const gpu_description& gpu_;
    bool allow_fused_;
    launch_list result_;
    std::vector<launch>* list_ = nullptr;
    std::int64_t slab_ = 0;   ///< indices of the slab that is lowered
    std::int64_t total_ = 0;  ///< of all slabs
    std::vector<mode> slab_modes_;
    std::int64_t scratch_ = 0;
    std::int32_t pass_ = 0;
    std::vector<std::pair<std::int32_t, placed_factor>> placed_;
    std::vector<combined> combined_;
    struct known_diagonal {
        std::int32_t id;
        dtype type;
        placed_diagonal where;
    };
    std::vector<known_diagonal> diagonals_;
    std::vector<std::pair<memory_reference, placed_factor>> conjugated_;
    memory_reference joined_;  // the sums of kernels that reduce
    std::int64_t joined_blocks_ = 0;
    std::int32_t unstored_name_ = -1;
    memory_reference unstored_;
};

}  // namespace otimes::backend
