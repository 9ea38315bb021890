// SPDX-License-Identifier: MIT
// Contract: one contracted mode of any shape, stride and type, as generic_sliced_multiply:
//   Y[b, f, q] = alpha * sum_p op(X)[b, f, p] * op(F)[b, p, q] + beta * Y[b, f, q],   op = identity or complex conjugate
// where b runs over the first batch_count free modes and f ("fibre") over the others, in which F does not differ. A block computes Shape::fibres x
// Shape::new_indices of one b; of X and F it has Shape::depth values of p in shared memory, and the next ones on their way.
//
// A warp computes 64 x 32 (doubles 32 x 32) by the matrix unit (Unit), in products of 16 x 8 x 8 (matrix_unit.cuh), or the lanes' own
// rectangles by multiply-adds. Sums are in order of p; by the unit eight p at a time, floats to float's accuracy unless Single. A sum of floats
// that is not finite is computed once more by multiply-adds, which say which it is. Doubles by the unit: what a step of eight p multiplies is read during
// the step before it, and copies are set off between the products.
//
// XAlongP: X's values of one fibre are neighbours in memory (x_p_stride = 1), else those of one p; FAlongP: F's of one q, else of one p. That says
// how threads share the loads and how shared memory is laid out; any strides are right.
//
// Ending: instead of being stored, products are multiplied by what stands in Y, or squared, and summed: sums[block] = alpha * sum, or |alpha|^2 * sum, and
// zeros for what the grid has fewer blocks than sum_count; no more blocks than tiles. Y is only read, of a norm not even that, and there is no beta.
//
// Requires: f_stride = 0 for free modes from batch_count on; extents >= 0; strides any, also negative; 1-D grid of any size; Shape::threads threads;
//   Shape::shared_bytes dynamic shared memory. beta = 0: Y is not read.
// Alignment: that of the scalar; 16-byte accesses where bases and strides allow. Aliasing: Y overlaps neither X nor F.
// Called by: the GPU executor, for long factors that no tile holds.
#pragma once
#include "async_copy.cuh"
#include "endings.cuh"
#include "generic_sliced_multiply.cuh"
#include "matrix_unit.cuh"

namespace otimes::kernels {

template <class Storage, class Accumulator, bool Unit, bool Single, bool XAlongP, bool FAlongP, int WarpsOfQ,
          int Ending = ends_stored>
struct blocked_shape {
    using storage = Storage;
    using scalar = Accumulator;
    static constexpr int ending = Ending;
    static constexpr bool sums_up = Ending != ends_stored;
    static_assert(!sums_up || is_same<Storage, Accumulator>, "sums: of types that are stored as they are computed in");
    static constexpr bool unit = Unit, x_along_p = XAlongP, f_along_p = FAlongP;
    static constexpr bool single = Single;  // one TF32 product for each product of floats, or of 16-bit elements
    static constexpr int words = int(sizeof(scalar) / 4), vector = 16 / int(sizeof(storage));
    static constexpr bool copies = is_same<Storage, Accumulator>;  // else elements are widened on their way
    static constexpr bool exact = !copies;                         // 16-bit elements are TF32 numbers
    static_assert(!Unit || is_same<scalar, float> || is_same<scalar, double>, "the unit: float or double");
    static_assert(!Single || (Unit && is_same<scalar, float>), "single products: of floats by the unit");
    // Doubles by the unit: fragments are read a step ahead of the products, between which a thread sets off its copies of a panel that is needed later.
    static constexpr bool ahead = Unit && words == 2;
    // A warp's rectangle: by the unit products of 16 x 8; else of a lane lane_rows x lane_columns, the lanes as 8 x 4.
    static constexpr int products = words == 1 ? 4 : 2;  // of 16 fibres
    static constexpr int lane_rows = words == 4 ? 4 : 8, lane_columns = words == 1 ? 8 : 4;
    static constexpr int warp_fibres = Unit ? 16 * products : 8 * lane_rows, warp_q = Unit ? 32 : 4 * lane_columns;
    static constexpr int warps_of_fibres = 128 / warp_fibres > 4 ? 4 : 128 / warp_fibres, warps_of_q = WarpsOfQ;
    static constexpr int fibres = warps_of_fibres * warp_fibres, new_indices = warps_of_q * warp_q;
    static constexpr int depth = ahead && WarpsOfQ > 1 ? 32 : 16;
    static constexpr int threads = 32 * warps_of_fibres * warps_of_q, stages = 3;
    // Registers: 168 a thread for floats by the unit, up to 255 for doubles, and what the compiler likes for multiply-adds.
    static constexpr int wanted_threads = !Unit ? threads : words == 1 ? 384 : 256;
    static constexpr int blocks_per_multiprocessor = wanted_threads / threads < 1 ? 1 : wanted_threads / threads;
    // Rows of shared memory so long that the lanes of a fragment meet in no bank (float: 8 or 4 words beyond a multiple of 32).
    static constexpr int along_p_pitch = depth + 4, pad = words == 1 ? 8 : 4;
    static constexpr int x_pitch = XAlongP ? along_p_pitch : fibres + pad;
    static constexpr int f_pitch = FAlongP ? along_p_pitch : new_indices + pad;
    static constexpr int x_count = XAlongP ? fibres * along_p_pitch : depth * x_pitch;
    static constexpr int f_count = FAlongP ? new_indices * along_p_pitch : depth * f_pitch;
    static constexpr int places_bytes = 2 * fibres * 8;  // where the fibres begin in X and Y
    static constexpr int shared_bytes = places_bytes + stages * (x_count + f_count) * int(sizeof(scalar));

