// SPDX-License-Identifier: MIT
// X of a kernel whose factor stays on chip (staying_factor.cuh): each warp brings the panels of its own fibres, tile after tile, to shared memory, and
// takes them from there to registers.
#pragma once
#include "warpgroup_blocks.cuh"

namespace otimes::kernels {

// The tiles of a block follow each other along the fibres, then the new indices, then the batches. part_of: which part of F a tile has.
template <class Shape>
__device__ __forceinline__ blocked_tile
tile_along_fibres(const blocked_arguments<typename Shape::scalar, typename Shape::scalar>& all,
                  const blocked_tiles& tiles, index_t number, index_t& part_of) {
    part_of = number / tiles.of_fibres;
    const index_t of_fibres = number - part_of * tiles.of_fibres, batch = part_of / tiles.of_q;
    // The same tile as blocked_multiply numbers it.
    return tile_at<Shape>(all, tiles,
                          (batch * tiles.of_fibres + of_fibres) * tiles.of_q + part_of - batch * tiles.of_q);
}

// From the last multiple of 16 bytes to p.
__device__ __forceinline__ int elements_before(const float* p) {
    return int(reinterpret_cast<unsigned long long>(p) / 4 % 4);
}

// The tiles whose panels a warp brings, one after the other. describe(): tile next_tile of its block -> sBegins (where it begins, how much of it exists),
// sPlaces (where the warp's 16 fibres begin in X and Y) and gX (where this lane's first pieces of 16 bytes are: of four rows of fibres eight lanes each,
// doubles eight of four, or of eight values of p four lanes each, doubles four of eight).
//
// This and staying_panels refer to the kernel's variables one by one, in the order in which they use them, as a lambda does: so the compiler makes the
// code that was measured, and other code where an object has them as members.
template <class Shape>
struct staying_tiles {
    using scalar = typename Shape::scalar;
    using tile_begin = typename Shape::tile_begin;
    // (Enumerators: static members would be added to the binary's table of addresses.)
    enum : int {
        V = Shape::vector,
        rows_of_warp = Shape::warp_fibres,
        rows_at_once = 32 / Shape::x_lanes,
        pieces_a_lane = Shape::x_along_p ? rows_of_warp / rows_at_once : 1,
        lanes_of_p = rows_of_warp / V
    };

    index_t& next_tile;
    index_t& next_fibre;  // the tile's first one
    index_t& next_part;   // of F
    const blocked_tiles& tiles;
    const blocked_arguments<scalar, scalar>& all;
    const index_t& first_tile;
    tile_begin* const& sBegins;
    const int& warp;
    int& next_rows;
    const scalar*& gTile;
    const sliced_multiply_arguments<scalar, scalar>& arguments;
    const int& lane;
    index_t* const& sPlaces;
    const scalar* (&gX)[pieces_a_lane];
    int& next_p;

