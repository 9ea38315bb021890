// SPDX-License-Identifier: MIT
/// @file simd.hpp
/// One vector register of the target as a C++ type, by the vector extensions of GCC and clang; plain scalars (width 1)
/// for other compilers. Loads and stores take any address that is aligned for the element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <otimes/exec/target.hpp>

#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>  // fused multiply-add by name; Eigen includes it as well
#endif

#if defined(__clang__)
#define OTIMES_UNROLL _Pragma("unroll")
#define OTIMES_INLINE inline __attribute__((always_inline))
#define OTIMES_NOINLINE __attribute__((noinline))
#elif defined(__GNUC__)
// At -O2 GCC unrolls a constant loop only on request, and without it an array of accumulators stays in memory.
#define OTIMES_UNROLL _Pragma("GCC unroll 16")
#define OTIMES_INLINE inline __attribute__((always_inline))
#define OTIMES_NOINLINE __attribute__((noinline))
#else
#define OTIMES_UNROLL
#define OTIMES_INLINE inline
#define OTIMES_NOINLINE
#endif

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

#if defined(__GNUC__) || defined(__clang__)
/// A register of `Real` (float or double).
template <class Real>
struct simd {
    static constexpr int width = OTIMES_TARGET_SIMD_BYTES / static_cast<int>(sizeof(Real));
    typedef Real type __attribute__((vector_size(OTIMES_TARGET_SIMD_BYTES)));
    typedef Real unaligned __attribute__((vector_size(OTIMES_TARGET_SIMD_BYTES), aligned(4), may_alias));

