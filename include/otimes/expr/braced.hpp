// SPDX-License-Identifier: MIT
/// @file braced.hpp
/// `kron({A, B})`: factors in braces have no common type that a template could see, and would be copies. Refused by a sentence.
/// So is `kron(identity(n))` where only matrices in device memory are known (otimes/cuda.hpp alone): identities have no scalar.
#pragma once

#include <otimes/expr/identity.hpp>

namespace otimes {
namespace detail {

/// What braces around factors turn into, where no other overload takes them.
struct braced_factors {
    template <class... Factors>
    static constexpr bool never = false;
    template <class... Factors>
    requires(!(sizeof...(Factors) == 1 && (identity_like<Factors> && ...))) braced_factors(Factors&&...) {
        static_assert(
            never<Factors...>,
            "otimes: factors in braces. Write them without, kron(A, B); where their number is known at run time "
            "only, kron and kron_sum take a std::vector or a std::span of matrices: "
            "kron(std::vector<Eigen::MatrixXd>{A, B}).");
    }
};

/// What an identity alone turns into, where no other overload takes it.
struct lone_identity {
    template <class Identity>
    static constexpr bool never = false;
    template <identity_like Identity>
    lone_identity(const Identity&) {
        static_assert(never<Identity>,
                      "otimes: an identity alone has no scalar type in device memory. Beside a matrix leave it "
                      "out: dX, s * dX; beside other factors it is one: kron(otimes::identity(n), dA).");
    }
};

}  // namespace detail

/// @name Refused; a number, so that the sentence is the only error of most statements.
/// @{
inline int kron(const detail::braced_factors&) { return 0; }
inline int kron(const detail::lone_identity&) { return 0; }
inline int kron_sum(const detail::braced_factors&) { return 0; }
inline int kron_sum(const detail::lone_identity&) { return 0; }
inline int khatri_rao(const detail::braced_factors&) { return 0; }
inline int face_split(const detail::braced_factors&) { return 0; }
/// @}

}  // namespace otimes