    __host__ __device__ static constexpr int x_at(int fibre, int p) {
        return XAlongP ? fibre * x_pitch + p : p * x_pitch + fibre;
    }
    __host__ __device__ static constexpr int f_at(int p, int q) { return FAlongP ? q * f_pitch + p : p * f_pitch + q; }
};

template <class Storage, class Accumulator>
struct blocked_arguments {
    sliced_multiply_arguments<Storage, Accumulator> sliced;  // q_position is not used
    int batch_count;
    // Where products are summed up: places of the blocks' sums, how many, and whether Y is conjugated.
    void* sums;
    unsigned sum_count;
    bool conjugate_y;
    // Where they are multiplied by a vector: D[u % divisor] or D[u / divisor], u < 2^31 the place from Y on; u / divisor = quotient_by(magic, shift, u).
    const void* d;
    unsigned divisor, magic;
    int shift;
    // As a group's factors_ready and x_ready (tile_memory.cuh); a factor that stays on chip.
    bool factor_ready, x_ready;
};

// Width neighbouring elements -> shared memory, of which `left` exist; 0 for the others. Whole: all do.
template <class Shape, int Width, bool Whole>
__device__ __forceinline__ void bring_piece(typename Shape::scalar* s, const typename Shape::storage* g, int left) {
    using scalar = typename Shape::scalar;
    constexpr int bytes = Width * int(sizeof(scalar));
    if constexpr (!Shape::copies)
        *s = Whole || left > 0 ? widen<scalar>(*g) : scalar(0);
    else if constexpr (Whole)
        copy_async<bytes>(s, g);
    else
        copy_async_or_zero<bytes>(s, g, left >= Width ? bytes : left > 0 ? left * int(sizeof(scalar)) : 0);
}

// Outer x Inner elements g[outer * outer_stride + inner * inner_stride] -> s[outer * Pitch + inner]; of them outer_left x inner_left exist. Width > 1:
// so many neighbours (inner_stride = 1), at multiples of 16 bytes.
template <class Shape, int Outer, int Inner, int Pitch, int Width, bool Whole>
__device__ __forceinline__ void bring_matrix(typename Shape::scalar* s, const typename Shape::storage* g,
                                             index_t outer_stride, index_t inner_stride, int outer_left,
                                             int inner_left) {
    constexpr int pieces = Inner / Width, T = Shape::threads;
    if constexpr (T % pieces == 0) {  // a thread keeps its inner index, and goes from row to row
        constexpr int rows = T / pieces;
        const int inner = int(threadIdx.x % unsigned(pieces)) * Width, first = int(threadIdx.x / unsigned(pieces));
        const typename Shape::storage* from = g + first * outer_stride + (Width > 1 ? inner : inner * inner_stride);
        const index_t step = rows * outer_stride;
#pragma unroll 4
        for (int outer = 0; outer < Outer; outer += rows) {
            const int left = Whole ? Width : first + outer < outer_left ? inner_left - inner : 0;
            if (Outer % rows == 0 || first + outer < Outer)
                bring_piece<Shape, Width, Whole>(s + (first + outer) * Pitch + inner, left > 0 ? from : g, left);
            from += step;
        }
    } else {  // so many lanes a row
        constexpr int lanes = Width > 1 ? 8 : 32, rows = T / lanes;
        static_assert(T % lanes == 0);
        const int inner = int(threadIdx.x % unsigned(lanes)) * Width, first = int(threadIdx.x / unsigned(lanes));
        const typename Shape::storage* from = g + first * outer_stride + (Width > 1 ? inner : inner * inner_stride);
        const index_t step = rows * outer_stride, right = lanes * Width * (Width > 1 ? 1 : inner_stride);
#pragma unroll 2
        for (int outer = 0; outer < Outer; outer += rows) {
            if (Outer % rows != 0 && first + outer >= Outer) break;
            const typename Shape::storage* at = from;
#pragma unroll
            for (int k = 0; k < (pieces + lanes - 1) / lanes; ++k) {
                const int here = inner + k * lanes * Width;
                if (pieces % lanes != 0 && here >= Inner) break;
                const int left = Whole ? Width : first + outer < outer_left ? inner_left - here : 0;
                bring_piece<Shape, Width, Whole>(s + (first + outer) * Pitch + here, left > 0 ? at : g, left);
                at += right;
            }
            from += step;
        }
    }
}

// X of one panel: `p_left` values of p from gX on, of the fibres that sPlace places.
template <class Shape, int Width, bool Whole>
__device__ __forceinline__ void bring_x(typename Shape::scalar* sX, const typename Shape::storage* gX, index_t p_stride,
                                        const index_t* sPlace, int fibres_left, int p_left) {
    constexpr int T = Shape::threads, pieces = (Shape::x_along_p ? Shape::depth : Shape::fibres) / Width;
    if constexpr (Shape::x_along_p) {
        constexpr int rows = T / pieces;
        static_assert(T % pieces == 0);
        const int p = int(threadIdx.x % unsigned(pieces)) * Width, first = int(threadIdx.x / unsigned(pieces));
        const typename Shape::storage* const from = gX + (Width > 1 ? p : p * p_stride);
#pragma unroll 4
        for (int fibre = 0; fibre < Shape::fibres; fibre += rows) {
            if (Shape::fibres % rows != 0 && first + fibre >= Shape::fibres) break;
            const int left = Whole ? Width : first + fibre < fibres_left ? p_left - p : 0;
            bring_piece<Shape, Width, Whole>(sX + Shape::x_at(first + fibre, p),
                                             left > 0 ? from + sPlace[first + fibre] : gX, left);
        }
    } else if constexpr (T % pieces == 0) {  // a thread keeps its fibres
        constexpr int rows = T / pieces;
        const int fibre = int(threadIdx.x % unsigned(pieces)) * Width, first = int(threadIdx.x / unsigned(pieces));
        const typename Shape::storage* from = gX + sPlace[fibre] + first * p_stride;
        const index_t step = rows * p_stride;
#pragma unroll
        for (int p = 0; p < Shape::depth; p += rows) {
            if (Shape::depth % rows != 0 && first + p >= Shape::depth) break;
            const int left = Whole ? Width : first + p < p_left ? fibres_left - fibre : 0;
            bring_piece<Shape, Width, Whole>(sX + Shape::x_at(fibre, first + p), left > 0 ? from : gX, left);
            from += step;
        }
    } else {
#pragma unroll 4
        for (unsigned piece = threadIdx.x; piece < unsigned(Shape::depth * pieces); piece += T) {
            const int p = int(piece / unsigned(pieces)), fibre = int(piece % unsigned(pieces)) * Width;
            const int left = Whole ? Width : p < p_left ? fibres_left - fibre : 0;
            bring_piece<Shape, Width, Whole>(sX + Shape::x_at(fibre, p),
                                             left > 0 ? gX + sPlace[fibre] + p * p_stride : gX, left);
        }
    }
}

// The tiles of all batches, new indices first.
struct blocked_tiles {
    index_t fibres, of_q, of_fibres, count;
};
template <class Shape>
__device__ __forceinline__ blocked_tiles
tiles_of(const blocked_arguments<typename Shape::storage, typename Shape::scalar>& all) {
    index_t batches = 1, fibres = 1;
    for (int i = 0; i < all.sliced.free_count; ++i)
        (i < all.batch_count ? batches : fibres) *= all.sliced.free_extent[i];
    const index_t of_q = (all.sliced.q_extent + Shape::new_indices - 1) / Shape::new_indices,
                  of_fibres = (fibres + Shape::fibres - 1) / Shape::fibres;
    return {fibres, of_q, of_fibres, batches * of_fibres * of_q};
}

// A tile: where its batch and its new indices begin in X, F and Y, its first fibre, and how much of it exists.
struct blocked_tile {
    index_t x, f, y, first_fibre, first_q;
    int fibres_left, q_left;
};
template <class Shape>
__device__ __forceinline__ blocked_tile
tile_at(const blocked_arguments<typename Shape::storage, typename Shape::scalar>& all, const blocked_tiles& tiles,
        index_t number) {
    const auto& arguments = all.sliced;
    const index_t above = number / tiles.of_q;
    index_t batch = above / tiles.of_fibres;
    blocked_tile t;
    t.first_q = (number - above * tiles.of_q) * Shape::new_indices;
    t.first_fibre = (above - batch * tiles.of_fibres) * Shape::fibres;
    t.x = 0;
    t.f = t.first_q * arguments.f_q_stride;
    t.y = t.first_q * arguments.y_q_stride;
    for (int i = all.batch_count - 1; i >= 0; --i) {
        const index_t rest = batch / arguments.free_extent[i], digit = batch - rest * arguments.free_extent[i];
        t.x += digit * arguments.x_stride[i];
        t.f += digit * arguments.f_stride[i];
        t.y += digit * arguments.y_stride[i];
        batch = rest;
    }
    const index_t fibres = tiles.fibres - t.first_fibre, new_indices = arguments.q_extent - t.first_q;
    t.fibres_left = fibres < Shape::fibres ? int(fibres) : Shape::fibres;
    t.q_left = new_indices < Shape::new_indices ? int(new_indices) : Shape::new_indices;
    return t;
}

// Where the fibres of a tile begin in X and Y.
template <class Shape>
__device__ __forceinline__ void place_fibres(
    const blocked_arguments<typename Shape::storage, typename Shape::scalar>& all, const blocked_tile& tile,
    index_t* sXPlace, index_t* sYPlace) {
    const auto& arguments = all.sliced;
    for (int j = int(threadIdx.x); j < Shape::fibres; j += Shape::threads) {
        index_t rest = tile.first_fibre + (j < tile.fibres_left ? j : 0), x = 0, y = 0;
        for (int i = arguments.free_count - 1; i >= all.batch_count; --i) {
            const index_t extent = arguments.free_extent[i];
            const index_t next = (rest | extent) >> 32 ? rest / extent : index_t(unsigned(rest) / unsigned(extent));
            x += (rest - next * extent) * arguments.x_stride[i];
            y += (rest - next * extent) * arguments.y_stride[i];
            rest = next;
        }
        sXPlace[j] = x;
        sYPlace[j] = y;
    }
}

// What lies at multiples of 16 bytes goes by 16 bytes, what does in Y at multiples of two elements by two.
struct blocked_widths {
    bool x, f, y_pairs;
};
template <class Shape>
__device__ __forceinline__ blocked_widths
widths_of(const blocked_arguments<typename Shape::storage, typename Shape::scalar>& all) {
    const auto& arguments = all.sliced;
    constexpr int V = Shape::copies ? Shape::vector : 1;
    const int last = arguments.free_count - 1;
    blocked_widths wide{V > 1 && aligned_to(arguments.x, 16), V > 1 && aligned_to(arguments.f, 16),
                        arguments.y_q_stride == 1 && aligned_to(arguments.y, 2 * int(sizeof(typename Shape::storage)))};
    if constexpr (Shape::x_along_p)
        wide.x = wide.x && arguments.x_p_stride == 1;
    else
        wide.x = wide.x && arguments.x_p_stride % V == 0 && last >= all.batch_count && arguments.x_stride[last] == 1 &&
                 arguments.free_extent[last] % V == 0;
    wide.f = wide.f && (Shape::f_along_p ? arguments.f_p_stride == 1 && arguments.f_q_stride % V == 0
                                         : arguments.f_q_stride == 1 && arguments.f_p_stride % V == 0);
    for (int i = 0; i <= last; ++i) {
        wide.x = wide.x && (arguments.x_stride[i] % V == 0 || (!Shape::x_along_p && i == last));
        wide.f = wide.f && arguments.f_stride[i] % V == 0;
        wide.y_pairs = wide.y_pairs && arguments.y_stride[i] % 2 == 0;
    }
    return wide;
}

// The part of the result that a warp computes: `rows` fibres from warp_fibre on and `columns` new indices from warp_q on exist.
template <class Shape, bool Unit = Shape::unit>
struct rectangle;

// By the matrix unit: products of 16 fibres x 8 new indices. With g = lane / 4, t = lane % 4 a lane holds of each the fibres g and g + 8 at the
// new indices 2t and 2t + 1.
template <class Shape>
struct rectangle<Shape, true> {
    using scalar = typename Shape::scalar;
    using storage = typename Shape::storage;
    static constexpr int products = Shape::products, held = products * 16;
    scalar rC[products][4][4];  // (16 fibres, 8 new indices, fibre x new index)

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int c = 0; c < held; ++c) rC[c / 16][c / 4 % 4][c % 4] = scalar(0);
    }
    // Of `p_left` values of p. Whole: all of the rectangle exists, and of the panel; else products of which no element is wanted are left out.
    template <bool Whole>
    __device__ __forceinline__ void add(const scalar* sX, const scalar* sF, int warp_fibre, int warp_q, int lane,
                                        int rows, int columns, int p_left, bool, bool) {
        const int g = lane / 4, t = lane % 4;
        const scalar* const sXLane = sX + Shape::x_at(warp_fibre + g, t);
        const scalar* const sFLane = sF + Shape::f_at(t, warp_q + g);
#pragma unroll
        for (int k = 0; k < Shape::depth; k += 8) {
            if (!Whole && k >= p_left) break;
            if constexpr (Shape::single) {
                unsigned rB[4][2];  // (8 new indices, p)
#pragma unroll
                for (int n = 0; n < 4; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) rB[n][e] = as_tf32<Shape::exact>(sFLane[Shape::f_at(k + 4 * e, 8 * n)]);
#pragma unroll
                for (int m = 0; m < products; ++m)
                    if (Whole || 16 * m < rows) {
                        unsigned rA[4];  // (fragment)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            rA[e] = as_tf32<Shape::exact>(sXLane[Shape::x_at(16 * m + 8 * (e % 2), k + 4 * (e / 2))]);
#pragma unroll
                        for (int n = 0; n < 4; ++n)
                            if (Whole || 8 * n < columns) multiply_tf32(rC[m][n], rA, rB[n][0], rB[n][1], rC[m][n]);
                    }
            } else if constexpr (Shape::words == 1) {
                uint4 rF[4];  // (8 new indices)
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const split_float s0 = split_factor(sFLane[Shape::f_at(k, 8 * n)]),
                                      s1 = split_factor(sFLane[Shape::f_at(k + 4, 8 * n)]);
                    rF[n] = make_uint4(s0.high, s1.high, s0.low, s1.low);
                }
#pragma unroll
                for (int m = 0; m < products; m += 2)
                    if (Whole || 16 * m < rows) {
                        unsigned rHigh[2][4], rLow[2][4];  // (16 fibres, fragment)
#pragma unroll
                        for (int i = 0; i < 2; ++i)
#pragma unroll
                            for (int e = 0; e < 4; ++e) {
                                const split_float parts =
                                    split(sXLane[Shape::x_at(16 * (m + i) + 8 * (e % 2), k + 4 * (e / 2))]);
                                rHigh[i][e] = parts.high;
                                rLow[i][e] = parts.low;
                            }
#pragma unroll
                        for (int n = 0; n < 4; n += 2)
                            if (Whole || 8 * n < columns) {
                                float rD[4][4];  // (8 new indices x 16 fibres)
                                multiply_add_split<true, false, 4, 2>(rD, rHigh, rLow, rF + n);
#pragma unroll
                                for (int i = 0; i < 4; ++i)
#pragma unroll
                                    for (int e = 0; e < 4; ++e) rC[m + i % 2][n + i / 2][e] += rD[i][e];
                            }
                    }
            }
        }
    }
    // Doubles: what a lane multiplies of eight values of p.
    struct fragments {
        double a[products][4], b[4][2];  // (16 fibres, fragment), (8 new indices, p)
    };
    static __device__ __forceinline__ void read(fragments& r, const scalar* sX, const scalar* sF, int k, int warp_fibre,
                                                int warp_q, int lane) {
        const int g = lane / 4, t = lane % 4;
        const scalar* const sXLane = sX + Shape::x_at(warp_fibre + g, k + t);
        const scalar* const sFLane = sF + Shape::f_at(k + t, warp_q + g);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) r.b[n][e] = sFLane[Shape::f_at(4 * e, 8 * n)];