    static OTIMES_INLINE type load(const Real* p) noexcept { return *reinterpret_cast<const unaligned*>(p); }
    static OTIMES_INLINE void store(Real* p, type v) noexcept { *reinterpret_cast<unaligned*>(p) = v; }
    static OTIMES_INLINE type broadcast(Real s) noexcept { return s - type{}; }  // s + 0 would cost an addition: -0
    /// c + a * b, rounded once wherever the target can. By name: left to contraction, GCC tunes for some processors by turning
    /// short chains into a multiplication and an addition, and then bits depend on the size of a block.
    static OTIMES_INLINE type multiply_add(type a, type b, type c) noexcept {
#if OTIMES_TARGET_SIMD_BYTES == 64 && defined(__AVX512F__)
        if constexpr (std::is_same_v<Real, float>) {
            return static_cast<type>(
                _mm512_fmadd_ps(static_cast<__m512>(a), static_cast<__m512>(b), static_cast<__m512>(c)));
        } else {
            return static_cast<type>(
                _mm512_fmadd_pd(static_cast<__m512d>(a), static_cast<__m512d>(b), static_cast<__m512d>(c)));
        }
#elif OTIMES_TARGET_SIMD_BYTES == 32 && defined(__FMA__)
        if constexpr (std::is_same_v<Real, float>) {
            return static_cast<type>(
                _mm256_fmadd_ps(static_cast<__m256>(a), static_cast<__m256>(b), static_cast<__m256>(c)));
        } else {
            return static_cast<type>(
                _mm256_fmadd_pd(static_cast<__m256d>(a), static_cast<__m256d>(b), static_cast<__m256d>(c)));
        }
#elif OTIMES_TARGET_SIMD_BYTES == 16 && defined(__FMA__)
        if constexpr (std::is_same_v<Real, float>) {
            return static_cast<type>(
                _mm_fmadd_ps(static_cast<__m128>(a), static_cast<__m128>(b), static_cast<__m128>(c)));
        } else {
            return static_cast<type>(
                _mm_fmadd_pd(static_cast<__m128d>(a), static_cast<__m128d>(b), static_cast<__m128d>(c)));
        }
#else
        return c + a * b;
#endif
    }
#if OTIMES_TARGET_SIMD_BYTES == 64 && defined(__AVX512F__)
    static constexpr bool has_masks = true;
    /// The first `count` elements of a register, the others 0; count 0 .. width. Nothing else is touched.
    static OTIMES_INLINE type load_first(const Real* p, std::ptrdiff_t count) noexcept {
        if constexpr (std::is_same_v<Real, float>) {
            return static_cast<type>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p));
        } else {
            return static_cast<type>(_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), p));
        }
    }
    static OTIMES_INLINE void store_first(Real* p, type v, std::ptrdiff_t count) noexcept {
        if constexpr (std::is_same_v<Real, float>) {
            _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), static_cast<__m512>(v));
        } else {
            _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << count) - 1), static_cast<__m512d>(v));
        }
    }
    /// Elements [first, first + count) of v from p on; the others stay.
    static OTIMES_INLINE void load_lanes(type& v, const Real* p, int first, int count) noexcept {
        if constexpr (std::is_same_v<Real, float>) {
            v = static_cast<type>(_mm512_mask_loadu_ps(
                static_cast<__m512>(v), static_cast<__mmask16>(((1u << count) - 1) << first), p - first));
        } else {
            v = static_cast<type>(_mm512_mask_loadu_pd(static_cast<__m512d>(v),
                                                       static_cast<__mmask8>(((1u << count) - 1) << first), p - first));
        }
    }
    /// Stores elements [first, first + count) of v at p.
    static OTIMES_INLINE void store_lanes(Real* p, type v, int first, int count) noexcept {
        if constexpr (std::is_same_v<Real, float>) {
            _mm512_mask_storeu_ps(p - first, static_cast<__mmask16>(((1u << count) - 1) << first),
                                  static_cast<__m512>(v));
        } else {
            _mm512_mask_storeu_pd(p - first, static_cast<__mmask8>(((1u << count) - 1) << first),
                                  static_cast<__m512d>(v));
        }
    }
    /// `Count` elements, 16 or 32 bytes of them; the others hold anything.
    template <int Count>
    static OTIMES_INLINE type load_part(const Real* p) noexcept {
        static_assert(Count * sizeof(Real) == 16 || Count * sizeof(Real) == 32);
        const auto* const at = reinterpret_cast<const float*>(p);
        if constexpr (Count * sizeof(Real) == 32) {
            return reinterpret_cast<type>(_mm512_castps256_ps512(_mm256_loadu_ps(at)));
        } else {
            return reinterpret_cast<type>(_mm512_castps128_ps512(_mm_loadu_ps(at)));
        }
    }
    /// Elements [Index * Count, (Index + 1) * Count) of v from p on; the others stay.
    template <int Count, int Index>
    static OTIMES_INLINE void insert_part(type& v, const Real* p) noexcept {
        const auto* const at = reinterpret_cast<const float*>(p);
        const __m512 all = reinterpret_cast<__m512>(v);
        if constexpr (Count * sizeof(Real) == 32) {
            v = reinterpret_cast<type>(_mm512_maskz_insertf32x8(0xffff, all, _mm256_loadu_ps(at), Index));
        } else {
            v = reinterpret_cast<type>(_mm512_maskz_insertf32x4(0xffff, all, _mm_loadu_ps(at), Index));
        }
    }
    /// Stores elements [Index * Count, (Index + 1) * Count) of v: 16 or 32 bytes, without a mask.
    template <int Count, int Index>
    static OTIMES_INLINE void store_part(Real* p, type v) noexcept {
        static_assert(Count * sizeof(Real) == 16 || Count * sizeof(Real) == 32);
        const __m512 all = reinterpret_cast<__m512>(v);
        if constexpr (Count * sizeof(Real) == 32) {
            _mm256_storeu_ps(reinterpret_cast<float*>(p), _mm512_maskz_extractf32x8_ps(0xff, all, Index));
        } else {
            _mm_storeu_ps(reinterpret_cast<float*>(p), _mm512_maskz_extractf32x4_ps(0xf, all, Index));
        }
    }
    /// The lower (upper) halves of a and b.
    template <bool Upper>
    static OTIMES_INLINE type join_halves(type a, type b) noexcept {
        static_assert(std::is_same_v<Real, float>);
        return static_cast<type>(
            _mm512_maskz_shuffle_f32x4(0xffff, static_cast<__m512>(a), static_cast<__m512>(b), Upper ? 0xee : 0x44));
    }
    /// Stores a register, which is a whole cache line, past the caches. @pre aligned(p); another thread sees it after a fence.
    static OTIMES_INLINE void store_past(Real* p, type v) noexcept {
        if constexpr (std::is_same_v<Real, float>) {
            _mm512_stream_ps(p, static_cast<__m512>(v));
        } else {
            _mm512_stream_pd(p, static_cast<__m512d>(v));
        }
    }
