// SPDX-License-Identifier: MIT
// What becomes of a kernel's products other than being stored, and the sums of a thread and of a block, which no store follows.
#pragma once
#include "scalars.cuh"

namespace otimes::kernels {

// What becomes of what the last trip, or a kernel by blocks, computes: it is stored; multiplied by what stands where it would be stored and summed;
// squared and summed; or multiplied by an element of a vector along Y's contiguous stretches, or across them, and stored. Dot of pieces: the sum
// over a row's pieces of what each adds to its image, so that no more than a piece is on chip. Distance: its difference from what stands where it would
// be stored, squared and summed.
enum ending {
    ends_stored = 0,
    ends_in_dot = 1,
    ends_in_norm = 2,
    ends_scaled_along = 3,
    ends_scaled_across = 4,
    ends_in_dot_of_pieces = 5,
    ends_in_distance = 6
};

// The endings that read what stands where a product would be stored.
constexpr bool reads_in_place_of_y(int ending) {
    return ending == ends_in_dot || ending == ends_in_dot_of_pieces || ending == ends_in_distance;
}

// The endings that multiply by an element of a vector as they store.
constexpr bool scales(int ending) { return ending == ends_scaled_along || ending == ends_scaled_across; }

// u / divisor for u < 2^31: (u * magic) >> (32 + shift).
__device__ __forceinline__ unsigned quotient_by(unsigned magic, int shift, unsigned u) {
    return __umulhi(u, magic) >> shift;
}

// The wide type in which sums are computed.
template <class Scalar>
struct sum_type {
    using type = double;
};
template <class Real>
struct sum_type<complex<Real>> {
    using type = complex<double>;
};

// What a product adds to a sum: times the element of V that stands in its place, v(), or its conjugate; of a norm, conjugated times itself; of a
// distance, so does alpha times it less that element.
template <int Ending, class Scalar, class Element>
__device__ __forceinline__ Scalar term_of_sum(const Element& v, Scalar product, Scalar alpha, bool conjugate_v) {
    if constexpr (Ending == ends_in_norm)
        return conjugate(product) * product;
    else if constexpr (Ending == ends_in_distance) {
        const Scalar difference = alpha * product - (conjugate_v ? conjugate(v()) : v());
        return conjugate(difference) * difference;
    } else if constexpr (is_same<Scalar, float> || is_same<Scalar, double>)
        return v() * product;
    else
        return (conjugate_v ? conjugate(v()) : v()) * product;
}

// Count neighbours at a multiple of their size. (By the read-only way the compiler reads more at once than there are registers for.)
template <int Count, class Scalar>
__device__ __forceinline__ void read_neighbours(Scalar* rV, const Scalar* gV) {
    if constexpr (Count == 1)
        *rV = *gV;
    else {
        using piece = packet<Count* int(sizeof(Scalar))>;
        union {
            piece bits;
            Scalar element[Count];
        } in;
        in.bits = *reinterpret_cast<const piece*>(gV);
#pragma unroll
        for (int e = 0; e < Count; ++e) rV[e] = in.element[e];
    }
}

// An index, or 0 where it is none of `count`: what is read there is not used. So that reads follow no branch, where the compiler would wait for each.
__device__ __forceinline__ int index_or_first(int index, int count) { return index < count ? index : 0; }

// Adds terms to a thread's sum: up to four neighbours in Scalar, then in the wide type.
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

// The sum of one thread of a kernel that sums up; nothing in others.
template <class Scalar, bool SumsUp>
struct own_sum {
    __device__ __forceinline__ adder<Scalar> adds() { return {nullptr}; }
};
template <class Scalar>
struct own_sum<Scalar, true> {
    typename sum_type<Scalar>::type value{0.};
    __device__ __forceinline__ adder<Scalar> adds() { return {&value}; }
};

// The sums of all Threads, added by a tree, times alpha (of a norm its square; a distance has it) -> gSums[this block], and zeros for what the grid has
// fewer blocks than `count`. sSums: a place for each warp; nobody uses it otherwise after the barrier in front.
template <int Threads, int Ending, class Scalar, class Wide>
__device__ __forceinline__ void store_sum_of_block(Wide value, Scalar scalar_alpha, void* sums, unsigned count,
                                                   Wide* sSums) {
    constexpr int warps = Threads / 32;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        if constexpr (is_same<Wide, double>)
            value += __shfl_down_sync(0xffffffffu, value, distance);
        else
            value += Wide(__shfl_down_sync(0xffffffffu, value.re, distance),
                          __shfl_down_sync(0xffffffffu, value.im, distance));
    }
    __syncthreads();
    if (threadIdx.x % 32u == 0) sSums[threadIdx.x / 32u] = value;
    __syncthreads();
    if (threadIdx.x != 0) return;
    Wide all = sSums[0];
#pragma unroll 1
    for (int w = 1; w < warps; ++w) all += sSums[w];
    const Wide alpha = widen<Wide>(scalar_alpha);
    Wide* const gSums = static_cast<Wide*>(sums);
    gSums[blockIdx.x] = Ending == ends_in_distance ? all
                        : Ending == ends_in_norm   ? conjugate(alpha) * alpha * all
                                                   : alpha * all;
    for (unsigned b = blockIdx.x + gridDim.x; b < count; b += gridDim.x) gSums[b] = Wide(0.);
}

}  // namespace otimes::kernels
