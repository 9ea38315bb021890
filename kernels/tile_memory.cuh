// SPDX-License-Identifier: MIT
// The two faces of a tile: device memory -> shared memory (asynchronous) and back.
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
template <class Scalar>
struct group_arguments {
    const Scalar* x;
    Scalar* y;
    const Scalar* factor[max_modes];
    index_t factor_p_stride[max_modes];
    index_t factor_q_stride[max_modes];
    Scalar alpha, beta;
    index_t lines;           // rows of X, or batch entries
    index_t parts_per_line;  // consecutive tensors in one line
    index_t x_line_stride, y_line_stride;
    index_t inner;             // outer groups: elements below the group's modes
    index_t x_inner, y_inner;  // outer groups: stride of the group's linear index (inner, when nothing is skipped)
    index_t c_offset;          // where C stands from Y, elements; 0: C is Y
    Scalar more_alpha[max_terms - 1];  // of the terms after the first
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
template <class Scalar>
struct tile_place {
    const Scalar* x;
    Scalar* y;
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
__device__ __forceinline__ void load_pieces(const tile_place<typename Group::scalar>& place,
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
__device__ __forceinline__ void load_part(const tile_place<typename Group::scalar>& place,
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

// X of the tile that comes after the one at work, in groups that refill (mode_group.cuh); none where there is no such tile, or where it
// cannot be read by whole accesses.
template <class Group>
struct next_tile {
    using scalar = typename Group::scalar;
    const scalar* x;

    __device__ __forceinline__ next_tile(const tile_place<scalar>& next, bool exists)
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
    __device__ __forceinline__ void fetch(const tile_place<scalar>& place, int row, int i, int below, int first,
                                          int step, const To& to) const {
        const scalar* gX = x;
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

    __device__ __forceinline__ next_half(const tile_place<typename Group::scalar>& next, bool exists, int gap_)
        : next_tile<Group>(next, exists), gap(gap_) {}
};
struct no_next_tile {};

// Where the matrix stands that is added: at c_offset from Y, or (not Addend) it is Y.
template <bool Addend>
struct addend_place {
    index_t c_offset;
};
template <>
struct addend_place<false> {
    static constexpr index_t c_offset = 0;
};

// Together: several pieces of what is added are read before the first of them is stored.
template <class Scalar, bool Addend, bool Together>
struct epilogue : addend_place<Addend> {
    static constexpr bool reads_beside = false;
    using addend_place<Addend>::c_offset;
    Scalar alpha, beta;
    bool reads_y;  // beta != 0
    bool wide;     // 16-byte stores allowed: Y's base and strides, and C's, are multiples of 16 bytes

    __device__ __forceinline__ epilogue(Scalar alpha_, Scalar beta_, bool wide_, index_t offset)
        : alpha(alpha_), beta(beta_), reads_y(!is_zero(beta_)), wide(wide_) {
        if constexpr (Addend) this->c_offset = offset;
    }

    // Double: alpha = 1 and nothing is added, so that nothing queues for the unit of double precision behind the matrix unit's products.
    __device__ __forceinline__ bool plain() const {
        if constexpr (is_same<Scalar, double>)
            return !reads_y && __double_as_longlong(alpha) == 0x3ff0000000000000ll;
        else
            return false;
    }

    __device__ __forceinline__ void store(Scalar* gY, Scalar value) const {
        value = alpha * value;
        if (reads_y) value += beta * gY[c_offset];
        *gY = value;
    }
    // K pieces of Count neighbouring elements: to(k) says where, value(k, e) which; of each the first `left` exist. For the compiler
    // what is stored and what is added may overlap, so that it waits for each piece unless they are read together; where
    // registers are short that spills.
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void store_all(const To& to, const Value& value, int left = Count) const {
        if constexpr (!Together) {
            if (Count == 1 && !reads_y) {  // the usual case, asked once
#pragma unroll
                for (int k = 0; k < K; ++k) *to(k) = alpha * value(k, 0);
                return;
            }
#pragma unroll
            for (int k = 0; k < K; ++k) {
                alignas(16) Scalar rY[Count];  // (Count)
#pragma unroll
                for (int e = 0; e < Count; ++e) rY[e] = value(k, e);
                Scalar* gY = to(k);
                if (Count > 1 && left >= Count)
                    store_vector(gY, rY, true);
                else
#pragma unroll
                    for (int e = 0; e < Count; ++e)
                        if (Count == 1 || e < left) store(gY + e, rY[e]);
            }
            return;
        }
        if (Count > 1 && left < Count) {
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) store(to(k) + e, value(k, e));
            return;
        }
        constexpr int size = Count * int(sizeof(Scalar)), most = 128 / size < 1 ? 1 : 128 / size,
                      together = K < most ? K : most;
        constexpr bool has_packets = size == 16 || size == 8;
        using word = packet<has_packets ? size : int(sizeof(Scalar))>;
        union piece {
            word bits;
            Scalar element[Count];
            __device__ __forceinline__ piece() {}
        };
        const bool whole = has_packets && wide;
        // Few pieces alone: for more there are no registers to spare for another way.
        if (is_same<Scalar, double> && K * Count <= 4 && whole && plain()) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                piece out;
#pragma unroll
                for (int e = 0; e < Count; ++e) out.element[e] = value(k, e);
                *reinterpret_cast<word*>(to(k)) = out.bits;
            }
            return;
        }
        if (!reads_y) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                Scalar* gY = to(k);
                piece out;
#pragma unroll
                for (int e = 0; e < Count; ++e) out.element[e] = alpha * value(k, e);
                if (whole)
                    *reinterpret_cast<word*>(gY) = out.bits;
                else
#pragma unroll
                    for (int e = 0; e < Count; ++e) gY[e] = out.element[e];
            }
            return;
        }
#pragma unroll
        for (int first = 0; first < K; first += together) {
            piece out[together];
            if (whole) {
#pragma unroll
                for (int k = 0; k < together; ++k)
                    if (first + k < K) out[k].bits = *reinterpret_cast<const word*>(to(first + k) + c_offset);
            } else
#pragma unroll
                for (int k = 0; k < together; ++k)
                    if (first + k < K)
#pragma unroll
                        for (int e = 0; e < Count; ++e) out[k].element[e] = to(first + k)[c_offset + e];
#pragma unroll
            for (int k = 0; k < together; ++k)
                if (first + k < K)
#pragma unroll
                    for (int e = 0; e < Count; ++e)
                        out[k].element[e] = alpha * value(first + k, e) + beta * out[k].element[e];
            if (whole) {
#pragma unroll
                for (int k = 0; k < together; ++k)
                    if (first + k < K) *reinterpret_cast<word*>(to(first + k)) = out[k].bits;
            } else
#pragma unroll
                for (int k = 0; k < together; ++k)
                    if (first + k < K)
#pragma unroll
                        for (int e = 0; e < Count; ++e) to(first + k)[e] = out[k].element[e];
        }
    }
    // Count neighbouring elements; 8 or 16 bytes at once where that is allowed.
    template <int Count>
    __device__ __forceinline__ void store_vector(Scalar* gY, const Scalar (&values)[Count], bool whole) const {
        constexpr int size = Count * int(sizeof(Scalar));
        if constexpr (size == 16 || size == 8) {
            if (whole && wide) {
                union {
                    packet<size> bits;
                    Scalar element[Count];
                } out;
                if (reads_y) {
                    out.bits = *reinterpret_cast<const packet<size>*>(gY + c_offset);
#pragma unroll
                    for (int e = 0; e < Count; ++e) out.element[e] = alpha * values[e] + beta * out.element[e];
                } else {
#pragma unroll
                    for (int e = 0; e < Count; ++e) out.element[e] = alpha * values[e];
                }
                *reinterpret_cast<packet<size>*>(gY) = out.bits;
                return;
            }
        }
#pragma unroll
        for (int e = 0; e < Count; ++e) store(gY + e, values[e]);
    }
};

