// SPDX-License-Identifier: MIT
/// @file rewriting.hpp
/// The rules by which expressions are rewritten before they are planned, each with an identifier that `explain` prints, and
/// the small value in which a program carries those that were applied to it. It says how the program came about, not what it
/// computes, so it is no part of a program's equality, of its hash or of a plan's signature.
///
/// Each rule keeps the value exactly and never raises the flops for the X at hand (tests/laws/rewriting.cpp, in exact
/// arithmetic); docs/algebra/rewriting.md has the formulas.
#pragma once

#include <cstdint>
#include <string_view>

namespace otimes {

/// One rule. The order is that in which explain names them.
enum class rewrite : std::uint8_t {
    nested_kron_flattened,  ///< kron(A, kron(B, C)) = kron(A, B, C)
    nested_sum_flattened,   ///< (K + L) + N is one sum
    transpose_to_factors,   ///< kron(A, B)^T = kron(A^T, B^T), (S T)^T = T^T S^T
    scalar_gathered,        ///< a K (b L) = (a b) (K L)
    equal_terms_merged,     ///< a K + b K = (a + b) K
    identity_runs_merged,   ///< kron(I, I) = I: neighbouring identities are one index
    kron_identity_split,    ///< an identity is absorbed, cut first if too long: kron(A, I) * kron(I, B) = kron(A, B)
    identity_term_split,    ///< kron(A, B) + s I = kron(A, B) + s kron(I, I)
    mixed_product,          ///< kron(A, B) * kron(C, D) = kron(A C, B D)
    applied_in_sequence,    ///< a product of operators whose factors do not fit: one after the other
    factors_interleaved,    ///< the steps of A C and B D in the order of least flops
    product_formed,         ///< A C is multiplied out, since that takes fewer flops than two steps
    diagonal_product,       ///< a diagonal times a diagonal, or times a dense factor, is one factor
    permutation_product,    ///< a permutation times a permutation is one permutation
    terms_shared,           ///< a sum applies common prefixes once and adds partial results before common suffixes
    factors_added           ///< a kron(L, F, R) + b kron(L, G, R) = kron(L, a F + b G, R), F and G in host memory
};
inline constexpr int rewrite_count = static_cast<int>(rewrite::factors_added) + 1;

/// The identifier of a rule, as explain prints it.
constexpr std::string_view to_string(rewrite rule) noexcept {
    switch (rule) {
        case rewrite::nested_kron_flattened: return "nested-kron-flattened";
        case rewrite::nested_sum_flattened: return "nested-sum-flattened";
        case rewrite::transpose_to_factors: return "transpose-to-factors";
        case rewrite::scalar_gathered: return "scalar-gathered";
        case rewrite::equal_terms_merged: return "equal-terms-merged";
        case rewrite::identity_runs_merged: return "identity-runs-merged";
        case rewrite::kron_identity_split: return "kron-identity-split";
        case rewrite::identity_term_split: return "identity-term-split";
        case rewrite::mixed_product: return "mixed-product";
        case rewrite::applied_in_sequence: return "applied-in-sequence";
        case rewrite::factors_interleaved: return "factors-interleaved";
        case rewrite::product_formed: return "product-formed";
        case rewrite::diagonal_product: return "diagonal-product";
        case rewrite::permutation_product: return "permutation-product";
        case rewrite::terms_shared: return "terms-shared";
        case rewrite::factors_added: return "factors-added";
    }
    return "?";
}

/// Which rules were applied.
struct rewrites {
    std::uint32_t applied = 0;      ///< bit k: the rule with number k
    std::int64_t formed_flops = 0;  ///< flops of products of factors that lowering has multiplied out

    void add(rewrite rule) noexcept { applied |= std::uint32_t{1} << static_cast<int>(rule); }
    void add(const rewrites& others) noexcept {
        applied |= others.applied;
        formed_flops += others.formed_flops;
    }
    [[nodiscard]] bool holds(rewrite rule) const noexcept { return (applied >> static_cast<int>(rule) & 1u) != 0; }
    [[nodiscard]] bool empty() const noexcept { return applied == 0; }
    friend bool operator==(const rewrites&, const rewrites&) = default;
};

/// What explain says about a program and its steps do not: like the rules no part of what it computes. Bits are those of the first 64
/// bindings or scalars. All 0: nothing is said.
struct lowering_notes {
    bool operator_apart;         ///< it reads the result of an operator that was applied before
    bool term_apart;             ///< likewise the value of a term that is no matrix in memory
    std::int32_t factors_saved;  ///< factors of the formula that it need not apply, since terms share results
    std::int32_t terms_saved;    ///< terms that it need not add up by themselves, likewise
    std::uint64_t unit_scalars;  ///< those that were 1
    std::uint64_t
        scratch_bindings;  ///< what lies between two of its products; it keeps them off a GPU (plan/streaming.hpp)
    std::uint64_t repeated_bindings;  ///< matrices that lie where the first that it reads does
    static constexpr bool has(std::uint64_t bits, std::int32_t k) noexcept {
        return k >= 0 && k < 64 && (bits >> k & 1u) != 0;
    }
};

}  // namespace otimes
