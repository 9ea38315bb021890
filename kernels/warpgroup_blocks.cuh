// SPDX-License-Identifier: MIT
// Contract: that of blocked_multiply, for floats by the warpgroup's matrix unit:
//   Y[b, f, q] = alpha * sum_p X[b, f, p] * F[b, p, q] + beta * Y[b, f, q]
// where b runs over the first batch_count free modes and f ("fibre") over the others. A block of two warpgroups computes 128 fibres x
// Shape::new_indices of one b at a time, and goes through p in panels of 32.
//
// Panels of X and of F travel to shared memory by asynchronous copies. From there X goes to registers, where it is split (matrix_unit.cuh), and F, split by
// all threads, to where the unit reads it. One sequence of panels leads through all tiles of a block: while the unit multiplies panel i, panel
// i + 1 is split, and those up to i + stages are on their way, whichever tiles they belong to. The unit sums 32 values of p; what leaves it
// is added in float.
//
// XAlongP, FAlongP: as for blocked_multiply. With XAlongP lane t of a warp reads the four neighbours p = 4 t .. 4 t + 3 of each 16 at once, of which a
// step of eight takes two; else a step takes eight neighbours. F is laid out alike.
//
// Ending: as for blocked_multiply.
//
// Requires: as blocked_multiply; code for sm_90a.
// Called by: the GPU executor, for long factors that no tile holds.
#pragma once
#include "blocked_multiply.cuh"
#include "warpgroup_unit.cuh"

namespace otimes::kernels {

template <bool Single, bool XAlongP, bool FAlongP, int NewIndices, int Ending = ends_stored>
struct warpgroup_blocks_shape {
    using storage = float;
    using scalar = float;
    static constexpr int ending = Ending;
    static constexpr bool sums_up = Ending != ends_stored;
    static constexpr bool single = Single;  // one TF32 product for each product of floats
    static constexpr bool x_along_p = XAlongP, f_along_p = FAlongP, copies = true;
    static constexpr int vector = 4, warpgroups = 2, threads = 128 * warpgroups, depth = 32, steps = depth / 8;
    static constexpr int fibres = 64 * warpgroups, new_indices = NewIndices;
    static_assert(NewIndices % 8 == 0 && NewIndices >= 32 && NewIndices <= 128);
    // Panels in shared memory as they were brought, and split ones of F. A tile is described while the first panel of the second tile before it is
    // multiplied: so many panels has a tile at least that this is before its own first panel is brought.
    static constexpr int stages = 4, f_stages = 2, tiles_known = 4, least_panels = (stages + 2) / 2;
    // Along p rows of 32 whose halves are exchanged where the fibre is odd, so that 16-byte reads of two rows meet in no bank; else
    // fibres that are neighbours, 8 words beyond a multiple of 32.
    static constexpr int x_pitch = XAlongP ? depth : fibres + 8;
    static constexpr int x_count = XAlongP ? fibres * x_pitch : depth * x_pitch;
    static constexpr int f_part = depth * NewIndices, f_count = (Single ? 1 : 2) * f_part;  // high, then low
    static constexpr int f_pitch = FAlongP ? depth + 4 : NewIndices;                        // of what is brought
    static constexpr int f_brought = (FAlongP ? NewIndices : depth) * f_pitch;
    // Four values of p of one new index: what a thread splits of F at a time.
    static constexpr int f_pieces = f_part / 4, pieces_a_thread = (f_pieces + threads - 1) / threads;

    // Where a tile begins, and how much of it exists.
    struct tile_begin {
        const float* x;
        const float* f;
        float* y;
        int fibres, new_indices;
    };
    static constexpr int places_bytes = tiles_known * 2 * fibres * 8,
                         begins_bytes = tiles_known * int(sizeof(tile_begin));
    static constexpr int shared_bytes =
        places_bytes + begins_bytes + 4 * (stages * (x_count + f_brought) + f_stages * f_count);