template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_stored, Addend, Together, Registers> {
    using type = epilogue<Scalar, Addend, Together>;
};

// The wide type in which sums are computed.
template <class Scalar>
struct sum_type {
    using type = double;
};
template <class Real>
struct sum_type<complex<Real>> {
    using type = complex<double>;
};

// What stands beside K pieces of Count neighbouring products: V's elements, or D's.
template <class Scalar, int K, int Count>
struct beside {
    alignas(16) Scalar value[K][Count];  // (piece, element)
};
// The same, read before the products are known, where that takes whole accesses alone. One place in the program writes the values: where
// two ways of reading meet, the compiler copies registers and waits for both.
template <class Scalar, int K, int Count>
struct beside_early : beside<Scalar, K, Count> {
    bool there;
};

// Pieces whose neighbours are read together where nothing was read ahead: as many as registers are left for, 64 to 256 bytes.
__host__ __device__ constexpr int pieces_together(int pieces, int piece_words, int registers) {
    const int left = registers - 72 - pieces * piece_words, words = left < 16 ? 16 : left > 64 ? 64 : left;
    int together = words / piece_words < 1 ? 1 : words / piece_words < pieces ? words / piece_words : pieces;
    while (pieces % together) --together;
    return together;
}

// How early a trip reads what stands beside its products: 2: during the round before, 1: before the round's products, 0: after them. `words` of a
// thread and round; `others`: registers that the trip takes.
template <class Group>
__host__ __device__ constexpr int read_ahead(int words, int others, int rounds) {
    if (!Group::last_step::reads_beside) return 0;
    const int left = Group::registers - others;
    return rounds > 1 && 2 * words <= left ? 2 : words <= left ? 1 : 0;
}

