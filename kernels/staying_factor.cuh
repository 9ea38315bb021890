// SPDX-License-Identifier: MIT
// Contract: that of warpgroup_blocks, for factors that stay on chip: with ceil(P / 8) = Shape::steps
//   Y[b, f, q] = alpha * sum_p X[b, f, p] * F[b, p, q] + beta * Y[b, f, q]
// where b runs over the first batch_count free modes and f ("fibre") over the others. A block of two warpgroups computes 128 fibres x
// Shape::new_indices of one b at a time. Its tiles follow each other along f, so that it brings (of floats: splits) its part of F once for many of them,
// to where the unit reads it. Each warp brings its own 16 fibres of X, a few steps of eight at a time (a panel), by asynchronous copies, and takes (of
// floats: splits) them to registers: no warp waits for another but, of floats, for those of its warpgroup and where F changes, so that one splits or
// stores while another multiplies.
//
// The steps of a fibre are dealt out evenly: 13 are of floats panels of 4, 3, 3 and 3, of doubles 3, 3, 3, 2 and 2. Floats: the warpgroup's unit
// sums a panel; what leaves it is added in float. Doubles: each warp's own unit (matrix_unit.cuh) sums all steps.
// XAlongP: as for blocked_multiply. Lane t of a warp has in each step p = 2 t and 2 t + 1, which are rows t and t + 4 of the unit's product; else
// p = t and t + 4. F is laid out alike.
//
// Y may be X where p_extent = q_extent <= Shape::new_indices and all strides are equal: a warp reads its fibres, which no other reads, before it
// stores them.
//
// Ending: as for blocked_multiply; or Y[b, f, q] is stored times the element of a vector D in its place (blocked_arguments), and nothing is added to it.
//
// Requires: as blocked_multiply; ceil(p_extent / 8) = Shape::steps; floats: code for sm_90a; doubles: compute capability 9.0.
// Called by: the GPU executor, for factors whose longer extent is 53 to some 250 (floats) or 400 (doubles).
#pragma once
#include "staying_panels.cuh"

namespace otimes::kernels {

template <class Scalar, bool Single, bool XAlongP, int Steps, int NewIndices, int Ending = ends_stored>
struct staying_factor_shape {
    using storage = Scalar;
    using scalar = Scalar;
    static constexpr int ending = Ending;
    static constexpr bool scaled = scales(Ending), sums_up = Ending != ends_stored && !scaled;
    static constexpr bool doubles = is_same<Scalar, double>;
    static_assert(doubles || is_same<Scalar, float>, "the unit: float or double");
    static constexpr bool single = Single;  // one TF32 product for each product of floats
    static constexpr bool splits = !Single && !doubles;
    static constexpr bool x_along_p = XAlongP, f_along_p = false, copies = true;
    static constexpr int vector = 16 / int(sizeof(scalar)), warpgroups = 2, threads = 128 * warpgroups;
    static constexpr int warps = threads / 32;
    static constexpr int warp_fibres = 16, fibres = warp_fibres * warps, new_indices = NewIndices;
    static constexpr int held = NewIndices / 2;                // sums of a thread
    static constexpr int sums_read_for = doubles ? 16 : held;  // whose elements of Y are read at once
    static_assert(NewIndices % 8 == 0 && NewIndices >= 32 && NewIndices <= 128);
    // Panels: the first long_panels have panel_steps steps, the others one less.
    static constexpr int steps = Steps, most_steps = doubles ? 3 : 4, panels = (Steps + most_steps - 1) / most_steps;
    static constexpr int panel_steps = (Steps + panels - 1) / panels;
    static constexpr int long_panels = Steps - panels * (panel_steps - 1), depth = 8 * panel_steps;
    static_assert(panels >= 2, "a tile has two panels at least: tiles_known");
    // Panels of a warp in shared memory, and tiles of which it knows where they begin: of one that is not stored yet to the second behind it.
    static constexpr int stages = doubles ? 3 : 4, tiles_known = 4;
    // Along p rows so long that the lanes of a fragment meet in no bank; of floats with room for a piece more: rows that begin anywhere are brought by
    // the whole pieces of 16 bytes that hold them. Else, of each four rows, the halves of two are exchanged, or of doubles, the quarters of all.
    static constexpr int x_pitch = !XAlongP ? warp_fibres : doubles ? 24 : 40;
    static_assert(doubles ? depth <= 24 && 24 % 16 == 8 : depth + vector <= 40 && 40 % 32 == 8);
    // Rows along p are brought by so many lanes each.
    static constexpr int x_lanes = doubles ? 4 : 8;
    static constexpr int x_count = XAlongP ? warp_fibres * x_pitch : depth * x_pitch;           // of a warp's panel
    static constexpr int f_part = 8 * Steps * NewIndices, f_count = (splits ? 2 : 1) * f_part;  // high, then low