    __host__ __device__ static constexpr int x_at(int fibre, int p) {
        if (!XAlongP) return p * x_pitch + fibre;
        return fibre * x_pitch + (p ^ fibre % 2 * 16);
    }
    // The value of p in row r of half `quad % 2` of step `quad / 2`.
    __host__ __device__ static constexpr int p_of(int quad, int r) {
        return XAlongP ? quad / 4 * 16 + quad % 4 + 4 * r : 4 * quad + r;
    }
};

// rD = a panel's products, of Count steps: X in registers (step, fragment), split, times F, whose steps stand `next` and whose low parts `low` behind
// `operand`, counted in 16 bytes. Asynchronous, as warpgroup_multiply.
template <int N, bool Single, int Count, int Steps, int LowSteps>
__device__ __forceinline__ void multiply_panel(float (&rD)[N / 2], const unsigned (&rHigh)[Steps][4],
                                               const unsigned (&rLow)[LowSteps][4], unsigned long long operand,
                                               int next, int low) {
    if constexpr (!Single) {  // the small terms first
        warpgroup_multiply<N, true>(rD, rLow[0], operand);
        warpgroup_multiply<N, false>(rD, rHigh[0], operand + low);
#pragma unroll
        for (int s = 1; s < Count; ++s) {
            warpgroup_multiply<N, false>(rD, rLow[s], operand + s * next);
            warpgroup_multiply<N, false>(rD, rHigh[s], operand + low + s * next);
        }
        warpgroup_multiply<N, false>(rD, rHigh[0], operand);
    } else
        warpgroup_multiply<N, true>(rD, rHigh[0], operand);
#pragma unroll
    for (int s = 1; s < Count; ++s) warpgroup_multiply<N, false>(rD, rHigh[s], operand + s * next);
}

// Sums rC of which one is not finite, because an operand was infinite, NaN or too large to split, once more by multiply-adds. Sum c is of fibre
// fibre_of(c), of `rows` from sXPlace on, and new index new_index_of(c), of `new_indices`. Rolled, through a local array: rare, and the registers of
// the usual path stay free.
template <int Held, class Arguments, class FibreOf, class NewIndexOf>
__device__ __forceinline__ void repeat_sums_that_are_not_finite(float (&rC)[Held], const Arguments& arguments,
                                                                const float* gX, const float* gF,
                                                                const index_t* sXPlace, int rows, int new_indices,
                                                                const FibreOf& fibre_of,
                                                                const NewIndexOf& new_index_of) {
    float zero = 0.f;
#pragma unroll
    for (int c = 0; c < Held; ++c) zero += rC[c] * 0.f;
    if (!__any_sync(0xffffffffu, !(zero == 0.f))) return;
    float rAgain[Held];  // as rC
#pragma unroll 1
    for (int c = 0; c < Held; ++c) {
        const int fibre = fibre_of(c), q = new_index_of(c);
        float sum = 0.f;
        if (fibre < rows && q < new_indices) {
            const float* const x = gX + sXPlace[fibre];
            const float* const f = gF + q * arguments.f_q_stride;
#pragma unroll 1
            for (index_t p = 0; p < arguments.p_extent; ++p)
                sum += x[p * arguments.x_p_stride] * f[p * arguments.f_p_stride];
        }
        rAgain[c] = sum;
    }
#pragma unroll
    for (int c = 0; c < Held; ++c) rC[c] = rAgain[c];
}

// Sums of 64 fibres x new_indices of a warpgroup: of each 8 new indices a lane holds, with g = lane / 4 and t = lane % 4, the fibres g and g + 8 of its
// warp's 16 at 2t and 2t + 1.
template <class Shape>
struct warpgroup_sums {
    static constexpr int held = Shape::new_indices / 2;
    float rC[held];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int c = 0; c < held; ++c) rC[c] = 0.f;
    }
    static __device__ __forceinline__ int fibre_of(int c, int lane) { return lane / 4 + 8 * (c % 4 / 2); }
    static __device__ __forceinline__ int new_index_of(int c, int lane) { return c / 4 * 8 + lane % 4 * 2 + c % 2; }

    template <class Arguments, class Begin>
    __device__ __forceinline__ void repeat_what_is_not_finite(const Arguments& arguments, const Begin& begin,
                                                              const index_t* sXPlace, int lane, int rows) {
        if constexpr (!Shape::single)
            repeat_sums_that_are_not_finite(
                rC, arguments, begin.x, begin.f, sXPlace, rows, begin.new_indices,
                [lane](int c) { return fibre_of(c, lane); }, [lane](int c) { return new_index_of(c, lane); });
    }
    // pairs: two new indices are stored at once. What Y holds is read before anything is stored, as in blocked_multiply.
    template <class Arguments, class Begin>
    __device__ __forceinline__ void store(const Arguments& arguments, const Begin& begin, const index_t* sYPlace,
                                          int lane, int rows, bool pairs) {
        // visit(Y, the two sums, how many of them exist)
        const auto for_each_pair = [&](const auto& visit) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = lane / 4 + 8 * h, t = lane % 4;
                if (row >= rows) continue;
                float* const gRow = begin.y + sYPlace[row];
#pragma unroll
                for (int n = 0; n < held / 4; ++n) {
                    const int q = 8 * n + 2 * t;
                    if (q < begin.new_indices)
                        visit(gRow + q * arguments.y_q_stride, rC + 4 * n + 2 * h, begin.new_indices - q);
                }
            }
        };
        const bool adds = !is_zero(arguments.beta);
        if (adds)
            for_each_pair([&](const float* from, float* rSums, int left) {
                if (pairs && left > 1) {
                    const float2 before = *reinterpret_cast<const float2*>(from);
                    rSums[0] = arguments.alpha * rSums[0] + arguments.beta * before.x;
                    rSums[1] = arguments.alpha * rSums[1] + arguments.beta * before.y;
                } else
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (e < left)
                            rSums[e] = arguments.alpha * rSums[e] + arguments.beta * from[e * arguments.y_q_stride];
            });
        const float scale = adds ? 1.f : arguments.alpha;
        for_each_pair([&](float* to, const float* rSums, int left) {
            if (pairs && left > 1)
                *reinterpret_cast<float2*>(to) = make_float2(scale * rSums[0], scale * rSums[1]);
            else
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (e < left) to[e * arguments.y_q_stride] = scale * rSums[e];
        });
    }
    // What would be stored, to a thread's sum.
    template <class Arguments, class Begin>
    __device__ __forceinline__ void sum_up(const adder<float>& to, const Arguments& arguments, const Begin& begin,
                                           const index_t* sYPlace, int lane, int rows, bool pairs) const {
        const int row = lane / 4, q = lane % 4 * 2;
        // An address that comes from an argument is in global memory; of one in shared memory the compiler does not know.
        const float* const gY = arguments.y + (begin.y - arguments.y);
        const auto sum_up_by = [&](auto width) {
            constexpr int Width = decltype(width)::value;
            float rV[held];  // as rC
            if constexpr (Shape::ending != ends_in_norm) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float* const gRow = gY + sYPlace[index_or_first(row + 8 * h, rows)];
#pragma unroll
                    for (int n = 0; n < held / 4; ++n)
#pragma unroll
                        for (int e = 0; e < 2; e += Width)
                            read_neighbours<Width>(
                                rV + 4 * n + 2 * h + e,
                                gRow + index_or_first(8 * n + q + e, begin.new_indices) * arguments.y_q_stride);
                }
            }
            to.add<held>([&](int c) {
                return fibre_of(c, lane) < rows && new_index_of(c, lane) < begin.new_indices
                           ? term_of_sum<Shape::ending>([&] { return rV[c]; }, rC[c], arguments.alpha, false)
                           : 0.f;
            });
        };
        if (pairs && begin.new_indices % 2 == 0)
            sum_up_by(constant<2>{});
        else
            sum_up_by(constant<1>{});
    }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads)
    warpgroup_blocks(const __grid_constant__ blocked_arguments<float, float> all) {
    const sliced_multiply_arguments<float, float>& arguments = all.sliced;
    using tile_begin = typename Shape::tile_begin;
    after_earlier_launches();
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    index_t* const sPlaces = reinterpret_cast<index_t*>(shared_bytes);  // (tiles_known, X or Y, fibres)
    tile_begin* const sBegins = reinterpret_cast<tile_begin*>(shared_bytes + Shape::places_bytes);  // (tiles_known)
    float* const sBrought = reinterpret_cast<float*>(shared_bytes + Shape::places_bytes + Shape::begins_bytes);
    constexpr int brought_count = Shape::x_count + Shape::f_brought;  // (stages, X, F)
    float* const sOperand =
        sBrought + Shape::stages * brought_count;  // (f_stages, high or low, step, q / 8, half, q % 8, 4)
    constexpr int T = Shape::threads, N = Shape::new_indices, V = Shape::vector, depth = Shape::depth;

    const index_t P = arguments.p_extent;
    const blocked_tiles tiles = tiles_of<Shape>(all);
    const blocked_widths wide = widths_of<Shape>(all);
    const int panels = P > (Shape::least_panels - 1) * depth ? int((P + depth - 1) / depth) : Shape::least_panels;
    if (tiles.count <= index_t(blockIdx.x)) return;
    const index_t own_tiles = (tiles.count - blockIdx.x + gridDim.x - 1) / gridDim.x;

    const int lane = int(threadIdx.x % 32u), warp = int(threadIdx.x / 32u);
    const auto describe = [&](index_t number) {
        if (number >= own_tiles) return;
        const int slot = int(number % Shape::tiles_known);
        const blocked_tile tile = tile_at<Shape>(all, tiles, blockIdx.x + number * gridDim.x);
        if (threadIdx.x == 0)
            sBegins[slot] = {arguments.x + tile.x, arguments.f + tile.f, arguments.y + tile.y, tile.fibres_left,
                             tile.q_left};
        place_fibres<Shape>(all, tile, sPlaces + slot * 2 * Shape::fibres, sPlaces + (slot * 2 + 1) * Shape::fibres);
    };

    // The next panel to be brought, of tile next_tile, which begins at gX and gF.
    index_t next_tile = 0;
    int next_panel = 0, next_fibres = 0, next_q = 0;
    bool next_whole = false;
    const float *gX = nullptr, *gF = nullptr;
    const index_t x_step = depth * arguments.x_p_stride, f_step = depth * arguments.f_p_stride;
    const auto bring_next = [&](float* sX) {
        if (next_tile < own_tiles) {
            const int slot = int(next_tile % Shape::tiles_known);
            if (next_panel == 0) {
                const tile_begin& begin = sBegins[slot];
                gX = begin.x;
                gF = begin.f;
                next_fibres = begin.fibres;
                next_q = begin.new_indices;
                // A vote, so that the compiler knows that a warp stays together where it branches while the unit works.
                next_whole = !__any_sync(0xffffffffu, next_fibres < Shape::fibres || next_q < N);
            }
            const index_t p_exist = P - index_t(next_panel) * depth;
            const int p_left = p_exist < depth ? int(p_exist) : depth;
            float* const sF = sX + Shape::x_count;
            const auto bring_by = [&](auto whole) {
                constexpr bool Whole = decltype(whole)::value != 0;
                const index_t* const sPlace = sPlaces + slot * 2 * Shape::fibres;
                if (wide.x)
                    bring_x<Shape, V, Whole>(sX, gX, arguments.x_p_stride, sPlace, next_fibres, p_left);
                else
                    bring_x<Shape, 1, Whole>(sX, gX, arguments.x_p_stride, sPlace, next_fibres, p_left);
                const auto bring_f = [&](auto width) {
                    constexpr int W = decltype(width)::value;
                    if constexpr (Shape::f_along_p)
                        bring_matrix<Shape, N, depth, Shape::f_pitch, W, Whole>(sF, gF, arguments.f_q_stride,
                                                                                arguments.f_p_stride, next_q, p_left);
                    else
                        bring_matrix<Shape, depth, N, Shape::f_pitch, W, Whole>(sF, gF, arguments.f_p_stride,
                                                                                arguments.f_q_stride, p_left, next_q);
                };
                if (wide.f)
                    bring_f(constant<V>{});
                else
                    bring_f(constant<1>{});
            };
            if (next_whole && p_left == depth)
                bring_by(constant<1>{});
            else
                bring_by(constant<0>{});
            gX += x_step;
            gF += f_step;
            if (++next_panel == panels) {
                next_panel = 0;
                ++next_tile;
            }
        }
        commit_copies();
    };
    // A panel of F becomes the unit's operand: of each piece, four values of p (step s, half h) of new index q.
    const auto split_f = [&](const float* sF, float* sTo) {
#pragma unroll
        for (int k = 0; k < Shape::pieces_a_thread; ++k) {
            const int piece = k * T + int(threadIdx.x);
            if (Shape::f_pieces % T != 0 && piece >= Shape::f_pieces) continue;
            // Along p: eight q, then the quads, so that neither reads nor stores of a warp meet in a bank.
            constexpr int quads = depth / 4;
            const int q = Shape::f_along_p ? piece / (8 * quads) * 8 + piece % 8 : piece % N,
                      quad = Shape::f_along_p ? piece / 8 % quads : piece / N;
            float rF[4];  // (row)
            if constexpr (Shape::f_along_p && !Shape::x_along_p) {
                const float4 four = *reinterpret_cast<const float4*>(sF + q * Shape::f_pitch + 4 * quad);
                rF[0] = four.x, rF[1] = four.y, rF[2] = four.z, rF[3] = four.w;
            } else {
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const int p = Shape::p_of(quad, r);
                    rF[r] = sF[Shape::f_along_p ? q * Shape::f_pitch + p : p * Shape::f_pitch + q];
                }
            }
            unsigned rHigh[4], rLow[4];  // (row)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                if constexpr (Shape::single) {
                    rHigh[r] = nearest_tf32(rF[r]);
                } else {
                    const split_float parts = split_factor<Shape::steps>(rF[r]);
                    rHigh[r] = parts.high;
                    rLow[r] = parts.low;
                }
            }
            float* const to = sTo + quad / 2 * 8 * N + q / 8 * 64 + quad % 2 * 32 + q % 8 * 4;
            *reinterpret_cast<uint4*>(to) = make_uint4(rHigh[0], rHigh[1], rHigh[2], rHigh[3]);
            if constexpr (!Shape::single)
                *reinterpret_cast<uint4*>(to + Shape::f_part) = make_uint4(rLow[0], rLow[1], rLow[2], rLow[3]);
        }
        fence_for_unit();
    };
    struct operands {
        unsigned high[Shape::steps][4], low[Shape::single ? 1 : Shape::steps][4];  // (step, fragment)
        // The unit reads them until here.
        __device__ __forceinline__ void keep() {
#pragma unroll
            for (int s = 0; s < Shape::steps; ++s) keep_registers(high[s]);
            if constexpr (!Shape::single)
#pragma unroll
                for (int s = 0; s < Shape::steps; ++s) keep_registers(low[s]);
        }
    };
    const int warp_fibre = warp * 16;
    const auto read_x = [&](operands& a, const float* sPanel) {
        const float* const sX = sPanel + Shape::x_at(warp_fibre + lane / 4, 0);
        float4 rX[2][2];  // (fibre, half): four neighbours
        if constexpr (Shape::x_along_p) {
            const int swap = lane / 4 % 2 * 32;  // the halves of odd fibres
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int c = 0; c < 2; ++c)
                    rX[h][c] = *reinterpret_cast<const float4*>(sX + Shape::x_at(8 * h, 0) + lane % 4 * 4 +
                                                                (c == 0 ? 0 : 16 - swap));
        }