// Steps that read what stands beside the products: Step::read<K, Count>(to, left, r), then Step::finish<K, Count>(to, value, left, r);
// early: read_early, then finish_early. Step::whole<K, Count>(to, left) says whether whole accesses do, read_whole and finish_whole
// then read and finish.
template <class Scalar, class Step, int Registers>
struct reading_step {
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void store_all(const To& to, const Value& value, int left = Count) const {
        const Step& step = *static_cast<const Step*>(this);
        constexpr int together = pieces_together(K, Count * int(sizeof(Scalar)) / 4, Registers);
#pragma unroll
        for (int first = 0; first < K; first += together) {
            beside<Scalar, together, Count> r;
            const auto to_these = [&](int k) { return to(first + k); };
            step.read(to_these, left, r);
            step.finish(
                to_these, [&](int k, int e) { return value(first + k, e); }, left, r);
        }
    }
    template <int K, int Count, class To>
    __device__ __forceinline__ void read_early(bool exists, const To& to, int left,
                                               beside_early<Scalar, K, Count>& r) const {
        const Step& step = *static_cast<const Step*>(this);
        r.there = exists && step.template whole<K, Count>(to, left);
        if (r.there) step.read_whole(to, r);
    }
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void finish_early(const To& to, const Value& value, int left,
                                                 const beside_early<Scalar, K, Count>& r) const {
        if (r.there)
            static_cast<const Step*>(this)->finish_whole(to, value, r);
        else
            store_all<K, Count>(to, value, left);
    }
    template <int Count>
    __device__ __forceinline__ void store_vector(Scalar* gY, const Scalar (&values)[Count], bool) const {
        store_all<1, Count>([&](int) { return gY; }, [&](int, int e) { return values[e]; });
    }
    __device__ __forceinline__ void store(Scalar* gY, Scalar value) const {
        store_all<1, 1>([&](int) { return gY; }, [&](int, int) { return value; });
    }
};