    // Where a tile begins, and how much of it exists.
    struct tile_begin {
        index_t x, f, y;        // in elements
        int rows, new_indices;  // rows: of this warp's fibres
    };
    static constexpr int places_bytes = warps * tiles_known * 2 * warp_fibres * 8,
                         begins_bytes = warps * tiles_known * int(sizeof(tile_begin));
    static constexpr int shared_bytes =
        places_bytes + begins_bytes + int(sizeof(scalar)) * (f_count + warps * stages * x_count);

    __host__ __device__ static constexpr int x_at(int fibre, int p) {
        if (XAlongP) return fibre * x_pitch + p;
        return p * x_pitch + (fibre ^ (doubles ? (p & 3) * 4 : (p & 2) * 4));
    }
    // The fibre of a warp that is row r of its product: a lane has the rows g and g + 8.
    __host__ __device__ static constexpr int fibre_of_row(int r) { return XAlongP ? r : r % 8 * 2 + r / 8; }
    // The new indices of a lane go to Y by pieces of 16 bytes. Of the eight columns `eight` lane t has the two from here on: of floats, of two neighbours
    // of eight columns, four new indices that are neighbours.
    __host__ __device__ static constexpr int new_indices_from(int eight, int t) {
        return !doubles && eight / 2 * 16 + 16 <= NewIndices ? eight / 2 * 16 + 4 * t + eight % 2 * 2
                                                             : eight * 8 + 2 * t;
    }
    // The new index in column c.
    __host__ __device__ static constexpr int new_index_of(int c) { return new_indices_from(c / 8, c % 8 / 2) + c % 2; }
    // The value of p in row r of half `half` of a step.
    __host__ __device__ static constexpr int p_of(int step, int half, int r) {
        return 8 * step + (XAlongP ? 2 * r + half : 4 * half + r);
    }
};

// F[p, q] of new indices from begin.f on becomes the unit's operand; zeros beyond P and Q. Doubles: by asynchronous copies, a commit for all of a
// thread; its neighbours have the values of p that a lane reads at once, then the new indices, so that what they write lies together. Floats: a
// thread takes of one new index four values of p.
template <class Shape>
__device__ __forceinline__ void place_factor(
    const sliced_multiply_arguments<typename Shape::scalar, typename Shape::scalar>& arguments, const index_t& P,
    typename Shape::scalar* const& sOperand, const typename Shape::tile_begin& begin) {
    using scalar = typename Shape::scalar;
    constexpr int T = Shape::threads, N = Shape::new_indices;
    const scalar* const gF = arguments.f + begin.f;
    if constexpr (Shape::doubles) {
        const int t = int(threadIdx.x) % 4;
        for (int c = int(threadIdx.x) / 4; c < N; c += T / 4) {
            const int q = Shape::new_index_of(c);
            const bool q_exists = q < begin.new_indices;
            const scalar* const gColumn = q_exists ? gF + q * arguments.f_q_stride : gF;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const scalar* from = gColumn + Shape::p_of(0, half, t) * arguments.f_p_stride;
                scalar* const to = sOperand + c * 8 + 2 * t + half;
#pragma unroll
                for (int step = 0; step < Shape::steps; ++step) {
                    const bool exists = q_exists && Shape::p_of(step, half, t) < P;
                    bring_piece<Shape, 1, false>(to + step * 8 * N, exists ? from : gF, exists ? 1 : 0);
                    from += 8 * arguments.f_p_stride;
                }
            }
        }
        commit_copies();
    } else {
        const auto value_of = [&](int p, int q) {
            return p < P && q < begin.new_indices ? gF[p * arguments.f_p_stride + q * arguments.f_q_stride] : scalar(0);
        };
        constexpr int pieces = Shape::f_part / 4;
#pragma unroll 4
        for (int piece = int(threadIdx.x); piece < pieces; piece += T) {
            const int c = piece % N, q = Shape::new_index_of(c);
            const int quad = piece / N, step = quad / 2, half = quad % 2;
            unsigned rHigh[4], rLow[4];  // (row)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float value = value_of(Shape::p_of(step, half, r), q);
                if constexpr (Shape::single) {
                    rHigh[r] = nearest_tf32(value);
                } else {
                    const split_float parts = split_factor<Shape::panel_steps>(value);
                    rHigh[r] = parts.high;
                    rLow[r] = parts.low;
                }
            }
            float* const to = sOperand + step * 8 * N + c / 8 * 64 + half * 32 + c % 8 * 4;
            *reinterpret_cast<uint4*>(to) = make_uint4(rHigh[0], rHigh[1], rHigh[2], rHigh[3]);
            if constexpr (Shape::splits)
                *reinterpret_cast<uint4*>(to + Shape::f_part) = make_uint4(rLow[0], rLow[1], rLow[2], rLow[3]);
        }
        fence_for_unit();
    }
}