#pragma unroll
        for (int s = 0; s < Shape::steps; ++s)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float value;
                if constexpr (Shape::x_along_p) {
                    const float4 four = rX[e % 2][s / 2];
                    value = s % 2 == 0 ? (e < 2 ? four.x : four.y) : (e < 2 ? four.z : four.w);
                } else
                    value = sX[Shape::x_at(8 * (e % 2), 8 * s + 4 * (e / 2) + lane % 4)];
                if constexpr (Shape::single)
                    a.high[s][e] = nearest_tf32(value);
                else {
                    const split_float parts = split(value);
                    a.high[s][e] = parts.high;
                    a.low[s][e] = parts.low;
                }
            }
    };

    describe(0);
    describe(1);
    __syncthreads();
    float *sNext = sBrought, *sRead = sBrought;  // stages to be brought, to be read
    const auto further = [&](float*& stage) {
        stage += brought_count;
        if (stage == sBrought + Shape::stages * brought_count) stage = sBrought;
    };
#pragma unroll 1
    for (int k = 0; k < Shape::stages; ++k) {
        bring_next(sNext);
        further(sNext);
    }
    wait_for_copies<Shape::stages - 2>();  // two panels have come
    __syncthreads();
    operands rX[2];  // (this panel or the next)
    read_x(rX[0], sRead);
    split_f(sRead + Shape::x_count, sOperand);
    further(sRead);
    __syncthreads();

    own_sum<float, Shape::sums_up> own;
    warpgroup_sums<Shape> sums;
    sums.clear();
    float rD[N / 2];
    index_t tile = 0;
    int panel = 0;
    // Multiplies a panel, `parity` of all, and begins what comes behind it; false: it was the last.
    const auto multiply = [&](auto parity) {
        constexpr int now = decltype(parity)::value;
        operands& a = rX[now];
        const unsigned long long high = right_operand(sOperand + now * Shape::f_count);
        constexpr int step = 8 * N / 4, low = Shape::f_part / 4;  // of the operands, in 16 bytes
        keep_registers(rD);
        a.keep();
        warpgroup_begin();
        multiply_panel<N, Shape::single, Shape::steps>(rD, a.high, a.low, high, step, low);
        warpgroup_commit();
        // Behind the last panel these are of nothing, and not used.
        read_x(rX[1 - now], sRead);
        split_f(sRead + Shape::x_count, sOperand + (1 - now) * Shape::f_count);
        further(sRead);
        bring_next(sNext);
        further(sNext);
        if (panel == 0) {
            describe(tile + 2);
            if constexpr (reads_in_place_of_y(Shape::ending)) {
                const int slot = int(tile % Shape::tiles_known);
                ask_for_y<Shape, T, Shape::fibres>(sBegins[slot].y, sPlaces + (slot * 2 + 1) * Shape::fibres,
                                                   arguments.y_q_stride, int(threadIdx.x), sBegins[slot].fibres,
                                                   sBegins[slot].new_indices);
            }
        }
        warpgroup_wait<0>();
        keep_registers(rD);
        a.keep();
#pragma unroll
        for (int c = 0; c < N / 2; ++c) sums.rC[c] += rD[c];
        if (++panel == panels) {
            const int slot = int(tile % Shape::tiles_known);
            const tile_begin begin = sBegins[slot];
            const int rows = begin.fibres - warp_fibre;
            if (rows > 0) {
                const index_t* const sXPlace = sPlaces + slot * 2 * Shape::fibres + warp_fibre;
                sums.repeat_what_is_not_finite(arguments, begin, sXPlace, lane, rows);
                if constexpr (Shape::sums_up)
                    sums.sum_up(own.adds(), arguments, begin, sXPlace + Shape::fibres, lane, rows, wide.y_pairs);
                else
                    sums.store(arguments, begin, sXPlace + Shape::fibres, lane, rows, wide.y_pairs);
            }
            if (++tile == own_tiles) return false;
            panel = 0;
            sums.clear();
        }
        wait_for_copies<Shape::stages - 2>();
        __syncthreads();
        return true;
    };
#pragma unroll 1
    while (multiply(constant<0>{}) && multiply(constant<1>{})) {
    }
    wait_for_copies<0>();
    if constexpr (Shape::sums_up) store_sum_of_shape<Shape>(own.value, all, shared_bytes);
}

}  // namespace otimes::kernels