#pragma unroll
        for (int m = 0; m < products; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) r.a[m][e] = sXLane[Shape::x_at(16 * m + 8 * (e % 2), 4 * (e / 2))];
    }
    // between(i): what is done behind product i.
    template <class Between>
    __device__ __forceinline__ void multiply(const fragments& r, const Between& between) {
#pragma unroll
        for (int m = 0; m < products; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                multiply_add_double(rC[m][n], r.a[m], r.b[n][0], r.b[n][1]);
                between(4 * m + n);
            }
    }
    // Floats: an operand was infinite, NaN or too large to split. Rolled, through a local array: rare, and the registers of the usual path stay free.
    template <class Arguments>
    __device__ __forceinline__ void repeat_what_is_not_finite(const Arguments& arguments, const storage* gX,
                                                              const storage* gF, const index_t* sXPlace, int warp_fibre,
                                                              int warp_q, int lane, int rows, int columns) {
        if constexpr (Shape::words == 1 && !Shape::single) {
            float zero = 0.f;
#pragma unroll
            for (int c = 0; c < held; ++c) zero += rC[c / 16][c / 4 % 4][c % 4] * 0.f;
            if (!__any_sync(0xffffffffu, !(zero == 0.f))) return;
            float rAgain[held];  // as rC
#pragma unroll 1
            for (int c = 0; c < held; ++c) {
                const int fibre = 16 * (c / 16) + lane / 4 + 8 * (c % 4 / 2),
                          q = 8 * (c / 4 % 4) + lane % 4 * 2 + c % 2;
                float sum = 0.f;
                if (fibre < rows && q < columns) {
                    const float* const x = gX + sXPlace[warp_fibre + fibre];
                    const float* const f = gF + (warp_q + q) * arguments.f_q_stride;
#pragma unroll 1
                    for (index_t p = 0; p < arguments.p_extent; ++p)
                        sum += x[p * arguments.x_p_stride] * f[p * arguments.f_p_stride];
                }
                rAgain[c] = sum;
            }
#pragma unroll
            for (int c = 0; c < held; ++c) rC[c / 16][c / 4 % 4][c % 4] = rAgain[c];
        }
    }
    // pairs: two new indices are stored at once. What Y holds is read before anything is stored: loads between stores would be waited for one by one.
    template <class Arguments>
    __device__ __forceinline__ void store(const Arguments& arguments, storage* gY, const index_t* sYPlace,
                                          int warp_fibre, int warp_q, int lane, int rows, int columns, bool pairs) {
        const int g = lane / 4, t = lane % 4;
        // visit(Y, the two sums, how many of them exist)
        const auto for_each_pair = [&](const auto& visit) {
#pragma unroll
            for (int m = 0; m < products; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = 16 * m + g + 8 * h;
                    if (row >= rows) continue;
                    storage* const gRow = gY + sYPlace[warp_fibre + row] + warp_q * arguments.y_q_stride;
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        const int q = 8 * n + 2 * t;
                        if (q < columns) visit(gRow + q * arguments.y_q_stride, rC[m][n] + 2 * h, columns - q);
                    }
                }
        };
        const bool adds = !is_zero(arguments.beta);
        if (adds)
            for_each_pair([&](const storage* from, scalar* rSums, int left) {
                if (pairs && left > 1) {
                    pair in;
                    in.bits = *reinterpret_cast<const packet<2 * int(sizeof(storage))>*>(from);
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        rSums[e] = arguments.alpha * rSums[e] + arguments.beta * widen<scalar>(in.element[e]);
                } else
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (e < left)
                            rSums[e] = arguments.alpha * rSums[e] +
                                       arguments.beta * widen<scalar>(from[e * arguments.y_q_stride]);
            });
        const scalar scale = adds ? scalar(1) : arguments.alpha;
        for_each_pair([&](storage* to, const scalar* rSums, int left) {
            if (pairs && left > 1) {
                pair out;
#pragma unroll
                for (int e = 0; e < 2; ++e) out.element[e] = narrow<storage>(scale * rSums[e]);
                *reinterpret_cast<packet<2 * int(sizeof(storage))>*>(to) = out.bits;
            } else
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (e < left) to[e * arguments.y_q_stride] = narrow<storage>(scale * rSums[e]);
        });
    }
    // What would be stored, to a thread's sum.
    template <class Arguments>
    __device__ __forceinline__ void sum_up(const adder<scalar>& to, bool conjugate_y, const Arguments& arguments,
                                           const storage* gY, const index_t* sYPlace, int warp_fibre, int warp_q,
                                           int lane, int rows, int columns, bool pairs) const {
        const int g = lane / 4, t = lane % 4;
        constexpr int together = products / 2;  // of the 16 fibres whose elements of Y are read at once
        const auto sum_up_by = [&](auto width) {
            constexpr int Width = decltype(width)::value;
            for_constants<0, products / together>([&](auto part) {
                constexpr int first = decltype(part)::value * together;
                scalar rV[together][2][4][2];  // (m, h, n, e)
                if constexpr (Shape::ending != ends_in_norm) {
#pragma unroll
                    for (int m = 0; m < together; ++m)
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            const int row = index_or_first(16 * (first + m) + g + 8 * h, rows);
                            const storage* const gRow = gY + sYPlace[warp_fibre + row] + warp_q * arguments.y_q_stride;
#pragma unroll
                            for (int n = 0; n < 4; ++n)
#pragma unroll
                                for (int e = 0; e < 2; e += Width)
                                    read_neighbours<Width>(
                                        rV[m][h][n] + e,
                                        gRow + index_or_first(8 * n + 2 * t + e, columns) * arguments.y_q_stride);
                        }
                }
#pragma unroll
                for (int m = 0; m < together; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        to.template add<8>([&](int i) {
                            const int n = i / 2, e = i % 2, row = 16 * (first + m) + g + 8 * h, q = 8 * n + 2 * t + e;
                            return row < rows && q < columns
                                       ? term_of_sum<Shape::ending>([&] { return rV[m][h][n][e]; },
                                                                    rC[first + m][n][2 * h + e], arguments.alpha,
                                                                    conjugate_y)
                                       : scalar(0);
                        });
            });
        };
        if (Shape::words == 1 && pairs && columns % 2 == 0)  // of doubles the compiler would wait for each
            sum_up_by(constant<2>{});
        else
            sum_up_by(constant<1>{});
    }