// Count neighbouring elements as one access, where there is one of that size.
template <class Scalar, int Count>
constexpr bool is_packet = Count > 1 && (Count * int(sizeof(Scalar)) == 16 || Count * int(sizeof(Scalar)) == 8);
template <class Scalar, int Count, bool Packet = is_packet<Scalar, Count>>
struct word_type {
    using type = packet<Count* int(sizeof(Scalar))>;
};
template <class Scalar, int Count>
struct word_type<Scalar, Count, false> {
    using type = Scalar;
};
template <class Scalar, int Count>
using word_of = typename word_type<Scalar, Count>::type;

// alpha * product times the element of V that stands in its place, added to this thread's sum: up to four neighbours in Scalar, then in
// the wide type. In memory nothing changes.
template <class Scalar>
struct adder {
    using wide_type = typename sum_type<Scalar>::type;
    static constexpr int words = int(sizeof(Scalar)) / 4;
    wide_type* sum;
    // `count` products, of which term(i) is one.
    template <int Count, class Term>
    __device__ __forceinline__ void add(const Term& term) const {
        constexpr int narrow_terms = words == 1 ? 4 : is_same<Scalar, complex<float>> ? 2 : 1;
#pragma unroll
        for (int first = 0; first < Count; first += narrow_terms) {
            Scalar few = term(first);
#pragma unroll
            for (int i = first + 1; i < first + narrow_terms && i < Count; ++i) few = few + term(i);
            *sum += widen<wide_type>(few);
        }
    }
};

template <class Scalar, int Registers>
struct summing : reading_step<Scalar, summing<Scalar, Registers>, Registers>, adder<Scalar> {
    using wide_type = typename sum_type<Scalar>::type;
    static constexpr bool reads_beside = true;
    static constexpr index_t c_offset = 0;
    bool wide;       // V may be read by 16 bytes
    bool conjugate;  // V's conjugate

    __device__ __forceinline__ summing(wide_type& sum_, bool wide_, bool conjugate_)
        : adder<Scalar>{&sum_}, wide(wide_), conjugate(conjugate_) {}