    __device__ __forceinline__ void describe() const {
        const int slot = int(next_tile % Shape::tiles_known);
        next_fibre += Shape::fibres;
        tile_begin begin;
        if (next_part < 0 || next_fibre >= tiles.fibres) {
            const blocked_tile tile = tile_along_fibres<Shape>(all, tiles, first_tile + next_tile, next_part);
            next_fibre = tile.first_fibre;
            begin = {tile.x, tile.f, tile.y, 0, tile.q_left};
        } else
            begin = sBegins[(slot + Shape::tiles_known - 1) % Shape::tiles_known];
        const index_t left = tiles.fibres - next_fibre - warp * rows_of_warp;
        next_rows = left < 0 ? 0 : left < rows_of_warp ? int(left) : rows_of_warp;
        begin.rows = next_rows;
        gTile = arguments.x + begin.x;
        if (lane == 0) sBegins[slot] = begin;
        // Lanes 0..15: where the fibres begin in X, the others: in Y. Behind the last fibre there is the tile's first one.
        const int j = lane % rows_of_warp;
        const bool in_y = lane >= rows_of_warp;
        index_t rest = next_fibre + (j < next_rows ? warp * rows_of_warp + j : 0), place = 0;
        for (int i = arguments.free_count - 1; i >= all.batch_count; --i) {
            const index_t extent = arguments.free_extent[i];
            const index_t above = (rest | extent) >> 32 ? rest / extent : index_t(unsigned(rest) / unsigned(extent));
            place += (rest - above * extent) * (in_y ? arguments.y_stride[i] : arguments.x_stride[i]);
            rest = above;
        }
        sPlaces[slot * 2 * rows_of_warp + lane] = place;
        __syncwarp();
        const index_t* const sPlace = sPlaces + slot * 2 * rows_of_warp;
#pragma unroll
        for (int k = 0; k < pieces_a_lane; ++k)
            gX[k] = Shape::x_along_p
                        ? gTile + sPlace[lane / Shape::x_lanes + rows_at_once * k] + V * (lane % Shape::x_lanes)
                        : gTile + sPlace[V * (lane % lanes_of_p)] + lane / lanes_of_p * arguments.x_p_stride;
        next_p = 0;
    }
};

// The panels that a warp brings, one after the other, whichever of its block's tiles they belong to: X[b, f, p] of its 16 fibres, at
// Shape::panel_steps steps of p or one less -> sX[Shape::x_at(f, p)], and zeros where there is none. Pieces of 16 bytes go from gX on, single elements
// from the places of their fibres.
template <class Shape>
struct staying_panels {
    using scalar = typename Shape::scalar;
    using tiles_type = staying_tiles<Shape>;
    enum : int {
        V = Shape::vector,
        depth = Shape::depth,
        rows_of_warp = Shape::warp_fibres,
        rows_at_once = 32 / Shape::x_lanes,
        row_at_once = V * Shape::x_lanes,
        pieces_a_lane = tiles_type::pieces_a_lane,
        lanes_of_p = rows_of_warp / V,
        p_at_once = 32 / lanes_of_p
    };

    index_t& next_tile;
    const index_t& own_tiles;
    int& next_panel;
    const tiles_type& order;
    const index_t& P;
    int& next_p;
    const blocked_widths& wide;
    const int& lane;
    const scalar* (&gX)[pieces_a_lane];
    const scalar*& gTile;
    int& next_rows;
    const index_t& x_step;
    index_t* const& sPlaces;
    index_t& next_fibre;
    const int& warp;
    const blocked_tiles& tiles;
    const sliced_multiply_arguments<scalar, scalar>& arguments;

    // Brings the next panel, if there is one, by asynchronous copies; a commit in any case.
    __device__ __forceinline__ void bring(scalar* sX) const {
        if (next_tile < own_tiles) {
            if (next_panel == 0) order.describe();
            const int panel_steps = next_panel < Shape::long_panels ? Shape::panel_steps : Shape::panel_steps - 1;
            const int p_exist = int(P) - next_p, p_left = p_exist < 8 * panel_steps ? p_exist : 8 * panel_steps;
            if (wide.x) {
                if (__any_sync(0xffffffffu, next_rows < rows_of_warp || p_left < 8 * panel_steps))
                    bring_wide<false>(sX, panel_steps, p_left);
                else
                    bring_wide<true>(sX, panel_steps, p_left);
                if constexpr (Shape::x_along_p) {
#pragma unroll
                    for (int k = 0; k < pieces_a_lane; ++k) gX[k] += 8 * panel_steps;
                } else
                    gX[0] += 8 / p_at_once * panel_steps * x_step;
            } else if constexpr (Shape::x_along_p && !Shape::doubles)
                bring_pieces_that_hold_rows(sX, p_left);
            else
                bring_elements(sX, p_left);
            next_p += 8 * panel_steps;
            if (++next_panel == Shape::panels) {
                next_panel = 0;
                ++next_tile;
            }
        }
        commit_copies();
    }