private:
    union pair {
        packet<2 * int(sizeof(storage))> bits;
        storage element[2];
        __device__ __forceinline__ pair() {}
    };
};

// By multiply-adds: lane (r, c) of 8 x 4 holds the fibres r, r + 8, .. at the new indices c, c + 4, ..
template <class Shape>
struct rectangle<Shape, false> {
    using scalar = typename Shape::scalar;
    using storage = typename Shape::storage;
    scalar rC[Shape::lane_rows][Shape::lane_columns];  // (fibre, new index)

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < Shape::lane_rows; ++i)
#pragma unroll
            for (int j = 0; j < Shape::lane_columns; ++j) rC[i][j] = scalar(0);
    }
    template <bool Whole>
    __device__ __forceinline__ void add(const scalar* sX, const scalar* sF, int warp_fibre, int warp_q, int lane, int,
                                        int, int p_left, bool conjugate_x, bool conjugate_f) {
        const scalar* const sXLane = sX + Shape::x_at(warp_fibre + lane / 4, 0);
        const scalar* const sFLane = sF + Shape::f_at(0, warp_q + lane % 4);
#pragma unroll 4
        for (int k = 0; k < Shape::depth; ++k) {
            if (!Whole && k >= p_left) break;
            scalar rX[Shape::lane_rows], rF[Shape::lane_columns];
#pragma unroll
            for (int i = 0; i < Shape::lane_rows; ++i) {
                rX[i] = sXLane[Shape::x_at(8 * i, k)];
                if (conjugate_x) rX[i] = conjugate(rX[i]);
            }
#pragma unroll
            for (int j = 0; j < Shape::lane_columns; ++j) {
                rF[j] = sFLane[Shape::f_at(k, 4 * j)];
                if (conjugate_f) rF[j] = conjugate(rF[j]);
            }
#pragma unroll
            for (int i = 0; i < Shape::lane_rows; ++i)
#pragma unroll
                for (int j = 0; j < Shape::lane_columns; ++j) rC[i][j] = multiply_add(rX[i], rF[j], rC[i][j]);
        }
    }
    template <class Arguments>
    __device__ __forceinline__ void repeat_what_is_not_finite(const Arguments&, const storage*, const storage*,
                                                              const index_t*, int, int, int, int, int) {}
    // As by the unit.
    template <class Arguments>
    __device__ __forceinline__ void store(const Arguments& arguments, storage* gY, const index_t* sYPlace,
                                          int warp_fibre, int warp_q, int lane, int rows, int columns, bool) {
        const auto for_each = [&](const auto& visit) {  // visit(Y, the sum)
#pragma unroll
            for (int i = 0; i < Shape::lane_rows; ++i) {
                const int row = lane / 4 + 8 * i;
                if (row >= rows) continue;
                storage* const gRow = gY + sYPlace[warp_fibre + row] + warp_q * arguments.y_q_stride;
#pragma unroll
                for (int j = 0; j < Shape::lane_columns; ++j) {
                    const int q = lane % 4 + 4 * j;
                    if (q < columns) visit(gRow + q * arguments.y_q_stride, rC[i][j]);
                }
            }
        };
        const bool adds = !is_zero(arguments.beta);
        if (adds)
            for_each([&](const storage* from, scalar& sum) {
                sum = arguments.alpha * sum + arguments.beta * widen<scalar>(*from);
            });
        for_each([&](storage* to, const scalar& sum) { *to = narrow<storage>(adds ? sum : arguments.alpha * sum); });
    }
    template <class Arguments>
    __device__ __forceinline__ void sum_up(const adder<scalar>& to, bool conjugate_y, const Arguments& arguments,
                                           const storage* gY, const index_t* sYPlace, int warp_fibre, int warp_q,
                                           int lane, int rows, int columns, bool) const {
#pragma unroll
        for (int i = 0; i < Shape::lane_rows; ++i) {
            const int row = lane / 4 + 8 * i;
            scalar rV[Shape::lane_columns];  // (j)
            if constexpr (Shape::ending != ends_in_norm) {
                const storage* const gRow =
                    gY + sYPlace[warp_fibre + index_or_first(row, rows)] + warp_q * arguments.y_q_stride;
#pragma unroll
                for (int j = 0; j < Shape::lane_columns; ++j)
                    read_neighbours<1>(rV + j, gRow + index_or_first(lane % 4 + 4 * j, columns) * arguments.y_q_stride);
            }
            to.template add<Shape::lane_columns>([&](int j) {
                return row < rows && lane % 4 + 4 * j < columns
                           ? term_of_sum<Shape::ending>([&] { return rV[j]; }, rC[i][j], arguments.alpha, conjugate_y)
                           : scalar(0);
            });
        }
    }
};