// A warp's sums -> rows of Y that begin anywhere, four at a time (doubles: two) through sRows, what the last panel has left in shared memory, so that a
// warp's stores lie together.
//
// What stores and adds is in the kernel as lambdas: the compiler must find it there, one in another, to make the code that was measured. These few may
// stand by themselves, if what they take is referred to.
template <class Shape>
__device__ __forceinline__ void store_rows_staged(
    const sliced_multiply_arguments<typename Shape::scalar, typename Shape::scalar>& arguments, const int& lane,
    const typename Shape::scalar& scale, typename Shape::scalar (&rC)[Shape::new_indices / 2],
    const typename Shape::tile_begin& begin, const index_t* sYPlace, typename Shape::scalar* sRows) {
    using scalar = typename Shape::scalar;
    constexpr int N = Shape::new_indices, V = Shape::vector;
    constexpr int rows = Shape::doubles ? 2 : 4;
    // Half of all banks beyond a multiple of them, where there is room: pieces of two rows meet in no bank.
    constexpr int wanted = N + (12 * V - N % (8 * V)) % (8 * V);
    constexpr int pitch = rows * wanted <= Shape::x_count ? wanted : N;
    constexpr int accesses = (N + 31) / 32;  // of a lane for a row
    static_assert(!Shape::x_along_p || rows * pitch <= Shape::x_count);
    const int t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll 1
        for (int part = 0; part < 8 / rows; ++part) {
            const int first = 8 * h + rows * part;
            if (first >= begin.rows) return;
            // visit(element of Y, its row of these, its new index)
            const auto for_each = [&](const auto& visit) {
#pragma unroll
                for (int row = 0; row < rows; ++row) {
                    if (first + row >= begin.rows) break;
                    scalar* const gRow = arguments.y + begin.y + sYPlace[first + row];
#pragma unroll
                    for (int k = 0; k < accesses; ++k) {
                        const int q = lane + 32 * k;
                        if (q < begin.new_indices) visit(gRow + q * arguments.y_q_stride, row, q);
                    }
                }
            };
            __syncwarp();
            if (lane / (4 * rows) == part) {
                scalar* const s = sRows + lane / 4 % rows * pitch;
                const auto stage = [&](auto count, int at, int c) {
                    constexpr int Count = decltype(count)::value;
                    using piece = packet<Count* int(sizeof(scalar))>;
                    alignas(16) scalar rY[Count];  // (neighbour)
#pragma unroll
                    for (int e = 0; e < Count; ++e) rY[e] = scale * rC[c + e / 2 * 4 + 2 * h + e % 2];
                    *reinterpret_cast<piece*>(s + at) = *reinterpret_cast<const piece*>(rY);
                };
                constexpr int whole = Shape::doubles ? 0 : N / 16;
#pragma unroll
                for (int m = 0; m < whole; ++m) stage(constant<4>{}, 16 * m + 4 * t, 8 * m);
#pragma unroll
                for (int m = 2 * whole; m < N / 8; ++m) stage(constant<2>{}, 8 * m + 2 * t, 4 * m);
            }
            __syncwarp();
            for_each([&](scalar* to, int row, int q) { *to = sRows[row * pitch + q]; });
        }
}