    __device__ __forceinline__ Scalar times(Scalar v, Scalar value) const {
        if constexpr (is_same<Scalar, float> || is_same<Scalar, double>)
            return v * value;
        else
            return (conjugate ? otimes::kernels::conjugate(v) : v) * value;
    }
    template <int K, int Count, class To>
    __device__ __forceinline__ bool whole(const To&, int left) const {
        return Count == 1 || (is_packet<Scalar, Count> && wide && left >= Count);
    }
    template <int K, int Count, class To>
    __device__ __forceinline__ void read_whole(const To& to, beside<Scalar, K, Count>& r) const {
        using word = word_of<Scalar, Count>;
#pragma unroll
        for (int k = 0; k < K; ++k)
            *reinterpret_cast<word*>(r.value[k]) = read_only(reinterpret_cast<const word*>(to(k)));
    }
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void finish_whole(const To&, const Value& value,
                                                 const beside<Scalar, K, Count>& r) const {
        this->template add<K * Count>(
            [&](int i) { return times(r.value[i / Count][i % Count], value(i / Count, i % Count)); });
    }
    template <int K, int Count, class To>
    __device__ __forceinline__ void read(const To& to, int left, beside<Scalar, K, Count>& r) const {
        if (whole<K, Count>(to, left))
            read_whole(to, r);
        else
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) r.value[k][e] = to(k)[e];
    }
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void finish(const To& to, const Value& value, int left,
                                           const beside<Scalar, K, Count>& r) const {
        if (Count > 1 && left < Count) {
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) this->template add<1>([&](int) { return times(r.value[k][e], value(k, e)); });
        } else
            finish_whole(to, value, r);
    }
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_in_dot, Addend, Together, Registers> {
    using type = summing<Scalar, Registers>;
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_in_dot_of_pieces, Addend, Together, Registers> {
    using type = summing<Scalar, Registers>;
};

// alpha * product, conjugated times itself, added to this thread's sum, likewise.
template <class Scalar>
struct squaring : adder<Scalar> {
    using wide_type = typename sum_type<Scalar>::type;
    static constexpr bool reads_beside = false;
    static constexpr index_t c_offset = 0;
    bool wide;

    __device__ __forceinline__ squaring(wide_type& sum_, bool wide_, bool) : adder<Scalar>{&sum_}, wide(wide_) {}

    static __device__ __forceinline__ Scalar square(Scalar value) { return conjugate(value) * value; }
    __device__ __forceinline__ void store(Scalar*, Scalar value) const {
        this->template add<1>([&](int) { return square(value); });
    }
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void store_all(const To&, const Value& value, int left = Count) const {
        if (Count > 1 && left < Count) {
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) store(nullptr, value(k, e));
            return;
        }
        this->template add<K * Count>([&](int i) { return square(value(i / Count, i % Count)); });
    }
    template <int Count>
    __device__ __forceinline__ void store_vector(Scalar*, const Scalar (&values)[Count], bool) const {
        this->template add<Count>([&](int e) { return square(values[e]); });
    }
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_in_norm, Addend, Together, Registers> {
    using type = squaring<Scalar>;
};

// alpha * product * D[..] -> Y.
template <class Scalar, bool Along, int Registers>
struct scaling : reading_step<Scalar, scaling<Scalar, Along, Registers>, Registers> {
    static constexpr bool reads_beside = true;
    static constexpr index_t c_offset = 0;
    const Scalar* y;
    const Scalar* d;
    Scalar alpha;
    unsigned divisor, magic;
    int shift;
    bool wide, d_wide;  // 16-byte accesses of Y; of D

    __device__ __forceinline__ scaling(const group_arguments<Scalar>& arguments, bool wide_)
        : y(arguments.y),
          d(static_cast<const Scalar*>(arguments.sums_or_d)),
          alpha(arguments.alpha),
          divisor(arguments.divisor),
          magic(arguments.magic),
          shift(arguments.shift),
          wide(wide_),
          d_wide(aligned_to(arguments.y, 16) && aligned_to(arguments.sums_or_d, 16) &&
                 arguments.divisor % unsigned(16 / int(sizeof(Scalar))) == 0) {}

    // Index u of Y = quotient * divisor + rest.
    __device__ __forceinline__ unsigned quotient_of(unsigned u) const { return __umulhi(u, magic) >> shift; }
    // Along: the element of D for this place in Y.
    __device__ __forceinline__ unsigned element_of(const Scalar* gY) const {
        const unsigned u = unsigned(gY - y);
        return u - quotient_of(u) * divisor;
    }

    // to(k) grows with k. Pieces between two multiples of the divisor, as good as all of them, need one division.
    template <int K, int Count, class To>
    __device__ __forceinline__ bool whole(const To& to, int left) const {
        const unsigned first = unsigned(to(0) - y), end = unsigned(to(K - 1) - y) + Count;
        return end - quotient_of(first) * divisor <= divisor && left >= Count &&
               (Count == 1 || (is_packet<Scalar, Count> && wide && (d_wide || !Along)));
    }
    template <int K, int Count, class To>
    __device__ __forceinline__ void read_whole(const To& to, beside<Scalar, K, Count>& r) const {
        if constexpr (Along) {
            using word = word_of<Scalar, Count>;
            const Scalar* const gD = d + element_of(to(0));
#pragma unroll
            for (int k = 0; k < K; ++k)
                *reinterpret_cast<word*>(r.value[k]) = read_only(reinterpret_cast<const word*>(gD + (to(k) - to(0))));
        } else {
            const Scalar one = read_only(d + quotient_of(unsigned(to(0) - y)));
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e) r.value[k][e] = one;
        }
    }
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void finish_whole(const To& to, const Value& value,
                                                 const beside<Scalar, K, Count>& r) const {
        using word = word_of<Scalar, Count>;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            beside<Scalar, 1, Count> out;
#pragma unroll
            for (int e = 0; e < Count; ++e) out.value[0][e] = alpha * value(k, e) * r.value[k][e];
            *reinterpret_cast<word*>(to(k)) = *reinterpret_cast<const word*>(out.value[0]);
        }
    }
    template <int K, int Count, class To>
    __device__ __forceinline__ void read(const To& to, int left, beside<Scalar, K, Count>& r) const {
        if (whole<K, Count>(to, left))
            read_whole(to, r);
        else
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) {
                        const unsigned u = unsigned(to(k) - y) + e, of_u = quotient_of(u);
                        r.value[k][e] = read_only(d + (Along ? u - of_u * divisor : of_u));
                    }
    }
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void finish(const To& to, const Value& value, int left,
                                           const beside<Scalar, K, Count>& r) const {
        if (left >= Count && (Count == 1 || (is_packet<Scalar, Count> && wide)))
            finish_whole(to, value, r);
        else
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) to(k)[e] = alpha * value(k, e) * r.value[k][e];
    }
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_scaled_along, Addend, Together, Registers> {
    using type = scaling<Scalar, true, Registers>;
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_scaled_across, Addend, Together, Registers> {
    using type = scaling<Scalar, false, Registers>;
};

// The sum of one thread of a group that sums up; nothing in other groups.
template <class Scalar, bool SumsUp>
struct own_sum {};
template <class Scalar>
struct own_sum<Scalar, true> {
    typename sum_type<Scalar>::type value{0.};
};

template <class Group>
__device__ __forceinline__ typename Group::last_step last_step_for(
    const group_arguments<typename Group::scalar>& arguments, bool y_wide,
    own_sum<typename Group::scalar, Group::sums_up>& sum) {
    using type = typename Group::last_step;
    if constexpr (Group::sums_up)
        return type(sum.value, y_wide, arguments.conjugate_y);
    else if constexpr (Group::ending != ends_stored)
        return type(arguments, y_wide);
    else
        return type(arguments.alpha, arguments.beta, y_wide, arguments.c_offset);
}

// The sums of all threads, added by a tree, times alpha (or its square) -> the block's place. `shared` is free for it after a barrier.
template <class Group>
__device__ __forceinline__ void store_sum(typename sum_type<typename Group::scalar>::type value,
                                          const group_arguments<typename Group::scalar>& arguments, void* shared) {
    using scalar = typename Group::scalar;
    using wide = typename sum_type<scalar>::type;
    constexpr int warps = Group::threads / 32;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        if constexpr (is_same<wide, double>)
            value += __shfl_down_sync(0xffffffffu, value, distance);
        else
            value += wide(__shfl_down_sync(0xffffffffu, value.re, distance),
                          __shfl_down_sync(0xffffffffu, value.im, distance));
    }
    wide* sSums = static_cast<wide*>(shared);
    if constexpr (Group::shared_bytes < warps * int(sizeof(wide))) {
        __shared__ __align__(16) unsigned char enough[warps * sizeof(wide)];
        sSums = reinterpret_cast<wide*>(enough);
    }
    __syncthreads();
    if (threadIdx.x % 32u == 0) sSums[threadIdx.x / 32u] = value;
    __syncthreads();
    if (threadIdx.x != 0) return;
    wide all = sSums[0];
#pragma unroll 1
    for (int w = 1; w < warps; ++w) all += sSums[w];
    const wide alpha = widen<wide>(arguments.alpha);
    wide* const gSums = static_cast<wide*>(arguments.sums_or_d);
    gSums[blockIdx.x] = (Group::ending == ends_in_norm ? otimes::kernels::conjugate(alpha) * alpha : alpha) * all;
    for (unsigned b = blockIdx.x + gridDim.x; b < arguments.divisor; b += gridDim.x) gSums[b] = wide(0.);
}