// A thread's pieces of Width neighbours of Outer x Inner elements: piece i is of row first + i * rows, from element `inner` on.
template <class Shape, int Outer, int Inner, int Width>
struct pieces_of_thread {
    static constexpr int of_row = Inner / Width, rows = Shape::threads / of_row;
    static constexpr int count = (Outer + rows - 1) / rows;
    static_assert(Shape::threads % of_row == 0);
    int first = int(threadIdx.x) / of_row, inner = int(threadIdx.x) % of_row * Width;

    __device__ __forceinline__ bool has(int i) const { return Outer % rows == 0 || first + i * rows < Outer; }
};

// All panels of a tile for a warp that has a part of it: sums += X * F. What each step multiplies is read during the step before it, also across the
// barrier behind each panel; and between the products of all steps but the last a thread sets off its copies, Width elements each, of the panel
// Shape::stages - 1 further on. The first panels are on their way.
template <class Shape, int Width>
__device__ __forceinline__ void multiply_ahead(
    rectangle<Shape>& sums, const blocked_arguments<typename Shape::storage, typename Shape::scalar>& all,
    const blocked_tile& tile, typename Shape::scalar* sStages, const index_t* sXPlace, int panels, int warp_fibre,
    int warp_q, int lane) {
    using scalar = typename Shape::scalar;
    const auto& arguments = all.sliced;
    constexpr int stage_count = Shape::x_count + Shape::f_count, depth = Shape::depth, bytes = int(sizeof(scalar)),
                  copied_ahead = Shape::stages - 1;
    using x_pieces = pieces_of_thread<Shape, Shape::x_along_p ? Shape::fibres : depth,
                                      Shape::x_along_p ? depth : Shape::fibres, Width>;
    using f_pieces = pieces_of_thread<Shape, Shape::f_along_p ? Shape::new_indices : depth,
                                      Shape::f_along_p ? depth : Shape::new_indices, Width>;
    constexpr int steps = depth / 8, products = 4 * rectangle<Shape>::products;
    constexpr int places = (steps - 1) * products, pieces = x_pieces::count + f_pieces::count;
    const x_pieces x_own;
    const f_pieces f_own;
    scalar* const sXOwn =
        sStages + (Shape::x_along_p ? Shape::x_at(x_own.first, x_own.inner) : Shape::x_at(x_own.inner, x_own.first));
    scalar* const sFOwn =
        sStages + Shape::x_count +
        (Shape::f_along_p ? Shape::f_at(f_own.inner, f_own.first) : Shape::f_at(f_own.first, f_own.inner));
    // Where the panel that is set off next has this thread's first pieces; along p of X without the fibre's place.
    index_t p_left = arguments.p_extent - copied_ahead * depth;
    const scalar* gX = arguments.x + tile.x + copied_ahead * depth * arguments.x_p_stride +
                       (Shape::x_along_p ? x_own.inner * arguments.x_p_stride
                                         : sXPlace[x_own.inner] + x_own.first * arguments.x_p_stride);
    const scalar* gF = arguments.f + tile.f + copied_ahead * depth * arguments.f_p_stride +
                       (Shape::f_along_p ? f_own.inner * arguments.f_p_stride + f_own.first * arguments.f_q_stride
                                         : f_own.inner * arguments.f_q_stride + f_own.first * arguments.f_p_stride);
    const index_t x_step = x_pieces::rows * arguments.x_p_stride,
                  f_step = f_pieces::rows * (Shape::f_along_p ? arguments.f_q_stride : arguments.f_p_stride);
    // From behind a panel's last piece to the next panel's first.
    const index_t x_further =
                      (depth - (Shape::x_along_p ? 0 : x_pieces::count * x_pieces::rows)) * arguments.x_p_stride,
                  f_further = Shape::f_along_p ? depth * arguments.f_p_stride - f_pieces::count * f_step
                                               : (depth - f_pieces::count * f_pieces::rows) * arguments.f_p_stride;
    const auto bytes_of = [](int n) { return n >= Width ? Width * bytes : n > 0 ? n * bytes : 0; };

    typename rectangle<Shape>::fragments r[2];  // (this step or the next)
    wait_for_copies<copied_ahead - 1>();
    __syncthreads();
    sums.read(r[0], sStages, sStages + Shape::x_count, 0, warp_fibre, warp_q, lane);
    int stage = 0;
#pragma unroll 1
    for (int panel = 0; panel < panels; ++panel) {
        const scalar* const sX = sStages + stage * stage_count;
        const int far_stage = (stage == 0 ? Shape::stages : stage) - 1;
        stage = stage + 1 == Shape::stages ? 0 : stage + 1;
        const scalar* const sXNext = sStages + stage * stage_count;
        const int left = p_left < depth ? int(p_left) : depth;
        const int x_bytes = Shape::x_along_p ? bytes_of(left - x_own.inner) : Width * bytes,
                  f_bytes = bytes_of((Shape::f_along_p ? left : tile.q_left) - f_own.inner);
        const auto set_off = [&](int piece) {
            if (piece < x_pieces::count) {
                const int row = x_own.first + piece * x_pieces::rows;
                if (x_own.has(piece))
                    copy_async_or_zero<Width * bytes>(
                        sXOwn + far_stage * stage_count + piece * x_pieces::rows * Shape::x_pitch,
                        Shape::x_along_p ? gX + sXPlace[row] : gX, Shape::x_along_p || row < left ? x_bytes : 0);
                if (!Shape::x_along_p) {
                    gX += x_step;
                    keep_stepping(gX);
                }
            } else {
                const int own = piece - x_pieces::count, row = f_own.first + own * f_pieces::rows;
                if (f_own.has(own))
                    copy_async_or_zero<Width * bytes>(
                        sFOwn + far_stage * stage_count + own * f_pieces::rows * Shape::f_pitch, gF,
                        row < (Shape::f_along_p ? tile.q_left : left) ? f_bytes : 0);
                gF += f_step;
                keep_stepping(gF);
            }
        };
        const auto step = [&](auto number) {
            constexpr int n = decltype(number)::value;
            constexpr bool last = n + 1 == steps;
            if constexpr (last) {
                wait_for_copies<copied_ahead - 1>();
                __syncthreads();  // the next panel is there, and nobody reads this one any more
            }
            const scalar* const sThen = last ? sXNext : sX;
            sums.read(r[1 - n % 2], sThen, sThen + Shape::x_count, last ? 0 : 8 * (n + 1), warp_fibre, warp_q, lane);
            sums.multiply(r[n % 2], [&](int product) {
                const int place = n * products + product;
                if (place >= places) return;
#pragma unroll
                for (int i = 0; i < (pieces + places - 1) / places; ++i) {
                    const int piece = (place * pieces + places - 1) / places + i;
                    if (piece * places < (place + 1) * pieces) set_off(piece);
                }
            });
            if constexpr (n + 2 == steps) commit_copies();
        };
        static_assert(steps % 2 == 0, "a panel's first step finds its fragments in r[0]");
        for_constants<0, steps>(step);
        p_left -= depth;
        gX += x_further;
        gF += f_further;
    }
}