// `count` sums -> neighbours of Y, of which `left` exist; wide_access: all at once where all do. (Doubles that are wide exist by pairs.)
template <class Shape, class CountTag, class Sum>
__device__ __forceinline__ void put_neighbours(const typename Shape::scalar& scale, typename Shape::scalar* to,
                                               index_t stride, CountTag count, const Sum& sum, int left,
                                               bool wide_access) {
    using scalar = typename Shape::scalar;
    const auto exists = [](int l, auto c) { return Shape::doubles ? l > 0 : l >= decltype(c)::value; };
    constexpr int Count = decltype(count)::value;
    using piece = packet<Count* int(sizeof(scalar))>;
    if (wide_access && exists(left, count)) {
        alignas(16) scalar rY[Count];  // (neighbour)
#pragma unroll
        for (int e = 0; e < Count; ++e) rY[e] = scale * sum(e);
        *reinterpret_cast<piece*>(to) = *reinterpret_cast<const piece*>(rY);
    } else if (!(wide_access && Shape::doubles))
#pragma unroll
        for (int e = 0; e < Count; ++e) {
            if (e < left) *to = scale * sum(e);
            to += stride;
        }
}

// Of floats that are split: the sums of a warp that are not finite, once more by multiply-adds, which say which they are.
template <class Shape>
__device__ __forceinline__ void repeat_what_is_not_finite(
    const sliced_multiply_arguments<typename Shape::scalar, typename Shape::scalar>& arguments, const int& lane,
    typename Shape::scalar (&rC)[Shape::new_indices / 2], const typename Shape::tile_begin& begin,
    const index_t* sXPlace) {
    if constexpr (Shape::splits)
        repeat_sums_that_are_not_finite(
            rC, arguments, arguments.x + begin.x, arguments.f + begin.f, sXPlace, begin.rows, begin.new_indices,
            [&](int c) { return Shape::fibre_of_row(lane / 4 + 8 * (c % 4 / 2)); },
            [&](int c) { return Shape::new_index_of(c / 4 * 8 + lane % 4 * 2 + c % 2); });
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads)
    staying_factor(const __grid_constant__ blocked_arguments<typename Shape::scalar, typename Shape::scalar> all) {
    using scalar = typename Shape::scalar;
    const sliced_multiply_arguments<scalar, scalar>& arguments = all.sliced;
    using tile_begin = typename Shape::tile_begin;
    // Behind a launch that leaves F alone, or X too, they are sent for while it ends.
    const bool factor_first = all.factor_ready, x_first = factor_first && all.x_ready;
    if (!factor_first) after_earlier_launches();
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    constexpr int N = Shape::new_indices, V = Shape::vector;
    constexpr int rows_of_warp = Shape::warp_fibres, lane_steps = Shape::panel_steps;
    const int lane = int(threadIdx.x % 32u), warp = int(threadIdx.x / 32u);
    // (tiles_known, X or Y, fibre) and (tiles_known), of this warp
    index_t* const sPlaces = reinterpret_cast<index_t*>(shared_bytes) + warp * Shape::tiles_known * 2 * rows_of_warp;
    tile_begin* const sBegins =
        reinterpret_cast<tile_begin*>(shared_bytes + Shape::places_bytes) + warp * Shape::tiles_known;
    // floats: (high or low, step, q / 8, half, q % 8, 4), doubles: (step, q, 4, half)
    scalar* const sOperand = reinterpret_cast<scalar*>(shared_bytes + Shape::places_bytes + Shape::begins_bytes);
    // (stages, fibre and p), of this warp
    scalar* const sBrought = sOperand + Shape::f_count + warp * Shape::stages * Shape::x_count;

    const index_t P = arguments.p_extent;
    const blocked_tiles tiles = tiles_of<Shape>(all);
    const blocked_widths wide = widths_of<Shape>(all);
    // Y goes by 16 bytes along q, or, of fibres that are neighbours in X, by two of them.
    const bool y_along_q = arguments.y_q_stride == 1, y_by_pairs = !Shape::x_along_p && !y_along_q;
    bool y_wide = y_along_q
                      ? aligned_to(arguments.y, 16) && !(Shape::doubles && arguments.q_extent % 2 != 0)
                      : y_by_pairs && aligned_to(arguments.y, 2 * int(sizeof(scalar))) && arguments.y_q_stride % 2 == 0;
    for (int i = 0; i < arguments.free_count; ++i) {
        const bool pairs = y_by_pairs && i + 1 == arguments.free_count && i >= all.batch_count;
        y_wide = y_wide && (pairs ? arguments.y_stride[i] == 1 && arguments.free_extent[i] % 2 == 0
                                  : arguments.y_stride[i] % (y_along_q ? V : 2) == 0);
    }
    // Neighbouring tiles, as many as other blocks have, or one more.
    const index_t first_tile = tiles.count * blockIdx.x / gridDim.x,
                  own_tiles = tiles.count * (blockIdx.x + index_t(1)) / gridDim.x - first_tile;
    if (own_tiles < 1) {
        if (factor_first) after_earlier_launches();
        return;
    }

    // The next panel to be brought, of this block's tile next_tile.
    index_t next_tile = 0, next_part = -1, next_fibre = 0;  // next_fibre: the tile's first one
    int next_panel = 0, next_p = 0, next_rows = 0;
    const scalar* gX[staying_panels<Shape>::pieces_a_lane];
    const scalar* gTile = arguments.x;
    const index_t x_step = staying_panels<Shape>::p_at_once * arguments.x_p_stride;
    const staying_tiles<Shape> order{next_tile, next_fibre, next_part, tiles, all,     first_tile, sBegins, warp,
                                     next_rows, gTile,      arguments, lane,  sPlaces, gX,         next_p};
    const staying_panels<Shape> panels{next_tile, own_tiles,  next_panel, order, P,         next_p,
                                       wide,      lane,       gX,         gTile, next_rows, x_step,
                                       sPlaces,   next_fibre, warp,       tiles, arguments};
    staying_fragments<Shape> x;
    scalar *sNext = sBrought, *sRead = sBrought, *sUsed = sBrought;  // stages to be brought, to be read, read last
    const auto further = [&](scalar*& stage) {
        stage += Shape::x_count;
        if (stage == sBrought + Shape::stages * Shape::x_count) stage = sBrought;
    };
    // What of F is in shared memory, or on its way there.
    index_t staying = -1;
    int staying_indices = 0;
    if (factor_first) {
        index_t part = 0;
        const blocked_tile tile = tile_along_fibres<Shape>(all, tiles, first_tile, part);
        staying = tile.f;
        staying_indices = tile.q_left;
        place_factor<Shape>(arguments, P, sOperand, tile_begin{tile.x, tile.f, tile.y, 0, tile.q_left});
        if (!x_first) after_earlier_launches();
    }
#pragma unroll 1
    for (int k = 0; k < Shape::stages - 1; ++k) {
        panels.bring(sNext);
        further(sNext);
    }
    if (x_first) after_earlier_launches();
    if (factor_first) {
        wait_for_copies<Shape::stages - 1>();  // those of X may be outstanding
        __syncthreads();
    }

    own_sum<scalar, Shape::sums_up> own;
    constexpr int held = Shape::held;
    // As the unit leaves them: of this tile, of a panel (doubles: what store_rows_staged reads of Y).
    scalar rC[held], rD[held];
#pragma unroll
    for (int c = 0; c < held; ++c) rC[c] = rD[c] = scalar(0);
    // Doubles: adds a panel of Count steps, the first of them `step`.
    const auto add_panel = [&](int step, auto count) {
        if constexpr (Shape::doubles) {
            const double* const sLane = sOperand + step * (8 * N) + 2 * lane;
#pragma unroll
            for (int s = 0; s < decltype(count)::value; ++s)
#pragma unroll
                for (int eight = 0; eight < N / 8; ++eight) {
                    const double2 f = *reinterpret_cast<const double2*>(sLane + s * (8 * N) + 64 * eight);
                    multiply_add_double(*reinterpret_cast<double(*)[4]>(rC + 4 * eight), x.rX[s], f.x, f.y);
                }
        }
    };
    // Floats: multiplies a panel of Count steps, the first of them `step`.
    const auto start = [&](int step, auto count) {
        constexpr int Count = decltype(count)::value;
        const unsigned long long high = right_operand(sOperand) + step * (8 * N / 4);
        constexpr int next = 8 * N / 4, low = Shape::f_part / 4;  // of the operands, in 16 bytes
        warpgroup_begin();
        multiply_panel<N, Shape::single, Count>(rD, x.rHigh, x.rLow, high, next, low);
        warpgroup_commit();
    };
    // What Y holds is added before anything is stored, as in blocked_multiply.
    const bool adds = !is_zero(arguments.beta);
    constexpr int of_part = Shape::sums_read_for;
    const scalar scale = adds ? scalar(1) : arguments.alpha;
    // Rows of Y that go by 16 bytes, or whose neighbours in q are no neighbours in memory. visit(Y, count, sum(e), left): the pieces of this lane. (The
    // stride of floats is asked for at each piece: stores that follow each other faster were measured to take longer, 1.97 copies of X and Y for 1.73 at
    // 100 x 100.)
    const auto for_each_piece_of_rows = [&](const tile_begin& begin, const index_t* sYPlace, index_t stride,
                                            const auto& visit) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int fibre = Shape::fibre_of_row(g + 8 * h);
            if (fibre >= begin.rows) continue;
            scalar* const gRow = arguments.y + begin.y + sYPlace[fibre];
            constexpr int whole = Shape::doubles ? 0 : N / 16;  // sixteen columns of which a lane has four neighbours
#pragma unroll
            for (int m = 0; m < whole; ++m)
                visit(
                    gRow + (16 * m + 4 * t) * stride, constant<4>{},
                    [&](int e) -> scalar& { return rC[8 * m + e / 2 * 4 + 2 * h + e % 2]; },
                    begin.new_indices - (16 * m + 4 * t));
#pragma unroll
            for (int m = 2 * whole; m < N / 8; ++m)
                visit(
                    gRow + (8 * m + 2 * t) * stride, constant<2>{},
                    [&](int e) -> scalar& { return rC[4 * m + 2 * h + e]; }, begin.new_indices - (8 * m + 2 * t));
        }
    };
    const auto store_rows = [&](const tile_begin& begin, const index_t* sYPlace, auto wide_pieces) {
        constexpr bool Wide = decltype(wide_pieces)::value != 0;
        const index_t stride = Wide && Shape::doubles ? 1 : arguments.y_q_stride;
        for_each_piece_of_rows(begin, sYPlace, stride, [&](scalar* to, auto count, const auto& sum, int left) {
            put_neighbours<Shape>(scale, to, stride, count, sum, left, Wide);
        });
    };
    // Columns of Y, of two fibres each.
    const auto store_columns = [&](const tile_begin& begin, const index_t* sYPlace, auto pairs) {
        constexpr bool Pairs = decltype(pairs)::value != 0;
        const int g = lane / 4, t = lane % 4, rows = begin.rows - 2 * g;
        if (rows <= 0) return;
        const index_t here = sYPlace[2 * g],
                      next = Pairs      ? 1
                             : rows > 1 ? sYPlace[2 * g + 1] - here
                                        : 0,
                      stride = arguments.y_q_stride;
        // visit(Y, sum(fibre of two))
        const auto for_each = [&](const auto& visit) {
#pragma unroll
            for (int c = 0; c < held; c += 4) {
                const int first = Shape::new_indices_from(c / 4, t);
                scalar* to = arguments.y + begin.y + here + first * stride;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    if (first + e < begin.new_indices) visit(to, [&](int k) -> scalar& { return rC[c + 2 * k + e]; });
                    to += stride;
                }
            }
        };
        for_each([&](scalar* to, const auto& sum) {
            put_neighbours<Shape>(scale, to, next, constant<2>{}, sum, rows, Pairs);
        });
    };
    // use(first, rV, exists): rV[i] is what stands at element_for(where sum first + i would be stored) (not read with Reads = 0), exists(c) whether sum c
    // would. All of a part is read before any of it is used, and an element that exists where there is none: behind a branch the compiler would wait for
    // each. neighbours: elements that go to Y by one access are read by one.
    [[maybe_unused]] const auto with_elements = [&](const tile_begin& begin, const index_t* sYPlace, auto reads,
                                                    const auto& element_for, bool neighbours, const auto& use) {
        constexpr bool Reads = decltype(reads)::value != 0;
        const int g = lane / 4, t = lane % 4, Q = begin.new_indices;
        const auto row_of = [&](int c) { return Shape::fibre_of_row(g + c % 4 / 2 * 8); };           // of rC[c]
        const auto new_index_of = [&](int c) { return Shape::new_indices_from(c / 4, t) + c % 2; };  // of rC[c]
        const scalar* const gY = arguments.y + begin.y;
        const scalar* const gRow[2] = {gY + sYPlace[index_or_first(row_of(0), begin.rows)],
                                       gY + sYPlace[index_or_first(row_of(2), begin.rows)]};
        const auto place_of = [&](int c) {
            return element_for(gRow[c % 4 / 2] + index_or_first(new_index_of(c), Q) * arguments.y_q_stride);
        };
        // read(c, element(e)): where rC[c] is the first of some that stand together in Y, all of their elements.
        const auto with_y_by = [&](const auto& read) {
#pragma unroll
            for (int first = 0; first < held; first += of_part) {
                scalar rV[Shape::sums_read_for];  // as rC from `first` on (g++ 13.3 takes no local constant here)
                if constexpr (Reads) {
#pragma unroll
                    for (int c = first; c < first + of_part; ++c)
                        if (c < held) read(c, [&](int of) -> scalar& { return rV[of - first]; });
                }
                use(first, rV, [&](int c) { return row_of(c) < begin.rows && new_index_of(c) < Q; });
                __syncwarp();  // no more is read until here
            }
        };
        // Of doubles the compiler would wait for pairs sooner than for as many single ones.
        if constexpr (!Shape::doubles) {
            if (y_along_q && y_wide && neighbours && Q % V == 0) {
                with_y_by([&](int c, const auto& element) {
                    // Four neighbours are rC[c], rC[c + 1], rC[c + 4] and rC[c + 5].
                    constexpr int of_four = N / 16 * 8;
                    scalar rFew[4];
                    if (c < of_four && c % 8 < 4 && c % 2 == 0) {
                        read_neighbours<4>(rFew, place_of(c));
#pragma unroll
                        for (int e = 0; e < 4; ++e) element(c + e / 2 * 4 + e % 2) = rFew[e];
                    } else if (c >= of_four && c % 2 == 0) {
                        read_neighbours<2>(rFew, place_of(c));
#pragma unroll
                        for (int e = 0; e < 2; ++e) element(c + e) = rFew[e];
                    }
                });
                return;
            }
            if (!Shape::x_along_p && !y_along_q && y_wide && neighbours) {
                with_y_by([&](int c, const auto& element) {
                    if (c % 4 >= 2) return;
                    scalar rFew[2];  // of two neighbouring fibres
                    read_neighbours<2>(rFew, place_of(c));
                    element(c) = rFew[0];
                    element(c + 2) = rFew[1];
                });
                return;
            }
        }
        with_y_by([&](int c, const auto& element) { read_neighbours<1>(&element(c), place_of(c)); });
    };
    [[maybe_unused]] const auto with_y = [&](const tile_begin& begin, const index_t* sYPlace, auto reads,
                                             const auto& use) {
        with_elements(
            begin, sYPlace, reads, [](const scalar* place) { return place; }, true, use);
    };
    // What would be stored, to this thread's sum.
    [[maybe_unused]] const auto sum_up = [&](const tile_begin& begin, const index_t* sYPlace) {
        with_y(begin, sYPlace, constant<Shape::ending != ends_in_norm>{},
               [&](int first, const auto& rV, const auto& exists) {
                   own.adds().template add<of_part>([&](int i) {
                       const int c = first + i;
                       return c < held && exists(c)
                                  ? term_of_sum<Shape::ending>([&] { return rV[i]; }, rC[c < held ? c : 0],
                                                               arguments.alpha, false)
                                  : scalar(0);
                   });
               });
    };
    // The sums become alpha times themselves plus beta times what stands in their places in Y.
    [[maybe_unused]] const auto add_y = [&](const tile_begin& begin, const index_t* sYPlace) {
        with_y(begin, sYPlace, constant<1>{}, [&](int first, const auto& rV, const auto&) {
#pragma unroll
            for (int i = 0; i < of_part; ++i)
                if (first + i < held) rC[first + i] = arguments.alpha * rC[first + i] + arguments.beta * rV[i];
        });
    };
    // The sums become what they are times the elements of D in their places.
    [[maybe_unused]] const auto scale_by_d = [&](const tile_begin& begin, const index_t* sYPlace) {
        constexpr bool along = Shape::ending == ends_scaled_along;
        const scalar* const gD = static_cast<const scalar*>(all.d);
        const bool neighbours = along && aligned_to(all.d, 16) && all.divisor % unsigned(V) == 0;
        with_elements(
            begin, sYPlace, constant<1>{},
            [&](const scalar* place) {
                const unsigned u = unsigned(place - arguments.y), of_u = quotient_by(all.magic, all.shift, u);
                return gD + (along ? u - of_u * all.divisor : of_u);
            },
            neighbours,
            [&](int first, const auto& rV, const auto&) {
#pragma unroll
                for (int i = 0; i < of_part; ++i)
                    if (first + i < held) rC[first + i] *= rV[i];
            });
    };
    const auto store = [&](const tile_begin& begin, const index_t* sYPlace, [[maybe_unused]] scalar* sRows) {
        if (y_along_q && y_wide)
            store_rows(begin, sYPlace, constant<1>{});
        else if constexpr (Shape::x_along_p) {
            if (y_along_q)
                store_rows_staged<Shape>(arguments, lane, scale, rC, begin, sYPlace, sRows);
            else
                store_rows(begin, sYPlace, constant<0>{});
        } else {
            if (y_along_q)
                store_rows(begin, sYPlace, constant<0>{});
            else if (y_wide)
                store_columns(begin, sYPlace, constant<1>{});
            else
                store_columns(begin, sYPlace, constant<0>{});
        }
    };