#else
    static constexpr bool has_masks = false;
    static OTIMES_INLINE void store_past(Real* p, type v) noexcept { store(p, v); }
#endif
    /// A register is a cache line, and can be stored without reading the line first.
    static constexpr bool stores_lines = has_masks;

    /// Half a register from `low`, the other half from `high`: a load and an insertion from memory, no shuffle.
    static OTIMES_INLINE type load_halves(const Real* low, const Real* high) noexcept {
#if OTIMES_TARGET_SIMD_BYTES == 64 && defined(__AVX512F__)  // GCC would shuffle
        type v = load_part<width / 2>(low);
        insert_part<width / 2, 1>(v, high);
        return v;
#else
        return join(*reinterpret_cast<const unaligned_half*>(low), *reinterpret_cast<const unaligned_half*>(high),
                    std::make_index_sequence<static_cast<std::size_t>(width)>());
#endif
    }
    /// Keeps v in a register: GCC would rather load it again for each multiply-add that uses it, and the load ports are
    /// what limits the kernels.
    static OTIMES_INLINE void pin([[maybe_unused]] type& v) noexcept {
#if defined(__AVX512F__)
        asm("" : "+v"(v));
#elif defined(__x86_64__)
        asm("" : "+x"(v));
#elif defined(__aarch64__)
        asm("" : "+w"(v));
#endif
    }
    /// What lies at p is loaded anew from here on: GCC would copy more broadcast elements to the stack than there are registers.
    static OTIMES_INLINE void forget([[maybe_unused]] const Real*& p) noexcept { asm("" : "+r"(p)); }

    /// (a0, a1, a2, a3, ...) -> (a1, a0, a3, a2, ...)
    static OTIMES_INLINE type swap_pairs(type v) noexcept {
        return swap_pairs(v, std::make_index_sequence<static_cast<std::size_t>(width)>());
    }
    /// (-1, +1, -1, +1, ...)
    static OTIMES_INLINE type alternating() noexcept {
        return alternating(std::make_index_sequence<static_cast<std::size_t>(width)>());
    }
    /// Interleaves blocks of `Block` elements of a and b: the lower halves into a, the upper halves into b.
    template <int Block>
    static OTIMES_INLINE void interleave(type& a, type& b) noexcept {
        interleave<Block>(a, b, std::make_index_sequence<static_cast<std::size_t>(width)>());
    }
    /// Within every 128 bits, the lower (upper) halves of a and b in turns, element by element (`Step` 1) or in pairs (`Step` 2):
    /// one shuffle on x86. @pre elements of 4 bytes
    template <int Step, bool Upper>
    static OTIMES_INLINE type unpack(type a, type b) noexcept {
        return unpack<Step, Upper>(a, b, std::make_index_sequence<static_cast<std::size_t>(width)>());
    }

