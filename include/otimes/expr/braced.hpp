// SPDX-License-Identifier: MIT
/// @file braced.hpp
/// `kron({A, B})`: factors in braces have no common type that a template could see, and would be copies. Refused by a sentence.
#pragma once

namespace otimes {
namespace detail {

/// What braces around factors turn into, where no other overload takes them.
struct braced_factors {
    template <class... Factors>
    static constexpr bool never = false;
    template <class... Factors>
    braced_factors(Factors&&...) {
        static_assert(
            never<Factors...>,
            "otimes: factors in braces. Write them without, kron(A, B); where their number is known at run time "
            "only, kron and kron_sum take a std::vector or a std::span of matrices: "
            "kron(std::vector<Eigen::MatrixXd>{A, B}).");
    }
};

}  // namespace detail

/// @name Refused; a number, so that the sentence is the only error of most statements.
/// @{
inline int kron(const detail::braced_factors&) { return 0; }
inline int kron_sum(const detail::braced_factors&) { return 0; }
inline int khatri_rao(const detail::braced_factors&) { return 0; }
inline int face_split(const detail::braced_factors&) { return 0; }
/// @}

}  // namespace otimes
