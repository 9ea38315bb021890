// SPDX-License-Identifier: MIT
// Contract: sums of products of X that share factors, over every row r (a contiguous tensor [P_1 .. P_n], as fused_trailing). Tiles T_0 .. in shared
// memory, T_0 = X's row at first; the moves, in their order, say what is computed:
//   T_to = [T_sum +] [alpha_term *] (T_from with F_factor in place of mode `level`),  or the same into row r of output o (to = -1 - o)
// Output 0 is Y (+ beta * C, as group_arguments say), output 1 stands `second` elements behind it. X goes through memory once, each output too, and
// what several terms have in common is computed once.
//
// Requires: P_i = Q_i; Group::run = segments = slices = cluster = terms = 1, at most one slot (the next tile of X arrives during this one); trips of
//   one mode each; an output has no innermost mode by the matrix unit; by multiply-adds there is one output, the last move. `sum` is `to`, or an output's.
//   beta = 0 with two outputs; terms_memory<Group, Moves>::bytes dynamic shared memory; else as fused_trailing.
// Alignment: any; 16-byte accesses where base and strides allow.
// Aliasing: no overlap of X, Y and factors.
// Called by: the GPU executor, for sums of krons that share factors.
#pragma once
#include "fused_sum.cuh"

namespace otimes::kernels {

// sum, term: -1 for none.
template <int From, int To, int Level, int Factor, int Sum, int Term>
struct move {
    static constexpr int from = From, to = To, level = Level, factor = Factor, sum = Sum, term = Term;
};

template <class... Moves>
struct moves {
    static constexpr int count = sizeof...(Moves);
    template <int Index>
    static constexpr auto at() {
        constexpr int values[count][6] = {
            {Moves::from, Moves::to, Moves::level, Moves::factor, Moves::sum, Moves::term}...};
        return move<values[Index][0], values[Index][1], values[Index][2], values[Index][3], values[Index][4],
                    values[Index][5]>{};
    }
    static constexpr int largest(int a, int b) { return a > b ? a : b; }
    __host__ __device__ static constexpr int tiles() {
        int n = 1;
        ((n = Moves::to + 1 > n ? Moves::to + 1 : n), ...);
        return n;
    }
    __host__ __device__ static constexpr int outputs() {
        int n = 0;
        ((n = -Moves::to > n ? -Moves::to : n), ...);
        return n;
    }
    __host__ __device__ static constexpr int factors() {
        int n = 0;
        ((n = Moves::factor + 1 > n ? Moves::factor + 1 : n), ...);
        return n;
    }
    __host__ __device__ static constexpr int level_of(int factor) {
        int level = 0;
        ((level = Moves::factor == factor ? Moves::level : level), ...);
        return level;
    }
    // The last move that reads or writes T_0.
    __host__ __device__ static constexpr int last_of_input() {
        int last = 0, i = 0;
        ((last = Moves::from == 0 || Moves::to == 0 || Moves::sum == 0 ? i : last, ++i), ...);
        return last;
    }
};

template <class Group, class Moves>
struct terms_memory {
    __host__ __device__ static constexpr int factor_offset(int factor) {
        int n = 0;
        for (int f = 0; f < factor; ++f) n += Group::factor_count(Moves::level_of(f));
        return n;
    }
    static constexpr int tiles_offset = factor_offset(Moves::factors());
    static constexpr int bytes =
        (tiles_offset + (Moves::tiles() + Group::slots) * Group::main_count) * int(sizeof(typename Group::scalar));
};

template <class Group, class Moves>
__global__ void __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_terms(const __grid_constant__ group_arguments<typename Group::scalar> arguments) {
    after_earlier_launches();
    using scalar = typename Group::scalar;
    using steps = typename Group::steps;
    using memory = terms_memory<Group, Moves>;
    static_assert(Group::run == 1 && Group::segments == 1 && Group::slots <= 1 && Group::slices == 1 &&
                  Group::terms == 1 && Group::cluster == 1 && !Group::swizzled && steps::count == Group::modes &&
                  Moves::factors() <= max_modes && Moves::outputs() <= 2);
    constexpr int count = Group::count_p(), spare = Group::slots;
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    scalar* const sFactors = reinterpret_cast<scalar*>(shared_bytes);  // (factor_count of each)
    scalar* const sTiles = sFactors + memory::tiles_offset;            // (slots + tiles, Rows, P_1, .., P_n)
    const index_t rows = arguments.lines * arguments.parts_per_line, parts = arguments.parts_per_line;
    const index_t tiles = (rows + Group::rows - 1) / Group::rows;
    const bool y_wide = aligned_to(arguments.y, 16) && (!Group::addend || arguments.c_offset % Group::vector == 0) &&
                        (Moves::outputs() == 1 || arguments.second % Group::vector == 0) &&
                        arguments.y_line_stride % Group::vector == 0 && count % Group::vector == 0;
    const auto locate = [&](index_t tile) {
        const index_t first = tile * Group::rows;
        const index_t line = parts == 1 ? first : first / parts, part = first - line * parts;
        tile_place<scalar> place;
        place.x = arguments.x + line * arguments.x_line_stride + part * count;
        place.y = arguments.y + line * arguments.y_line_stride + part * count;
        place.x_row_stride = parts == 1 ? arguments.x_line_stride : count;
        place.y_row_stride = parts == 1 ? arguments.y_line_stride : count;
        place.x_inner = place.y_inner = 1;
        place.rows = rows - first < Group::rows ? int(rows - first) : Group::rows;
        place.run = 1;
        return place;
    };
    // The arguments with a factor where its level's stands.
    const auto with_factor = [&](auto factor) {
        constexpr int f = decltype(factor)::value, level = Moves::level_of(f);
        group_arguments<scalar> now = arguments;
        now.factor[level - 1] = arguments.factor[f];
        now.factor_p_stride[level - 1] = arguments.factor_p_stride[f];
        now.factor_q_stride[level - 1] = arguments.factor_q_stride[f];
        return now;
    };
    index_t tile = blockIdx.x;
    if (tile >= tiles) return;
    tile_place<scalar> place = locate(tile);
    load_part<Group>(place, sTiles, 0);
    commit_copies();
    for_constants<0, Moves::factors()>([&](auto factor) {
        constexpr int f = decltype(factor)::value, level = Moves::level_of(f);
        const group_arguments<scalar> now = with_factor(factor);
        scalar* const sF = sFactors + memory::factor_offset(f);
        if constexpr (Group::matrix_level(level))
            place_fragments<Group, fragment_shape<Group, level>>(now, sF);
        else
#pragma unroll 4
            for (int element = int(threadIdx.x); element < Group::p(level) * Group::factor_pitch(level);
                 element += Group::threads)
                sF[element] = read_factor_element<Group, level>(now, element);
    });
    if constexpr (Group::any_warpgroup()) fence_for_unit();
    int slot = 0;  // of T_0
#pragma unroll 1
    while (true) {
        scalar* const sX = sTiles + slot * Group::main_count;
        const auto tile_at = [&](int i) { return i == 0 ? sX : sTiles + (spare + i) * Group::main_count; };
        const index_t next = tile + gridDim.x;
        if constexpr (spare > 0) {
            slot = 1 - slot;
            if (next < tiles) load_part<Group>(locate(next), sTiles + slot * Group::main_count, 0);
            commit_copies();
            wait_for_copies<1>();
        } else {
            if (next < tiles && Group::blocks_per_multiprocessor == 1) ask_for_part<Group>(locate(next), 0);
            wait_for_copies<0>();
        }
        for_constants<0, Moves::count>([&](auto index) {
            constexpr int i = decltype(index)::value;
            using one = decltype(Moves::template at<i>());
            constexpr int level = one::level, step = steps::of_level(level);
            constexpr bool to_y = one::to < 0, sums = one::sum >= 0, scaled = one::term >= 0;
            static_assert(!sums || to_y || one::sum == one::to);
            // A factor stands where its level's would in a group of one term.
            const scalar* const sF = sFactors + (memory::factor_offset(one::factor) - Group::factor_offset(level));
            const scalar alpha = !scaled          ? scalar(1)
                                 : one::term == 0 ? arguments.alpha
                                                  : arguments.more_alpha[one::term <= 0 ? 0 : one::term - 1];
            scalar* const sFrom = tile_at(one::from);
            __syncthreads();
            if constexpr (spare == 0 && i == Moves::last_of_input() + 1) {
                if (next < tiles) load_part<Group>(locate(next), sX, 0);
                commit_copies();
            }
            if constexpr (steps::unit(step) == 0) {
                static_assert(!to_y || (i + 1 == Moves::count && Moves::outputs() == 1));
                scalar* const sTo = tile_at(!to_y ? one::to : sums ? one::sum : one::from);
                add_mode_product<Group, level, !sums>(sFrom, sTo, sF, alpha);
                if constexpr (to_y) {
                    __syncthreads();
                    store_tile<Group>(place, sTo,
                                      typename Group::last_step(scalar(1), arguments.beta, false, arguments.c_offset));
                }
            } else if constexpr (to_y) {
                tile_place<scalar> to = place;
                if constexpr (one::to == -2) to.y += arguments.second;
                const typename Group::last_step last_step(sums ? scalar(1) : alpha, arguments.beta, y_wide,
                                                          arguments.c_offset);
                if constexpr (sums)
                    matrix_trip<Group, step, 1, true>(sFrom, sFrom, sF, to, last_step,
                                                      with_factor(constant<one::factor>{}), pairs_in_shared{},
                                                      onto_sum<scalar>{alpha, tile_at(one::sum)});
                else
                    matrix_trip<Group, step, 1, true>(sFrom, sFrom, sF, to, last_step,
                                                      with_factor(constant<one::factor>{}), pairs_in_shared{});
            } else {
                const typename Group::last_step unused(scalar(1), scalar(0), false, 0);
                const auto into = [&] {
                    if constexpr (sums)
                        return into_sum<scalar, false>{alpha};
                    else if constexpr (!scaled)
                        return replace{};
                    else
                        return replace_times<scalar>{alpha};
                }();
                matrix_trip<Group, step, 1, false>(sFrom, tile_at(one::to), sF, place, unused,
                                                   with_factor(constant<one::factor>{}), pairs_in_shared{}, into);
            }
        });
        if (next >= tiles) break;
        tile = next;
        place = locate(tile);
        if constexpr (Moves::last_of_input() + 1 == Moves::count || spare > 0) {
            __syncthreads();
            if constexpr (spare == 0) {
                load_part<Group>(place, sX, 0);
                commit_copies();
            }
        }
    }
}

}  // namespace otimes::kernels