// The lines of a tile's V begin to travel to L2 when its X has come, so that they are near when the last trip wants them and do not stand in X's way.
template <class Group>
__device__ __forceinline__ void ask_for_tile(const tile_place<typename Group::scalar>& place) {
    if constexpr (Group::reads_y && Group::slices == 1) {
        using scalar = typename Group::scalar;
        constexpr int line = 128 / int(sizeof(scalar));
        const unsigned rank = Group::cluster > 1 ? unsigned(cluster_rank()) : 0u;
        if constexpr (Group::run > 1) {
            constexpr int each = (Group::run + line - 1) / line, lines = Group::rows * Group::count_q() * each;
            for (unsigned i = rank * Group::threads + threadIdx.x; i < unsigned(lines);
                 i += Group::threads * Group::cluster) {
                const int within = int(i % unsigned(each)) * line;
                if (within < place.run) prefetch_line(place.y + i / unsigned(each) * place.y_inner + within);
            }
        } else {
            constexpr int each = (Group::count_q() + line - 1) / line, lines = Group::rows * each;
            for (unsigned i = rank * Group::threads + threadIdx.x; i < unsigned(lines);
                 i += Group::threads * Group::cluster) {
                const int row = int(i / unsigned(each));
                if (row < place.rows) prefetch_line(place.y + row * place.y_row_stride + i % unsigned(each) * line);
            }
        }
    }
}