// What stands in Y of a tile, or a warp's part of it, begins to travel to the second-level cache: by Threads threads, of Fibres fibres that sYPlace
// places, of which `rows` exist, at `columns` new indices. Of fibres that are neighbours sixteen share a line, or two.
template <class Shape, int Threads, int Fibres>
__device__ __forceinline__ void ask_for_y(const typename Shape::storage* gY, const index_t* sYPlace, index_t q_stride,
                                          int thread, int rows, int columns) {
    constexpr int line = 128 / int(sizeof(typename Shape::storage)), lines = Shape::new_indices / line + 2,
                  groups = Fibres / 16;
    const bool along_q = q_stride == 1;
#pragma unroll 1
    for (int i = thread; i < (along_q ? Fibres * lines : groups * columns); i += Threads) {
        const int row = along_q ? i % Fibres : i % groups * 16, q = along_q ? i / Fibres * line : i / groups;
        if (row < rows && q < columns + line)
            prefetch_line(gY + sYPlace[row] + (q < columns ? q : columns - 1) * q_stride);
    }
}

// The sums of all threads of a block -> its place. `shared` is free for it after a barrier.
template <class Shape>
__device__ __forceinline__ void store_sum_of_shape(
    typename sum_type<typename Shape::scalar>::type value,
    const blocked_arguments<typename Shape::storage, typename Shape::scalar>& all, void* shared) {
    store_sum_of_block<Shape::threads, Shape::ending>(value, all.sliced.alpha, all.sums, all.sum_count,
                                                      static_cast<decltype(value)*>(shared));
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_multiprocessor)
    blocked_multiply(const __grid_constant__ blocked_arguments<typename Shape::storage, typename Shape::scalar> all) {
    using scalar = typename Shape::scalar;
    using storage = typename Shape::storage;
    const sliced_multiply_arguments<storage, scalar>& arguments = all.sliced;
    after_earlier_launches();
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    index_t* const sXPlace = reinterpret_cast<index_t*>(shared_bytes);                      // (fibres)
    index_t* const sYPlace = sXPlace + Shape::fibres;                                       // (fibres)
    scalar* const sStages = reinterpret_cast<scalar*>(shared_bytes + Shape::places_bytes);  // (stages, X, F)
    constexpr int stage_count = Shape::x_count + Shape::f_count, V = Shape::copies ? Shape::vector : 1;

    const index_t P = arguments.p_extent;
    const blocked_tiles tiles = tiles_of<Shape>(all);
    blocked_widths wide = widths_of<Shape>(all);
    if (Shape::ahead) wide.x = wide.f = wide.x && wide.f;  // all threads share the pieces of both alike
    const int panels = int((P + Shape::depth - 1) / Shape::depth);

    const int lane = int(threadIdx.x % 32u), warp = int(threadIdx.x / 32u);
    const int warp_fibre = warp % Shape::warps_of_fibres * Shape::warp_fibres,
              warp_q = warp / Shape::warps_of_fibres * Shape::warp_q;
    own_sum<scalar, Shape::sums_up> own;

#pragma unroll 1
    for (index_t number = blockIdx.x; number < tiles.count; number += gridDim.x) {
        const blocked_tile tile = tile_at<Shape>(all, tiles, number);
        const storage* const gX = arguments.x + tile.x;
        const storage* const gF = arguments.f + tile.f;
        storage* const gY = arguments.y + tile.y;
        const int fibres_left = tile.fibres_left, q_left = tile.q_left;
        __syncthreads();  // the tile before has been read
        place_fibres<Shape>(all, tile, sXPlace, sYPlace);
        __syncthreads();

        const auto bring = [&](int panel) {
            scalar* const sX = sStages + panel % Shape::stages * stage_count;
            scalar* const sF = sX + Shape::x_count;
            const index_t first_p = index_t(panel) * Shape::depth;
            const int p_left = P - first_p < Shape::depth ? int(P - first_p) : Shape::depth;
            const auto bring_by = [&](auto whole) {
                constexpr bool Whole = decltype(whole)::value != 0;
                const storage* const gXPanel = gX + first_p * arguments.x_p_stride;
                if (V > 1 && wide.x)
                    bring_x<Shape, V, Whole>(sX, gXPanel, arguments.x_p_stride, sXPlace, fibres_left, p_left);
                else
                    bring_x<Shape, 1, Whole>(sX, gXPanel, arguments.x_p_stride, sXPlace, fibres_left, p_left);
                const storage* const gFPanel = gF + first_p * arguments.f_p_stride;
                const auto bring_f = [&](auto width) {
                    constexpr int W = decltype(width)::value;
                    if constexpr (Shape::f_along_p)
                        bring_matrix<Shape, Shape::new_indices, Shape::depth, Shape::f_pitch, W, Whole>(
                            sF, gFPanel, arguments.f_q_stride, arguments.f_p_stride, q_left, p_left);
                    else
                        bring_matrix<Shape, Shape::depth, Shape::new_indices, Shape::f_pitch, W, Whole>(
                            sF, gFPanel, arguments.f_p_stride, arguments.f_q_stride, p_left, q_left);
                };
                if (V > 1 && wide.f)
                    bring_f(constant<V>{});
                else
                    bring_f(constant<1>{});
            };
            if (fibres_left == Shape::fibres && q_left == Shape::new_indices && p_left == Shape::depth)
                bring_by(constant<1>{});
            else
                bring_by(constant<0>{});
        };
#pragma unroll 1
        for (int panel = 0; panel < Shape::stages - 1; ++panel) {
            if (panel < panels) bring(panel);
            commit_copies();
        }
        if constexpr (reads_in_place_of_y(Shape::ending))
            ask_for_y<Shape, Shape::threads, Shape::fibres>(gY, sYPlace, arguments.y_q_stride, int(threadIdx.x),
                                                            fibres_left, q_left);
        const int rows = fibres_left - warp_fibre, columns = q_left - warp_q;
        const bool whole = rows >= Shape::warp_fibres && columns >= Shape::warp_q;
        rectangle<Shape> sums;
        sums.clear();
        if constexpr (Shape::ahead) {
            if (rows > 0 && columns > 0) {
                if (wide.x)
                    multiply_ahead<Shape, V>(sums, all, tile, sStages, sXPlace, panels, warp_fibre, warp_q, lane);
                else
                    multiply_ahead<Shape, 1>(sums, all, tile, sStages, sXPlace, panels, warp_fibre, warp_q, lane);
            } else {  // brings its part, and waits as often
                wait_for_copies<Shape::stages - 2>();
                __syncthreads();
#pragma unroll 1
                for (int panel = 0; panel < panels; ++panel) {
                    if (panel + Shape::stages - 1 < panels) bring(panel + Shape::stages - 1);
                    commit_copies();
                    wait_for_copies<Shape::stages - 2>();
                    __syncthreads();
                }
            }
        } else {
#pragma unroll 1
            for (int panel = 0; panel < panels; ++panel) {
                wait_for_copies<Shape::stages - 2>();
                __syncthreads();
                if (panel + Shape::stages - 1 < panels) bring(panel + Shape::stages - 1);
                commit_copies();
                const scalar* const sX = sStages + panel % Shape::stages * stage_count;
                const index_t p_left = P - index_t(panel) * Shape::depth;
                if (whole && p_left >= Shape::depth)
                    sums.template add<true>(sX, sX + Shape::x_count, warp_fibre, warp_q, lane, rows, columns,
                                            Shape::depth, arguments.conjugate_x, arguments.conjugate_f);
                else if (rows > 0 && columns > 0)
                    sums.template add<false>(sX, sX + Shape::x_count, warp_fibre, warp_q, lane, rows, columns,
                                             p_left < Shape::depth ? int(p_left) : Shape::depth, arguments.conjugate_x,
                                             arguments.conjugate_f);
            }
        }
        wait_for_copies<0>();
        if (rows > 0 && columns > 0) {
            sums.repeat_what_is_not_finite(arguments, gX, gF, sXPlace, warp_fibre, warp_q, lane, rows, columns);
            if constexpr (Shape::sums_up)
                sums.sum_up(own.adds(), all.conjugate_y, arguments, gY, sYPlace, warp_fibre, warp_q, lane, rows,
                            columns, wide.y_pairs);
            else
                sums.store(arguments, gY, sYPlace, warp_fibre, warp_q, lane, rows, columns, wide.y_pairs);
        }
    }
    if constexpr (Shape::sums_up) store_sum_of_shape<Shape>(own.value, all, shared_bytes);
}

}  // namespace otimes::kernels