#pragma unroll 1
    for (index_t tile = 0; tile < own_tiles; ++tile) {
        const int slot = int(tile % Shape::tiles_known);
        {
            const tile_begin begin = sBegins[slot];
            if (begin.f != staying || begin.new_indices != staying_indices) {
                staying = begin.f;
                staying_indices = begin.new_indices;
                __syncthreads();
                place_factor<Shape>(arguments, P, sOperand, begin);
                if constexpr (Shape::doubles) wait_for_copies<0>();
                __syncthreads();
            }
            if (reads_in_place_of_y(Shape::ending) || (!Shape::sums_up && !Shape::scaled && adds))
                ask_for_y<Shape, 32, rows_of_warp>(arguments.y + begin.y, sPlaces + (slot * 2 + 1) * rows_of_warp,
                                                   arguments.y_q_stride, lane, begin.rows, begin.new_indices);
        }
#pragma unroll
        for (int c = 0; c < held; ++c) rC[c] = scalar(0);
        int step = 0;
        // visit(steps of a panel)
        const auto with_steps_of = [&](int panel, const auto& visit) {
            if (Shape::long_panels == Shape::panels || panel < Shape::long_panels)
                visit(constant<lane_steps>{});
            else
                visit(constant<lane_steps - 1>{});
        };
#pragma unroll 1
        for (int panel = 0; panel < Shape::panels; ++panel) {
            wait_for_copies<Shape::stages - 2>();
            __syncwarp();
            sUsed = sRead;
            x.take(arguments, sPlaces, sBegins, lane, wide.x, sRead, slot);
            further(sRead);
            // Meanwhile one more panel is set off, to where the last one was.
            if constexpr (Shape::doubles) {
                panels.bring(sNext);
                further(sNext);
                with_steps_of(panel, [&](auto count) {
                    add_panel(step, count);
                    step += decltype(count)::value;
                });
            } else {
                x.split_taken();
                keep_registers(rD);
                x.keep();
                with_steps_of(panel, [&](auto count) {
                    start(step, count);
                    step += decltype(count)::value;
                });
                panels.bring(sNext);
                further(sNext);
                warpgroup_wait<0>();
                keep_registers(rD);
                x.keep();
#pragma unroll
                for (int c = 0; c < held; ++c) rC[c] += rD[c];
            }
        }
        const tile_begin begin = sBegins[slot];
        if (begin.rows > 0) {
            const index_t* const sXPlace = sPlaces + slot * 2 * rows_of_warp;
            repeat_what_is_not_finite<Shape>(arguments, lane, rC, begin, sXPlace);
            if constexpr (Shape::splits) __syncwarp();  // Y may be X, of which a lane may have read once more
            if constexpr (Shape::sums_up)
                sum_up(begin, sXPlace + rows_of_warp);
            else {
                if constexpr (Shape::scaled)
                    scale_by_d(begin, sXPlace + rows_of_warp);
                else if (adds)
                    add_y(begin, sXPlace + rows_of_warp);
                store(begin, sXPlace + rows_of_warp, sUsed);
            }
        }
    }
    wait_for_copies<0>();
    if constexpr (Shape::sums_up) store_sum_of_shape<Shape>(own.value, all, shared_bytes);
}

}  // namespace otimes::kernels
