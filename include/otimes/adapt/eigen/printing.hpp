// SPDX-License-Identifier: MIT
/// @file printing.hpp
/// `std::cout << K` and `std::cout << S`: a Kronecker product or a sum of them as one line (expr/print.hpp). Nothing is evaluated; the entries are
/// what `std::cout << K.toDenseMatrix()` prints.
#pragma once

#include <ostream>

#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/sums.hpp>
#include <otimes/expr/print.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

template <class Scalar>
std::ostream& operator<<(std::ostream& out, const kron_expr<Scalar>& k) {
    return out << detail::line_of(k.node());
}
template <class Scalar>
std::ostream& operator<<(std::ostream& out, const sum_expr<Scalar>& s) {
    return out << detail::line_of(s.tree());
}

}  // namespace OTIMES_TARGET
}  // namespace otimes