    // Whole: all of the panel exists.
    template <bool Whole>
    __device__ __forceinline__ void bring_wide(scalar* sX, int panel_steps, int p_left) const {
        if constexpr (Shape::x_along_p) {
            const int row = lane / Shape::x_lanes, p = V * (lane % Shape::x_lanes);
            scalar* const to = sX + Shape::x_at(row, p);
#pragma unroll
            for (int first = 0; first < depth; first += row_at_once) {
                if (first + (row_at_once > 8 ? p : 0) >= 8 * panel_steps) break;
#pragma unroll
                for (int k = 0; k < pieces_a_lane; ++k) {
                    const int left = Whole ? V : row + rows_at_once * k < next_rows ? p_left - p - first : 0;
                    bring_piece<Shape, V, Whole>(to + Shape::x_at(rows_at_once * k, first),
                                                 left > 0 ? gX[k] + first : gTile, left);
                }
            }
        } else {
            const int fibre = V * (lane % lanes_of_p), p = lane / lanes_of_p;
            scalar* const to = sX + Shape::x_at(fibre, p);
            const scalar* from = gX[0];
#pragma unroll
            for (int k = 0; k < depth / p_at_once; ++k) {
                const int first = k * p_at_once;
                if (first >= depth - 8 && first >= 8 * panel_steps) break;
                const int left = Whole ? V : p + first < p_left ? next_rows - fibre : 0;
                bring_piece<Shape, V, Whole>(to + Shape::x_at(0, first), left > 0 ? from : gTile, left);
                from += x_step;
            }
        }
    }
    // Floats along p that begin anywhere: row f by the whole pieces of 16 bytes that hold it, so that it begins elements_before(its place in X) behind
    // Shape::x_at(f, 0).
    __device__ __forceinline__ void bring_pieces_that_hold_rows(scalar* sX, int p_left) const {
        const index_t* const sPlace = sPlaces + int(next_tile % Shape::tiles_known) * 2 * rows_of_warp;
        constexpr int pieces_of_row = depth / V + 1, pieces = rows_of_warp * pieces_of_row;
        // Nothing may stand behind X: compute-sanitizer takes a copy of fewer bytes for one of all.
        const bool is_end = next_p + p_left == int(P) && next_fibre + warp * rows_of_warp + next_rows == tiles.fibres;
#pragma unroll
        for (int k = 0; k < (pieces + 31) / 32; ++k) {
            const int number = lane + 32 * k, row = number / pieces_of_row, piece = number % pieces_of_row;
            if (pieces % 32 != 0 && number >= pieces) break;
            const float* const from = gTile + sPlace[row] + next_p;
            const int before = elements_before(from), left = before + p_left - V * piece;
            const bool exists = row < next_rows && left > 0;
            scalar* const to = sX + Shape::x_at(row, V * piece);
            if (is_end && exists && left < V && row == next_rows - 1) {
#pragma unroll
                for (int e = 0; e < V; ++e)
                    bring_piece<Shape, 1, false>(to + e, from - before + V * piece + (e < left ? e : 0), left - e);
            } else
                bring_piece<Shape, V, false>(to, exists ? from - before + V * piece : gTile - elements_before(gTile),
                                             exists ? left : 0);
        }
    }
    // One by one: of doubles along p four rows of fibres eight lanes each; else lanes are fibres in two halves.
    __device__ __forceinline__ void bring_elements(scalar* sX, int p_left) const {
        const index_t* const sPlace = sPlaces + int(next_tile % Shape::tiles_known) * 2 * rows_of_warp;
        if constexpr (Shape::x_along_p) {
#pragma unroll
            for (int k = 0; k < rows_of_warp / 4; ++k) {
                const int row = lane / 8 + 4 * k;
                const scalar* const from = gTile + sPlace[row] + next_p;
#pragma unroll
                for (int p = lane % 8; p < depth; p += 8) {
                    const bool exists = row < next_rows && p < p_left;
                    bring_piece<Shape, 1, false>(sX + Shape::x_at(row, p), exists ? from + p : gTile, exists ? 1 : 0);
                }
            }
        } else {
            const int p = lane / rows_of_warp, fibre = lane % rows_of_warp;
            const scalar* const from = gTile + sPlace[fibre] + next_p * arguments.x_p_stride;
#pragma unroll 4
            for (int at = p; at < depth; at += 2) {
                const bool exists = fibre < next_rows && at < p_left;
                bring_piece<Shape, 1, false>(sX + Shape::x_at(fibre, at),
                                             exists ? from + at * arguments.x_p_stride : gTile, exists ? 1 : 0);
            }
        }
    }
};

// A warp's panel in registers, as the left operand of the unit's products: fragments of 16 x 8 (matrix_unit.cuh), whose rows are
// the fibres Shape::fibre_of_row, at the values of p that Shape::p_of says.
template <class Shape>
struct staying_fragments {
    using scalar = typename Shape::scalar;
    enum : int { steps = Shape::panel_steps };
    // (step, fragment): as they were brought, and of floats as the unit takes them.
    scalar rX[steps][4];
    unsigned rHigh[Shape::doubles ? 1 : steps][4], rLow[Shape::splits ? steps : 1][4];

