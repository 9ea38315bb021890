// SPDX-License-Identifier: MIT
/// @file printing.hpp
/// `std::cout << K` for Kronecker products with factors in device memory and sums of them, as one line (expr/print.hpp). Nothing is copied.
/// Included by cuda.hpp.
#pragma once

#include <ostream>
#include <string>

#include <otimes/cuda.hpp>
#include <otimes/expr/print.hpp>

namespace otimes {

template <class Scalar>
std::ostream& operator<<(std::ostream& out, const device_kron<Scalar>& k) {
    return out << detail::line_of(k.node());
}
template <class Scalar>
std::ostream& operator<<(std::ostream& out, const device_operator<Scalar>& s) {
    operator_tree<Scalar> tree;
    tree.kind = tree_kind::sum;
    for (const device_kron<Scalar>& k : s.terms()) {
        tree.parts.emplace_back(k.node());
    }
    return out << detail::line_of(tree);
}

}  // namespace otimes
