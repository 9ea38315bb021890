// SPDX-License-Identifier: MIT
// What becomes of the products of a last trip (`ending` of endings.cuh): stored, with beta * Y or a matrix that stands elsewhere; multiplied
// by what stands in their place, or squared, and summed; multiplied by a diagonal and stored.
#pragma once
#include "tile_memory.cuh"

namespace otimes::kernels {

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
    // As store_all, of whole pieces; what is the same for all of them, the usual case, is asked once.
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void store_many(const To& to, const Value& value) const {
        constexpr int size = Count * int(sizeof(Scalar));
        if constexpr (size == 16 || size == 8)
            if (wide && !reads_y) {
#pragma unroll
                for (int k = 0; k < K; ++k) {
                    union {
                        packet<size> bits;
                        Scalar element[Count];
                    } out;
#pragma unroll
                    for (int e = 0; e < Count; ++e) out.element[e] = alpha * value(k, e);
                    *reinterpret_cast<packet<size>*>(to(k)) = out.bits;
                }
                return;
            }
        store_all<K, Count>(to, value);
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

// The same, for numbers that are stored in 16 bits: Y[..] = alpha * product [+ beta * Y[..]], rounded once.
template <class Storage>
struct narrowing : addend_place<false> {
    static constexpr bool reads_beside = false;
    float alpha, beta;
    bool reads_y;  // beta != 0
    bool wide;     // accesses of 8 bytes allowed

    __device__ __forceinline__ narrowing(float alpha_, float beta_, bool wide_, index_t)
        : alpha(alpha_), beta(beta_), reads_y(!is_zero(beta_)), wide(wide_) {}

    __device__ __forceinline__ void store(Storage* gY, float value) const {
        value = alpha * value;
        if (reads_y) value += beta * widen<float>(*gY);
        *gY = narrow<Storage>(value);
    }
    template <int Count>
    __device__ __forceinline__ void store_vector(Storage* gY, const float (&values)[Count], bool whole) const {
        if constexpr (Count == 2 || Count == 4)
            if (whole && wide) {
                union {
                    packet<2 * Count> bits;
                    Storage element[Count];
                } out;
                if (reads_y) out.bits = *reinterpret_cast<const packet<2 * Count>*>(gY);
#pragma unroll
                for (int e = 0; e < Count; ++e) {
                    float value = alpha * values[e];
                    if (reads_y) value += beta * widen<float>(out.element[e]);
                    out.element[e] = narrow<Storage>(value);
                }
                *reinterpret_cast<packet<2 * Count>*>(gY) = out.bits;
                return;
            }
#pragma unroll
        for (int e = 0; e < Count; ++e) store(gY + e, values[e]);
    }
    // K pieces of Count neighbouring elements, of each the first `left`.
    template <int K, int Count, class To, class Value>
    __device__ __forceinline__ void store_all(const To& to, const Value& value, int left = Count) const {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            float rY[Count];  // (Count)
#pragma unroll
            for (int e = 0; e < Count; ++e) rY[e] = value(k, e);
            if (left >= Count)
                store_vector(to(k), rY, true);
            else
#pragma unroll
                for (int e = 0; e < Count; ++e)
                    if (e < left) store(to(k) + e, rY[e]);
        }
    }
};
template <bool Addend, bool Together, int Registers>
struct last_step_of<half, ends_stored, Addend, Together, Registers> {
    using type = narrowing<half>;
};
template <bool Addend, bool Together, int Registers>
struct last_step_of<bfloat16, ends_stored, Addend, Together, Registers> {
    using type = narrowing<bfloat16>;
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

// What a product and the element of V that stands in its place add to this thread's sum. In memory nothing changes.
template <class Scalar, int Ending, int Registers>
struct summing : reading_step<Scalar, summing<Scalar, Ending, Registers>, Registers>, adder<Scalar> {
    using wide_type = typename sum_type<Scalar>::type;
    static constexpr bool reads_beside = true;
    static constexpr index_t c_offset = 0;
    Scalar alpha;    // of a distance
    bool wide;       // V may be read by 16 bytes
    bool conjugate;  // V's conjugate

    __device__ __forceinline__ summing(wide_type& sum_, Scalar alpha_, bool wide_, bool conjugate_)
        : adder<Scalar>{&sum_}, alpha(alpha_), wide(wide_), conjugate(conjugate_) {}

    __device__ __forceinline__ Scalar times(Scalar v, Scalar value) const {
        return term_of_sum<Ending>([&] { return v; }, value, alpha, conjugate);
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
    using type = summing<Scalar, ends_in_dot, Registers>;
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_in_dot_of_pieces, Addend, Together, Registers> {
    using type = summing<Scalar, ends_in_dot, Registers>;
};
template <class Scalar, bool Addend, bool Together, int Registers>
struct last_step_of<Scalar, ends_in_distance, Addend, Together, Registers> {
    using type = summing<Scalar, ends_in_distance, Registers>;
};

// alpha * product, conjugated times itself, added to this thread's sum, likewise.
template <class Scalar>
struct squaring : adder<Scalar> {
    using wide_type = typename sum_type<Scalar>::type;
    static constexpr bool reads_beside = false;
    static constexpr index_t c_offset = 0;
    bool wide;

    __device__ __forceinline__ squaring(wide_type& sum_, Scalar, bool wide_, bool)
        : adder<Scalar>{&sum_}, wide(wide_) {}

    static __device__ __forceinline__ Scalar square(Scalar value) {
        return term_of_sum<ends_in_norm>([] {}, value, value, false);
    }
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
    __device__ __forceinline__ unsigned quotient_of(unsigned u) const { return quotient_by(magic, shift, u); }
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

template <class Group>
__device__ __forceinline__ typename Group::last_step last_step_for(
    const group_arguments<typename Group::storage>& arguments, bool y_wide,
    own_sum<typename Group::scalar, Group::sums_up>& sum) {
    using type = typename Group::last_step;
    if constexpr (Group::sums_up)
        return type(sum.value, arguments.alpha, y_wide, arguments.conjugate_y);
    else if constexpr (Group::ending != ends_stored)
        return type(arguments, y_wide);
    else
        return type(arguments.alpha, arguments.beta, y_wide, arguments.c_offset);
}

// The sums of all threads -> the block's place. `shared` is free for it after a barrier.
template <class Group>
__device__ __forceinline__ void store_sum(typename sum_type<typename Group::scalar>::type value,
                                          const group_arguments<typename Group::storage>& arguments, void* shared) {
    using wide = typename sum_type<typename Group::scalar>::type;
    wide* sSums = static_cast<wide*>(shared);
    if constexpr (Group::shared_bytes < Group::threads / 32 * int(sizeof(wide))) {
        __shared__ __align__(16) unsigned char enough[Group::threads / 32 * sizeof(wide)];
        sSums = reinterpret_cast<wide*>(enough);
    }
    store_sum_of_block<Group::threads, Group::ending>(value, arguments.alpha, arguments.sums_or_d, arguments.divisor,
                                                      sSums);
}

}  // namespace otimes::kernels