    // From where staying_panels has brought it, by pieces of 16 bytes or not (wide). slot: of the tile.
    __device__ __forceinline__ void take(const sliced_multiply_arguments<scalar, scalar>& arguments,
                                         const index_t* const& sPlaces, typename Shape::tile_begin* const& sBegins,
                                         const int& lane, bool wide, const scalar* sX, int slot) {
        using pair = packet<2 * int(sizeof(scalar))>;
        const int g = lane / 4, t = lane % 4;
        if (Shape::doubles || !Shape::x_along_p || wide) {
#pragma unroll
            for (int s = 0; s < steps; ++s)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    // Along p two values of row g or g + 8, else both rows of one value.
                    alignas(sizeof(pair)) scalar rTwo[2];
                    *reinterpret_cast<pair*>(rTwo) =
                        *reinterpret_cast<const pair*>(sX + (Shape::x_along_p ? Shape::x_at(g + 8 * h, 8 * s + 2 * t)
                                                                              : Shape::x_at(2 * g, 8 * s + 4 * h + t)));
                    rX[s][Shape::x_along_p ? h : 2 * h] = rTwo[0];
                    rX[s][Shape::x_along_p ? h + 2 : 2 * h + 1] = rTwo[1];
                }
            return;
        }
        if constexpr (!Shape::doubles) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const index_t place = sPlaces[slot * 2 * Shape::warp_fibres + g + 8 * h];
                const float* const from =
                    sX + Shape::x_at(g + 8 * h, 2 * t) + elements_before(arguments.x + sBegins[slot].x + place);
#pragma unroll
                for (int s = 0; s < steps; ++s) {
                    rX[s][h] = from[8 * s];
                    rX[s][h + 2] = from[8 * s + 1];
                }
            }
        }
    }
    // Floats: high + low, or to nearest where products are single.
    __device__ __forceinline__ void split_taken() {
        if constexpr (!Shape::doubles) {
#pragma unroll
            for (int s = 0; s < steps; ++s)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if constexpr (Shape::single)
                        rHigh[s][e] = nearest_tf32(rX[s][e]);
                    else {
                        const split_float parts = split(rX[s][e]);
                        rHigh[s][e] = parts.high;
                        rLow[s][e] = parts.low;
                    }
                }
        }
    }
    // The warpgroup's unit reads them until here.
    __device__ __forceinline__ void keep() {
        if constexpr (!Shape::doubles) {
#pragma unroll
            for (int s = 0; s < steps; ++s) keep_registers(rHigh[s]);
        }
        if constexpr (Shape::splits) {
#pragma unroll
            for (int s = 0; s < steps; ++s) keep_registers(rLow[s]);
        }
    }
};

}  // namespace otimes::kernels