// The finished tile -> Y, for groups whose last trip leaves runs too short to store directly.
template <class Group, int Width>
__device__ __forceinline__ void store_pieces(const tile_place<typename Group::scalar>& place,
                                             const typename Group::scalar* sTile,
                                             const typename Group::last_step& last) {
    using scalar = typename Group::scalar;
    constexpr int done = Group::steps::count;
    constexpr int row_count = Group::count_q();
    constexpr int pieces = Group::rows * row_count * Group::run / Width;
    if constexpr (Width > 1 && digits_apart<Group, done>() && pieces % Group::threads == 0) {  // whole tiles only
        for_pieces_apart<Group, done, 1, Width, pieces * Width>(
            [&](unsigned element) -> index_t {
                if constexpr (Group::run > 1)
                    return index_t(element / unsigned(Group::run)) * place.y_inner + element % unsigned(Group::run);
                else
                    return Group::rows == 1 ? index_t(element)
                                            : index_t(element / unsigned(row_count)) * place.y_row_stride +
                                                  element % unsigned(row_count);
            },
            [&](int offset, index_t to) {
                scalar rY[Width];  // (Width)
                *reinterpret_cast<packet<Width* int(sizeof(scalar))>*>(rY) =
                    *reinterpret_cast<const packet<Width* int(sizeof(scalar))>*>(sTile + offset);
                last.store_vector(place.y + to, rY, true);
            });
    } else {
#pragma unroll 4
        for (unsigned piece = threadIdx.x; piece < unsigned(pieces); piece += Group::threads) {
            const unsigned element = piece * Width;
            scalar* gY;
            bool exists;
            if constexpr (Group::run > 1) {
                const int f = int(element / unsigned(Group::run)), s = int(element % unsigned(Group::run));
                gY = place.y + f * place.y_inner + s;
                exists = s < place.run;
            } else {
                const int row = int(element / unsigned(row_count)), rest = int(element % unsigned(row_count));
                gY = place.y + row * place.y_row_stride + Group::sliced_offset(rest);
                exists = row < place.rows;
            }
            if (exists) {
                const int offset = Group::swizzled ? Group::place(int(element))
                                                   : tile_offset<Group, done, 1, 0, Group::run_level>(int(element));
                scalar rY[Width];  // (Width)
                if constexpr (Width > 1)
                    *reinterpret_cast<packet<Width* int(sizeof(scalar))>*>(rY) =
                        *reinterpret_cast<const packet<Width* int(sizeof(scalar))>*>(sTile + offset);
                else
                    rY[0] = sTile[offset];
                last.store_vector(gY, rY, true);
            }
        }
    }
}

template <class Group>
__device__ __forceinline__ void store_tile(const tile_place<typename Group::scalar>& place,
                                           const typename Group::scalar* sTile, const typename Group::last_step& last) {
    constexpr int done = Group::steps::count;
    constexpr int row_count = Group::count_q();
    constexpr bool whole_rows = Group::rows_contiguous(done);
    constexpr int width =
        whole_rows ? Group::widest_stretch(Group::rows * row_count) : Group::widest(done, Group::contiguous(done));
    bool wide = width == Group::vector && aligned_to(place.y, 16) && place.rows == Group::rows &&
                place.run == Group::run && last.c_offset % Group::vector == 0;
    if constexpr (Group::run > 1)
        wide = wide && place.y_inner % width == 0;
    else if constexpr (Group::rows > 1)
        wide = wide && (whole_rows ? place.y_row_stride == row_count : place.y_row_stride % width == 0);
    if constexpr (Group::slices > 1)
        store_pieces<Group, 1>(place, sTile, last);
    else if (width > 1 && wide) {
        typename Group::last_step aligned = last;
        aligned.wide = true;
        if constexpr (whole_rows && !Group::swizzled) {
            using scalar = typename Group::scalar;
            constexpr int bytes = width * int(sizeof(scalar));
#pragma unroll 4
            for (unsigned element = threadIdx.x * width; element < unsigned(Group::rows * row_count);
                 element += Group::threads * width) {
                alignas(16) scalar rY[width];  // (width)
                *reinterpret_cast<packet<bytes>*>(rY) = *reinterpret_cast<const packet<bytes>*>(sTile + element);
                aligned.store_vector(place.y + element, rY, true);
            }
        } else
            store_pieces<Group, width>(place, sTile, aligned);
    } else
        store_pieces<Group, 1>(place, sTile, last);
}

// The elements of the finished tile that a thread adds up over several terms, in registers, and stores.
template <class Group>
struct own_elements {
    using scalar = typename Group::scalar;
    static constexpr int done = Group::steps::count, row_count = Group::count_q(), count = Group::rows * row_count;
    static constexpr int width =
        Group::rows_contiguous(done) ? Group::widest_stretch(row_count) : Group::widest(done, Group::contiguous(done));
    static constexpr int each = (count / width + Group::threads - 1) / Group::threads;  // pieces of a thread
    scalar rSum[each][width];                                                           // (piece, element)

    static __device__ __forceinline__ int element_of(int piece) {
        return (int(threadIdx.x) + piece * Group::threads) * width;
    }
    static __device__ __forceinline__ bool has(int piece) {
        return count / width % Group::threads == 0 || element_of(piece) < count;
    }

    // rSum (+)= alpha * tile.
    template <bool First>
    __device__ __forceinline__ void add(const scalar* sTile, scalar alpha) {
        using word = packet<width* int(sizeof(scalar))>;
#pragma unroll
        for (int i = 0; i < each; ++i)
            if (has(i)) {
                const int element = element_of(i),
                          offset = Group::swizzled ? Group::place(element)
                                                   : tile_offset<Group, done, 1, 0, Group::run_level>(element);
                alignas(16) scalar rTile[width];
                *reinterpret_cast<word*>(rTile) = *reinterpret_cast<const word*>(sTile + offset);
#pragma unroll
                for (int e = 0; e < width; ++e) rSum[i][e] = First ? alpha * rTile[e] : rSum[i][e] + alpha * rTile[e];
            }
    }

    // last.wide: where the rows of Y allow it, too.
    __device__ __forceinline__ void store(const tile_place<scalar>& place,
                                          const typename Group::last_step& last) const {
        const auto to = [&](int i) {
            const int element = element_of(i);
            return place.y + int(unsigned(element) / unsigned(row_count)) * place.y_row_stride +
                   int(unsigned(element) % unsigned(row_count));
        };
        if (count / width % Group::threads == 0 && place.rows == Group::rows)
            last.template store_all<each, width>(to, [&](int i, int e) { return rSum[i][e]; });
        else
#pragma unroll
            for (int i = 0; i < each; ++i)
                if (has(i) && int(unsigned(element_of(i)) / unsigned(row_count)) < place.rows)
                    last.template store_all<1, width>([&](int) { return to(i); },
                                                      [&](int, int e) { return rSum[i][e]; });
    }
};

}  // namespace otimes::kernels