private:
    // Element i of the result: of its 128 bits in a, or in b where i / Step is odd.
    template <int Step, bool Upper, std::size_t... Positions>
    static OTIMES_INLINE type unpack(type a, type b, std::index_sequence<Positions...>) noexcept {
        return __builtin_shufflevector(
            a, b,
            (static_cast<int>(Positions) / 4 * 4 + (Upper ? 2 : 0) +
             (Step == 1 ? static_cast<int>(Positions) % 4 / 2 : static_cast<int>(Positions) % 2) +
             static_cast<int>(Positions) / Step % 2 * width)...);
    }

    typedef Real half __attribute__((vector_size(OTIMES_TARGET_SIMD_BYTES / 2)));
    typedef Real unaligned_half __attribute__((vector_size(OTIMES_TARGET_SIMD_BYTES / 2), aligned(4), may_alias));

    template <std::size_t... Positions>
    static OTIMES_INLINE type join(half low, half high, std::index_sequence<Positions...>) noexcept {
        return __builtin_shufflevector(low, high, static_cast<int>(Positions)...);
    }
    template <std::size_t... Positions>
    static OTIMES_INLINE type swap_pairs(type v, std::index_sequence<Positions...>) noexcept {
        return __builtin_shufflevector(v, v, static_cast<int>(Positions ^ 1)...);
    }
    template <std::size_t... Positions>
    static OTIMES_INLINE type alternating(std::index_sequence<Positions...>) noexcept {
        return type{(Positions % 2 == 0 ? Real(-1) : Real(1))...};
    }
    // Element i of the results: the butterfly of distance Block. Index pattern: a keeps its even blocks and takes b's
    // even blocks in place of its odd ones; b likewise with the odd blocks.
    template <int Block, std::size_t... Positions>
    static OTIMES_INLINE void interleave(type& a, type& b, std::index_sequence<Positions...>) noexcept {
        const type x = __builtin_shufflevector(
            a, b,
            ((static_cast<int>(Positions) & Block) == 0 ? static_cast<int>(Positions)
                                                        : static_cast<int>(Positions) - Block + width)...);
        const type y = __builtin_shufflevector(
            a, b,
            ((static_cast<int>(Positions) & Block) == 0 ? static_cast<int>(Positions) + Block
                                                        : static_cast<int>(Positions) + width)...);
        a = x;
        b = y;
    }
};
#else
template <class Real>
struct simd {
    static constexpr int width = 1;
    using type = Real;
    static type load(const Real* p) noexcept { return *p; }
    static void store(Real* p, type v) noexcept { *p = v; }
    static type broadcast(Real s) noexcept { return s; }
    static type multiply_add(type a, type b, type c) noexcept { return c + a * b; }
    static void pin(type&) noexcept {}
    static void store_past(Real* p, type v) noexcept { store(p, v); }
    static constexpr bool has_masks = false;
    static constexpr bool stores_lines = false;
};
#endif

/// True of the beginning of a cache line.
OTIMES_INLINE bool is_line(const void* p) noexcept { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

/// After stores past the caches, before another thread may look: on x86 they are ordered by nothing else.
OTIMES_INLINE void finish_stores_past([[maybe_unused]] bool any) noexcept {
#if OTIMES_TARGET_SIMD_BYTES == 64 && defined(__AVX512F__)
    if (any) {
        _mm_sfence();
    }
#endif
}

/// Transposes W registers of W elements: element j of v[i] and element i of v[j] change places.
/// log2(W) rounds of W/2 butterflies (Eklundh 1972). With fewer registers and `Block` half of them, every block of as many
/// elements is transposed for itself; with a smaller `Block`, the first rounds are left out.
template <class Real, int Block = simd<Real>::width / 2, int Registers = simd<Real>::width>
OTIMES_INLINE void transpose_registers(typename simd<Real>::type* v) noexcept {
    if constexpr (Block == 2 && sizeof(Real) == 4) {  // the last two rounds stay inside 128 bits
        using simd_t = simd<Real>;
        OTIMES_UNROLL
        for (int i = 0; i < Registers; i += 4) {
            const typename simd_t::type low01 = simd_t::template unpack<1, false>(v[i], v[i + 1]);
            const typename simd_t::type high01 = simd_t::template unpack<1, true>(v[i], v[i + 1]);
            const typename simd_t::type low23 = simd_t::template unpack<1, false>(v[i + 2], v[i + 3]);
            const typename simd_t::type high23 = simd_t::template unpack<1, true>(v[i + 2], v[i + 3]);
            v[i] = simd_t::template unpack<2, false>(low01, low23);
            v[i + 1] = simd_t::template unpack<2, true>(low01, low23);
            v[i + 2] = simd_t::template unpack<2, false>(high01, high23);
            v[i + 3] = simd_t::template unpack<2, true>(high01, high23);
        }
    } else if constexpr (Block >= 1) {
        OTIMES_UNROLL
        for (int i = 0; i < Registers; ++i) {
            if ((i & Block) == 0) {
                simd<Real>::template interleave<Block>(v[i], v[i + Block]);
            }
        }
        transpose_registers<Real, Block / 2, Registers>(v);
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes
