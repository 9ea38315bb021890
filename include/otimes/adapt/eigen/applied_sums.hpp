// SPDX-License-Identifier: MIT
/// @file applied_sums.hpp
/// What applies itself, selections, row-wise products and products of two of these, as a term of sums and between other operators:
///
///     K(seen, seen) + s * identity()
///     khatri_rao(A, B) * d.asDiagonal() * khatri_rao(A, B).transpose() + s * identity()
///     face_split(A, B) * K * face_split(A, B).transpose() + noise.asDiagonal()
///
/// Each is one factor of the sum's tree (operator_leaf.hpp). With krons, sums and with each other: operators.hpp.
#pragma once

#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/operator_leaf.hpp>
#include <otimes/adapt/eigen/operators.hpp>
#include <otimes/adapt/eigen/row_pairs.hpp>
#include <otimes/adapt/eigen/row_products.hpp>
#include <otimes/adapt/eigen/selected.hpp>
#include <otimes/adapt/eigen/sums.hpp>
#include <otimes/expr/tree.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template <class Scalar, class Operator>
operator_tree<Scalar> tree_of_leaf(const Operator& op, const char* name) {
    kron_node<Scalar> node;
    node.append(operator_leaf<Scalar>(op, name));
    return operator_tree<Scalar>(std::move(node));
}
template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const selected_expr<Other>& s) {
    return tree_of_leaf<Scalar>(s, "K(rows, cols)");
}
template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const row_product_expr<Other>& r) {
    return tree_of_leaf<Scalar>(r, r.transposed() ? "khatri_rao" : "face_split");
}
template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const lazy<row_pairs_node<Other>>& p) {
    return tree_of_leaf<Scalar>(p.node().op, "product of row-wise products");
}

template <class Scalar>
sum_expr<Scalar> row_pairs_node<Scalar>::as_operator() const {
    return sum_expr<Scalar>(tree_of_leaf<Scalar>(op, "product of row-wise products"));
}

/// What is an operator by itself or may be one.
template <class Type>
concept self_applied = applies_itself<bare<Type>> || is_row_pairs<bare<Type>>;
/// What is added to such an operator as to a sum of krons: shifts, diagonal, sparse, permutation and triangular matrices. A product of
/// row-wise products may be a matrix: Eigen's own operators add sparse matrices and its identities to that.
template <class Term, class Operator>
concept added_to_applied =
    (!is_row_pairs<bare<Operator>> && (shifts<Term, typename bare<Operator>::Scalar> || sparse_term<Term>)) ||
    (is_row_pairs<bare<Operator>> &&
     (detail::identity_like<Term> || diagonal_like<Term>)&&(!detail::identity_like<Term> ||
                                                            shifts<Term, typename bare<Operator>::Scalar>));

template <class Operator>
auto as_sum(const Operator& op) {
    using scalar = typename Operator::Scalar;
    return sum_expr<scalar>(tree_of<scalar>(op));
}

}  // namespace eigen

template <class Scalar>
selected_expr<Scalar>::operator sum_expr<Scalar>() const {
    return eigen::as_sum(*this);
}
template <class Scalar>
row_product_expr<Scalar>::operator sum_expr<Scalar>() const {
    return eigen::as_sum(*this);
}

/// @name With a shift, with a diagonal or sparse matrix beside them or added. @throws shape_error
/// @{
template <class Operator, class Term>
requires(eigen::self_applied<Operator>&& eigen::added_to_applied<Term, Operator>) [[nodiscard]] auto operator+(
    const Operator& op, Term&& term) {
    return eigen::as_sum(op) + std::forward<Term>(term);
}
template <class Term, class Operator>
requires(eigen::self_applied<Operator>&& eigen::added_to_applied<Term, Operator>) [[nodiscard]] auto operator+(
    Term&& term, const Operator& op) {
    return eigen::as_sum(op) + std::forward<Term>(term);
}
template <class Operator, class Term>
requires(eigen::self_applied<Operator>&& eigen::added_to_applied<Term, Operator>) [[nodiscard]] auto operator-(
    const Operator& op, Term&& term) {
    return eigen::as_sum(op) - std::forward<Term>(term);
}
template <class Term, class Operator>
requires(eigen::self_applied<Operator>&& eigen::added_to_applied<Term, Operator>) [[nodiscard]] auto operator-(
    Term&& term, const Operator& op) {
    return std::forward<Term>(term) - eigen::as_sum(op);
}
/// Of a row-wise product its own weights are cheaper (row_products.hpp).
template <class Operator, class Matrix>
requires(eigen::applies_itself<Operator>&& eigen::side_like<Matrix> &&
         !(eigen::is_row_product<Operator> && eigen::diagonal_like<Matrix>)) [[nodiscard]] auto
operator*(const Operator& op, Matrix&& w) {
    return eigen::as_sum(op) * std::forward<Matrix>(w);
}
template <class Matrix, class Operator>
requires(eigen::applies_itself<Operator>&& eigen::side_like<Matrix> &&
         !(eigen::is_row_product<Operator> && eigen::diagonal_like<Matrix>)) [[nodiscard]] auto
operator*(Matrix&& w, const Operator& op) {
    return std::forward<Matrix>(w) * eigen::as_sum(op);
}
/// @}

/// @name R * S of row-wise products, plus or minus an operator. @throws shape_error
/// @{
template <class Scalar, class Operator>
requires eigen::any_operator<Operator>
[[nodiscard]] auto operator+(const lazy<eigen::row_pairs_node<Scalar>>& p, const Operator& op) {
    return eigen::as_sum(p) + op;
}
template <class Operator, class Scalar>
requires eigen::any_operator<Operator>
[[nodiscard]] auto operator+(const Operator& op, const lazy<eigen::row_pairs_node<Scalar>>& p) {
    return op + eigen::as_sum(p);
}
template <class Scalar, class Operator>
requires eigen::any_operator<Operator>
[[nodiscard]] auto operator-(const lazy<eigen::row_pairs_node<Scalar>>& p, const Operator& op) {
    return eigen::as_sum(p) - op;
}
template <class Operator, class Scalar>
requires eigen::any_operator<Operator>
[[nodiscard]] auto operator-(const Operator& op, const lazy<eigen::row_pairs_node<Scalar>>& p) {
    return op - eigen::as_sum(p);
}
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes
