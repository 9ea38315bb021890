// SPDX-License-Identifier: MIT
// What a fused kernel is given, where a tile lies in device memory, and its way to shared memory (asynchronous). The way back: tile_store.cuh.
#pragma once
#include "async_copy.cuh"
#include "cluster.cuh"
#include "mode_group.cuh"
#include "scalars.cuh"

namespace otimes::kernels {

constexpr int max_modes = 12;  // of one group, over all its terms
constexpr int max_terms = 4;

// Contract of a fused pass, for every row r of the tensor and every run index s:
//   Y[r, q_1 .. q_n, s] = alpha * sum_{p_1 .. p_n} X[r, p_1 .. p_n, s] * prod_i F_i[p_i, q_i] + beta * Y[r, q_1 .. q_n, s]
// F_i[p, q] = factor[i][p * factor_p_stride[i] + q * factor_q_stride[i]] (a transposed factor has its strides exchanged).
// beta = 0: Y is not read. Y may be X when every P_i = Q_i and both are placed alike; no other overlap. c_offset != 0: beta * C instead of
// beta * Y, where C is placed like Y (it may be X); groups with `addend`. Terms > 1: the sum over the terms t of alpha_t * X * prod_i F_(t, i), of which each has
// its own factors, term after term in `factor`; Y is not X.
template <class Storage>
struct group_arguments {
    using scalar = typename computing<Storage>::type;
    const Storage* x;
    Storage* y;
    const Storage* factor[max_modes];
    index_t factor_p_stride[max_modes];
    index_t factor_q_stride[max_modes];
    scalar alpha, beta;
    index_t lines;           // rows of X, or batch entries
    index_t parts_per_line;  // consecutive tensors in one line
    index_t x_line_stride, y_line_stride;
    index_t inner;             // outer groups: elements below the group's modes
    index_t x_inner, y_inner;  // outer groups: stride of the group's linear index (inner, when nothing is skipped)
    index_t c_offset;          // where C stands from Y, elements; 0: C is Y
    scalar more_alpha[max_terms - 1];  // of the terms after the first
    index_t second;  // groups of two inputs: from X to the second; fused_terms: from Y to the second output
    // Groups that end otherwise than by a store; beta is not used. Sums: `divisor` of them in the wide type, one of each block and 0
    // behind those; Y is what the product is multiplied by (of a norm: any address). Scaling: by D[u % divisor] or D[u / divisor],
    // u < 2^31 the place from Y on; u / divisor = (u * magic) >> (32 + shift).
    void* sums_or_d;
    unsigned divisor, magic;
    int shift;
    bool conjugate_y;  // of a dot product: Y's complex conjugate
    // The launch before this one waits for those before it (launch_order.cuh) and writes no factor: they may be read while it runs. And
    // with x_ready, which implies that: nor X.
    bool factors_ready, x_ready;
};

// Where one tile lies in device memory.
template <class Storage>
struct tile_place {
    const Storage* x;
    Storage* y;
    index_t x_row_stride, y_row_stride;  // Run = 1: from row to row; inputs > 1: of x, from one to the next
    index_t x_inner, y_inner;            // Run > 1: from one linear index of the group to the next
    int rows, run;                       // how many of the tile's exist
};

// Pieces of a tile are dealt out to the threads in turn: a thread's piece i stands i * threads * Width elements behind its first one. When
// all extents and the number of threads are powers of two, the two parts of that sum have no bit in common, so the second
// contributes a constant to every offset and a piece costs an addition instead of a division by every extent.
template <class Group, int Step>
__host__ __device__ constexpr bool digits_apart() {
    for (int l = 0; l <= Group::run_level; ++l)
        if ((Group::extent(Step, l) & (Group::extent(Step, l) - 1)) != 0) return false;
    return (Group::threads & (Group::threads - 1)) == 0;
}

// visit(offset in the tile, offset in memory) for this thread's pieces of Count elements, of which element e stands at memory(e);
// memory is additive over disjoint bits.
template <class Group, int Step, int Parts, int Width, int Count, class Memory, class Visit>
__device__ __forceinline__ void for_pieces_apart(const Memory& memory, const Visit& visit) {
    constexpr int stride = Group::threads * Width, each = Count / stride, together = each < 8 ? each : 8;
    static_assert(each * stride == Count && (each & (each - 1)) == 0);
    const auto offset_of = [](int element) {
        return Group::swizzled ? Group::place(element) : tile_offset<Group, Step, Parts, 0, Group::run_level>(element);
    };
    const int first = int(threadIdx.x) * Width, first_offset = offset_of(first);
    const index_t first_memory = memory(unsigned(first));
#pragma unroll 1
    for (int i = 0; i < each; i += together) {
        const int far = offset_of(i * stride), base = Group::swizzled ? first_offset ^ far : first_offset + far;
        const index_t base_memory = first_memory + memory(i * stride);
#pragma unroll
        for (int j = 0; j < together; ++j)
            visit(Group::swizzled ? Group::place_further(base, j * stride) : base + offset_of(j * stride),
                  base_memory + memory(j * stride));
    }
}

// A part of a row is a stretch of its own; in a swizzled cluster a stretch of each index above the mode that is cut.
template <class Group, int RowCount>
__host__ __device__ constexpr int stretch_of_part() {
    return Group::swizzled && Group::cluster > 1 ? Group::allotted(Group::cut) * Group::stride(Group::cut) : RowCount;
}

// Part `part` of Parts (cut along mode 1) of the tile's X -> sPart, Width elements an access.
template <class Group, int Parts, int Width>
__device__ __forceinline__ void load_pieces(const tile_place<typename Group::storage>& place,
                                            typename Group::scalar* sPart, int part) {
    using scalar = typename Group::scalar;
    constexpr int row_count = Group::count_p() / Parts;  // elements of one row (of one run index) in this part
    constexpr int pieces = Group::rows * row_count * Group::run / Width;
    if constexpr (Width > 1 && digits_apart<Group, 0>() && pieces % Group::threads == 0) {  // whole tiles only
        constexpr int stretch = stretch_of_part<Group, row_count>();
        const scalar* gX =
            place.x + (Group::run > 1 ? index_t(part) * row_count * place.x_inner : index_t(part) * stretch);
        for_pieces_apart<Group, 0, Parts, Width, pieces * Width>(
            [&](unsigned element) -> index_t {
                if constexpr (Group::inputs > 1) {
                    constexpr unsigned each = unsigned(row_count / Group::inputs);
                    const unsigned f = element / unsigned(Group::run);
                    return index_t(f / each) * place.x_row_stride + index_t(f % each) * place.x_inner +
                           element % unsigned(Group::run);
                } else if constexpr (Group::run > 1)
                    return index_t(element / unsigned(Group::run)) * place.x_inner + element % unsigned(Group::run);
                else {
                    const unsigned rest = element % unsigned(row_count);
                    const unsigned within = rest / unsigned(stretch) * (stretch * Parts) + rest % unsigned(stretch);
                    return Group::rows == 1 ? index_t(within)
                                            : index_t(element / unsigned(row_count)) * place.x_row_stride + within;
                }
            },
            [&](int offset, index_t from) { copy_async<Width* int(sizeof(scalar))>(sPart + offset, gX + from); });
    } else {
#pragma unroll 4
        for (unsigned piece = threadIdx.x; piece < unsigned(pieces); piece += Group::threads) {
            const unsigned element = piece * Width;
            const scalar* gX;
            bool exists;
            if constexpr (Group::run > 1) {
                const int f = int(element / unsigned(Group::run)), s = int(element % unsigned(Group::run));
                if constexpr (Group::inputs > 1) {
                    constexpr int each = row_count / Group::inputs;
                    gX = place.x + f / each * place.x_row_stride + index_t(f % each) * place.x_inner + s;
                } else
                    gX = place.x + (index_t(part) * row_count + f) * place.x_inner + s;
                exists = s < place.run;
            } else {
                const int row = int(element / unsigned(row_count)), rest = int(element % unsigned(row_count));
                constexpr int stretch = stretch_of_part<Group, row_count>();
                gX = place.x + row * place.x_row_stride + index_t(part) * stretch + rest / stretch * (stretch * Parts) +
                     rest % stretch;
                exists = row < place.rows;
            }
            const int offset = Group::swizzled ? Group::place(int(element))
                                               : tile_offset<Group, 0, Parts, 0, Group::run_level>(int(element));
            if (exists) {
                copy_async<Width* int(sizeof(scalar))>(sPart + offset, gX);
            } else if constexpr (Width == 1) {
                // What is not there must not look infinite to the matrix unit: it would evaluate it again, slowly.
                sPart[offset] = scalar(0);
            }
        }
    }
}

template <class Group>
__device__ __forceinline__ void load_part(const tile_place<typename Group::storage>& place,
                                          typename Group::scalar* sPart, int part) {
    using scalar = typename Group::scalar;
    constexpr int parts = Group::segments * Group::cluster;
    constexpr int row_count = Group::count_p();
    constexpr bool whole_rows = parts == 1 && Group::rows_contiguous(0);
    constexpr int stretch = Group::contiguous(0), part_count = Group::run > 1 ? stretch : row_count / parts;
    constexpr int width = whole_rows ? Group::widest_stretch(Group::rows * row_count)
                                     : Group::widest(0, stretch < part_count ? stretch : part_count);
    constexpr int bytes = width * int(sizeof(scalar));
    bool wide = width > 1 && aligned_to(place.x, bytes) && place.rows == Group::rows && place.run == Group::run;
    if constexpr (Group::run > 1)
        wide = wide && place.x_inner % width == 0 && (Group::inputs == 1 || place.x_row_stride % width == 0);
    else if constexpr (Group::rows > 1)
        wide = wide && (whole_rows ? place.x_row_stride == row_count : place.x_row_stride % width == 0);
    if (width > 1 && wide) {
        if constexpr (whole_rows && !Group::swizzled) {  // one stretch on both sides: no index is taken apart
#pragma unroll 4
            for (unsigned element = threadIdx.x * width; element < unsigned(Group::rows * row_count);
                 element += Group::threads * width)
                copy_async<bytes>(sPart + element, place.x + element);
        } else
            load_pieces<Group, parts, width>(place, sPart, part);
    } else if constexpr (sizeof(scalar) <= 16)
        load_pieces<Group, parts, 1>(place, sPart, part);
}

// The lines of what load_part will copy begin to travel to L2.
template <class Group>
__device__ __forceinline__ void ask_for_part(const tile_place<typename Group::storage>& place, int part) {
    static_assert(Group::segments == 1 && Group::inputs == 1 && !Group::swizzled);
    constexpr int line = 128 / int(sizeof(typename Group::storage)), count = Group::count_p() / Group::cluster;
    if constexpr (Group::run > 1) {
        static_assert(Group::cluster == 1);
        constexpr int each = (Group::run + line - 1) / line, runs = Group::rows * count;
        if (place.x_inner == Group::run) {  // one stretch, of which a line may have several runs
            for (unsigned at = threadIdx.x * line; at < unsigned(runs * Group::run); at += Group::threads * line)
                prefetch_line(place.x + at);
        } else
            for (unsigned i = threadIdx.x; i < unsigned(runs * each); i += Group::threads) {
                const int within = int(i % unsigned(each)) * line;
                if (within < place.run) prefetch_line(place.x + i / unsigned(each) * place.x_inner + within);
            }
    } else {
        constexpr int each = (count + line - 1) / line;
        for (unsigned i = threadIdx.x; i < unsigned(Group::rows * each); i += Group::threads) {
            const int row = int(i / unsigned(each));
            if (row < place.rows)
                prefetch_line(place.x + row * place.x_row_stride + part * count + i % unsigned(each) * line);
        }
    }
}

// 16-bit elements. The tile's X -> sRaw, densely, as it stands in memory: (Rows, P_1, .., P_n, Run); 0 where there is nothing.
template <class Group>
__device__ __forceinline__ void load_raw(const tile_place<typename Group::storage>& place,
                                         typename Group::storage* sRaw) {
    using storage = typename Group::storage;
    constexpr int row_count = Group::count_p(), all = Group::rows * row_count * Group::run;
    constexpr auto widest_of = [](int n) { return n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1; };
    // One stretch on both sides, else stretches of a row or of a run.
    constexpr int stretch = Group::run > 1 ? Group::run : row_count, whole = Group::run > 1 ? 1 : widest_of(all),
                  width = widest_of(stretch);
    const bool complete = place.rows == Group::rows && place.run == Group::run;
    const index_t outside = Group::run > 1 ? place.x_inner : place.x_row_stride;  // from stretch to stretch
    if (whole > 1 && complete && (Group::rows == 1 || outside == row_count) && aligned_to(place.x, 2 * whole)) {
#pragma unroll 4
        for (unsigned element = threadIdx.x * whole; element < unsigned(all); element += Group::threads * whole)
            copy_async<2 * (whole > 1 ? whole : 2)>(sRaw + element, place.x + element);
    } else if (width > 1 && complete && outside % width == 0 && aligned_to(place.x, 2 * width)) {
#pragma unroll 4
        for (unsigned element = threadIdx.x * width; element < unsigned(all); element += Group::threads * width)
            copy_async<2 * (width > 1 ? width : 2)>(
                sRaw + element, place.x + index_t(element / unsigned(stretch)) * outside + element % unsigned(stretch));
    } else {
#pragma unroll 4
        for (unsigned element = threadIdx.x; element < unsigned(all); element += Group::threads) {
            const int line = int(element / unsigned(stretch)), within = int(element % unsigned(stretch));
            const bool exists = Group::run > 1 ? within < place.run : line < place.rows;
            sRaw[element] = exists ? place.x[line * outside + within] : storage{0};
        }
    }
}

// Width neighbouring 16-bit elements as floats.
template <class Storage, int Width>
__device__ __forceinline__ void read_widened(const Storage* s, float (&rX)[Width]) {
    alignas(2 * Width) Storage raw[Width];  // (Width)
    if constexpr (Width > 1)
        *reinterpret_cast<packet<2 * Width>*>(raw) = *reinterpret_cast<const packet<2 * Width>*>(s);
    else
        raw[0] = s[0];
#pragma unroll
    for (int e = 0; e < Width; ++e) rX[e] = widen<float>(raw[e]);
}

// sRaw -> sTile as floats, where the trips want them.
template <class Group>
__device__ __forceinline__ void widen_tile(const typename Group::storage* sRaw, float* sTile) {
    using storage = typename Group::storage;
    constexpr int all = Group::rows * Group::count_p() * Group::run;
    constexpr int width = Group::rows_contiguous(0) && !Group::swizzled ? Group::widest_stretch(all)
                                                                        : Group::widest(0, Group::contiguous(0));
    const auto widen_piece = [&](int offset, index_t from) {
        alignas(16) float rX[width];  // (width)
        read_widened(sRaw + from, rX);
        *reinterpret_cast<packet<4 * width>*>(sTile + offset) = *reinterpret_cast<const packet<4 * width>*>(rX);
    };
    if constexpr (width > 1 && digits_apart<Group, 0>() && all / width % Group::threads == 0)
        for_pieces_apart<Group, 0, 1, width, all>([](unsigned element) -> index_t { return element; }, widen_piece);
    else {
#pragma unroll 4
        for (unsigned element = threadIdx.x * width; element < unsigned(all); element += Group::threads * width)
            widen_piece(Group::swizzled ? Group::place(int(element))
                                        : tile_offset<Group, 0, 1, 0, Group::run_level>(int(element)),
                        index_t(element));
    }
}

// X of the tile that comes after the one at work, in groups that refill (mode_group.cuh); none where there is no such tile, or where it
// cannot be read by whole accesses.
template <class Group>
struct next_tile {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    const storage* x;

    __device__ __forceinline__ next_tile(const tile_place<storage>& next, bool exists)
        : x(exists && next.rows == Group::rows && next.run == Group::run && aligned_to(next.x, 16) &&
                    (Group::run > 1    ? next.x_inner
                     : Group::rows > 1 ? next.x_row_stride
                                       : 0) %
                            Group::vector ==
                        0
                ? next.x
                : nullptr) {}
    __device__ __forceinline__ bool refills() const { return x != nullptr; }

    // Count words of Width elements -> to(0), to(1), ..: in row `row`, inner index i of the last trip (`below` indices of modes under it),
    // the trip's indices first, first + step, ... `place`: of the tile at work, which has the same strides.
    template <int Count, int Width, class To>
    __device__ __forceinline__ void fetch(const tile_place<storage>& place, int row, int i, int below, int first,
                                          int step, const To& to) const {
        const storage* gX = x;
        index_t each = below;
        if constexpr (Group::run > 1) {
            const int f = int(unsigned(i) / unsigned(Group::run)), s = int(unsigned(i) % unsigned(Group::run));
            each = index_t(below) * place.x_inner;
            gX += index_t(row * Group::count_p() + f) * place.x_inner + s;
        } else
            gX += row * place.x_row_stride + i;
        gX += first * each;
        each *= step;
#pragma unroll
        for (int k = 0; k < Count; ++k) {
            copy_async<Width* int(sizeof(scalar))>(to(k), gX);
            gX += each;
        }
    }
};
// The same of groups that rotate: the second half of mode 1 is sent for, in the place of the first half of the tile at work, whose own second
// half stands `gap` elements behind where it would follow.
template <class Group>
struct next_half : next_tile<Group> {
    int gap;

    __device__ __forceinline__ next_half(const tile_place<typename Group::storage>& next, bool exists, int gap_)
        : next_tile<Group>(next, exists), gap(gap_) {}
};
struct no_next_tile {};

}  // namespace otimes::kernels
