// SPDX-License-Identifier: MIT
/// @file lazy.hpp
/// The dense expressions of otimes inside Eigen: `lazy<Node>`, with the nodes for a product and for a sum, and how they are
/// assigned: shapes first, then overlap, only then the destination is resized and written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/adapt/evaluate_product.hpp>
#include <otimes/exec/evaluate.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/multiply_krons.hpp>
#include <otimes/expr/product.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {
/// Is a node the sum of two operands of these types?
template <class Node, class First, class Second>
concept is_sum_of =
    std::is_same_v<First, typename Node::first_type> && std::is_same_v<Second, typename Node::second_type>;
}  // namespace eigen

/// A dense Eigen expression that otimes evaluates. `Node` is what it computes; the node protocol is
///
///     scalar_type, rows_at_compile_time, cols_at_compile_time, row_major
///     holds_dense_term                        is a term of it evaluated by Eigen, and may be the destination itself
///     rows(), cols()                          as they are now
///     check()                                 throws shape_error
///     reads(view, element_bytes)              may it read memory of that view
///     evaluate(destination, add, scale)       destination (+)= scale * node; right shape, no overlap
///     lower(lowering, view, add, scale, kept) the same as steps of a program
///
/// It converts to a matrix on assignment and where Eigen needs its coefficients (once); it has no coefficients itself.
template <class NodeType>
class lazy : public Eigen::MatrixBase<lazy<NodeType>> {
public:
    using Base = Eigen::MatrixBase<lazy>;
    using node_type = NodeType;
    EIGEN_GENERIC_PUBLIC_INTERFACE(lazy)

    explicit lazy(NodeType node) : node_(std::move(node)) {}
    /// An empty node, for who fills it in by `edit`.
    lazy() = default;
    lazy(const lazy&) = default;
    lazy(lazy&&) = default;
    /// Becomes another expression of the same type, so that a class with one as a member can be assigned. Eigen's own operator would
    /// write elements. A node may refer to a matrix, hence no assignment of nodes.
    lazy& operator=(lazy other) & {
        std::destroy_at(&node_);
        std::construct_at(&node_, std::move(other.node_));
        return *this;
    }

    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(node_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return eigen::index_of(node_.cols()); }
    [[nodiscard]] const NodeType& node() const noexcept { return node_; }
    [[nodiscard]] NodeType& edit() noexcept { return node_; }

    /// The sum of the squared magnitudes; of a product without storing it (reductions.hpp).
    [[nodiscard]] RealScalar squaredNorm() const {
        if constexpr (requires { squared_norm(*this); }) {
            return squared_norm(*this);
        } else {
            return Base::squaredNorm();
        }
    }
    [[nodiscard]] RealScalar norm() const {
        using std::sqrt;
        return sqrt(squaredNorm());
    }

    /// `(X * K).rowwise() + v`: Eigen says the type of its own sum where the operator that it finds is ours.
    template <class Functor, class First, class Second>
    operator Eigen::CwiseBinaryOp<Functor, First, Second>()
        const requires eigen::is_sum_of<NodeType, eigen::bare<First>, eigen::bare<Second>> {
        return {node_.first, node_.second};
    }

    /// Of what is an operator, too (row_pairs.hpp): as one.
    operator sum_expr<Scalar>() const requires requires(const NodeType& node) { node.as_operator(); }
    { return node_.as_operator(); }
    [[nodiscard]] auto toDenseMatrix() const requires requires(const NodeType& node) { node.as_operator(); }
    { return node_.as_operator().toDenseMatrix(); }

    /// @name Of what is an operator, too, it stays one.
    /// @{
    [[nodiscard]] decltype(auto) transpose() const {
        if constexpr (requires { node_.transposed(); }) {
            return lazy(node_.transposed());
        } else {
            return Base::transpose();
        }
    }
    [[nodiscard]] decltype(auto) conjugate() const {
        if constexpr (requires { node_.conjugated(); }) {
            return lazy(node_.conjugated());
        } else {
            return Base::conjugate();
        }
    }
    [[nodiscard]] auto adjoint() const {
        if constexpr (requires { node_.transposed(); }) {
            return transpose().conjugate();
        } else {
            return Base::adjoint();
        }
    }
    /// @}
    /// Zeros where the scalar is real, as of a matrix that is const; Eigen's other one wants elements to write to.
    [[nodiscard]] auto imag() const { return Base::imag(); }

    /// @name A product has no coefficients before it is evaluated; rows and columns chosen by lists are Eigen's views, of the
    /// evaluated product.
    /// @{
    template <class... Indices>
    auto operator()(const Indices&... indices) const {
        if constexpr (requires { node_.coefficient(indices...); }) {  // one entry of it costs no more than itself
            return node_.coefficient(indices...);
        } else if constexpr (sizeof...(Indices) > 0 && !(std::is_convertible_v<Indices, Eigen::Index> && ...)) {
            return Base::operator()(indices...);
        } else {
            static_assert(
                sizeof...(Indices) == 0 && eigen::always_false<NodeType>,
                "otimes: a product with a Kronecker product has no single coefficients, each would cost the whole "
                "product. Evaluate it first: auto Y = (X * K).eval(); Y(i, j).");
            return Scalar();
        }
    }
    template <class First, std::size_t RowCount, class Second, std::size_t ColCount>
    auto operator()(const First (&rows)[RowCount], const Second (&cols)[ColCount]) const {
        return Base::operator()(rows, cols);
    }
    template <class First, std::size_t RowCount, class Cols>
    auto operator()(const First (&rows)[RowCount], const Cols& cols) const {
        return Base::operator()(rows, cols);
    }
    template <class Rows, class Second, std::size_t ColCount>
    auto operator()(const Rows& rows, const Second (&cols)[ColCount]) const {
        return Base::operator()(rows, cols);
    }
    template <class AnyIndex>
    auto operator[](const AnyIndex& index) const {
        return (*this)(index);
    }
    template <class... Indices>
    Scalar coeff(const Indices&... indices) const {
        return (*this)(indices...);
    }
    /// @}

private:
    NodeType node_;
};

namespace eigen {

/// Whether all of a node is lowered as a real problem (lower.hpp). A program has one type: where that is not so, the parts that are real alone
/// are complex too.
template <class Node>
bool lowers_as_real(const Node& node, signature depends) {
    if constexpr (requires { node.lowers_as_real(depends); }) {
        return node.lowers_as_real(depends);
    } else {
        return false;  // a matrix that is added as it is
    }
}

/// alpha * L * X * R with the compile-time sizes of X on the sides that no kron touches.
template <class Scalar, int Rows, int Cols, bool RowMajor>
struct product {
    using scalar_type = Scalar;
    static constexpr int rows_at_compile_time = Rows;
    static constexpr int cols_at_compile_time = Cols;
    static constexpr bool row_major = (RowMajor && Cols != 1) || (Rows == 1 && Cols != 1);
    static constexpr bool holds_dense_term = false;

    product_node<Scalar> node;

    [[nodiscard]] std::int64_t rows() const { return node.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node.cols(); }
    void check() const {
        node.check();
        if constexpr (narrow_index) {
            require_index(node);
        }
    }

    [[nodiscard]] bool reads(const matrix_view& written, std::int64_t written_bytes) const {
        const strided_memory memory = memory_of(written, written_bytes);
        const auto meets = [&](const leaf& operand) { return detail::factor_reads<Scalar>(operand, memory); };
        return meets(node.x) || std::any_of(node.left.begin(), node.left.end(), meets) ||
               std::any_of(node.right.begin(), node.right.end(), meets);
    }

    template <class Destination>
    void evaluate(Destination& destination, bool add, const Scalar& scale) const {
        evaluate_product(node, view_of(destination), add, scale);
    }

    template <class Kept>
    void lower(lowering<Scalar>& low, const matrix_view& y, bool add, const Scalar& scale, Kept&) const {
        low.add_product(node, y, add, scale);
    }
    [[nodiscard]] bool lowers_as_real(signature depends) const {
        return is_real_problem(node, node.alpha) && !(depends == signature::by_type && node.complex_scale);
    }

    /// May X, at `y`, be overwritten pass by pass?
    [[nodiscard]] bool runs_in_place(const matrix_view& y, signature depends = signature::by_value) const {
        if constexpr (dtype_of<Scalar>() == dtype::other) {
            return false;
        } else {
            const bool doubled =
                is_real_problem(node, node.alpha) && !(depends == signature::by_type && node.complex_scale);
            return detail::replaces_itself(node, y, static_cast<std::int64_t>(sizeof(Scalar)), doubled);
        }
    }
};

/// scale * y for a lazy y that is not a product. A real y with a complex scale is evaluated first.
template <class Node, class Scalar>
struct scaled_node {
    using scalar_type = Scalar;
    static constexpr int rows_at_compile_time = Node::rows_at_compile_time;
    static constexpr int cols_at_compile_time = Node::cols_at_compile_time;
    static constexpr bool row_major = Node::row_major;
    static constexpr bool same_scalar = std::is_same_v<Scalar, typename Node::scalar_type>;
    static constexpr bool holds_dense_term = Node::holds_dense_term;

    lazy<Node> inner;
    Scalar factor;

    [[nodiscard]] std::int64_t rows() const { return inner.rows(); }
    [[nodiscard]] std::int64_t cols() const { return inner.cols(); }
    void check() const { inner.node().check(); }
    [[nodiscard]] bool reads(const matrix_view& written, std::int64_t bytes) const {
        return inner.node().reads(written, bytes);
    }
    template <class Destination>
    void evaluate(Destination& destination, bool add, const Scalar& scale) const {
        if constexpr (same_scalar) {
            inner.node().evaluate(destination, add, scale * factor);
        } else {
            const typename lazy<Node>::PlainObject value(inner);
            if (add) {
                destination.matrix() += (scale * factor) * value.template cast<Scalar>();
            } else {
                destination = (scale * factor) * value.template cast<Scalar>();
            }
        }
    }
    template <class Kept>
    void lower(lowering<Scalar>& low, const matrix_view& y, bool add, const Scalar& scale, Kept& kept) const {
        if constexpr (same_scalar) {
            inner.node().lower(low, y, add, scale * factor, kept);
        } else {
            using plain = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
            auto value = std::make_shared<const plain>(typename lazy<Node>::PlainObject(inner).template cast<Scalar>());
            low.add_dense(view_of(*value), y, scale * factor, add);
            low.target().noted.term_apart = true;
            kept.push_back(std::move(value));
        }
    }
    [[nodiscard]] bool lowers_as_real(signature depends) const {
        if constexpr (same_scalar && detail::is_complex_scalar<Scalar>) {
            return factor.imag() == detail::real_of<Scalar>(0) && eigen::lowers_as_real(inner.node(), depends);
        } else {
            return false;
        }
    }
};

/// How an operand of a sum is held: plain lvalues by reference, everything else by value.
template <class Operand>
using held = std::conditional_t<is_plain<bare<Operand>> && std::is_lvalue_reference_v<Operand>, const bare<Operand>&,
                                bare<Operand>>;

/// May evaluating `term` one element after the other read what has been written already? `in_place`: element (i, j) of the term
/// reads no other elements than its operands' (i, j), so an operand that is the destination itself does no harm.
template <class Term>
bool reads_what_is_written(const Term& term, const matrix_view& written, const strided_memory& memory, bool in_place) {
    if constexpr (lazy_node<Term> || is_evaluated_first<Term>) {
        return false;
    } else if constexpr (has_direct_access<Term>) {
        const matrix_view view = view_of(term);
        return !(in_place && view == written) &&
               overlap(memory_of(view, static_cast<std::int64_t>(sizeof(scalar_of<Term>))), memory);
    } else if constexpr (requires { term.functor(), term.lhs(), term.rhs(); }) {
        return reads_what_is_written(term.lhs(), written, memory, in_place) ||
               reads_what_is_written(term.rhs(), written, memory, in_place);
    } else if constexpr (requires { term.functor(), term.nestedExpression(); }) {
        return reads_what_is_written(term.nestedExpression(), written, memory, in_place);
    } else if constexpr (requires { term.nestedExpression(); }) {  // a transpose, a block, replicated, reversed, ..
        return reads_what_is_written(term.nestedExpression(), written, memory, false);
    } else {
        return !requires { term.functor(); };  // constants read nothing; what others read they do not tell
    }
}

/// Can Eigen add that expression to a matrix in place? Not a product with a permutation, which it has no `addTo` for.
template <class Type>
inline constexpr bool is_added_in_place = true;
template <class Lhs, class Rhs>
inline constexpr bool is_added_in_place<Eigen::Product<Lhs, Rhs, Eigen::DefaultProduct>> =
    requires(Eigen::Matrix<scalar_of<Eigen::Product<Lhs, Rhs>>, Eigen::Dynamic, Eigen::Dynamic>& y, const Lhs& lhs,
             const Rhs& rhs) {
    Eigen::internal::generic_product_impl<Lhs, Rhs>::addTo(y, lhs, rhs);
};
template <class Lhs, class Rhs>
inline constexpr bool is_added_in_place<Eigen::Product<Lhs, Rhs, Eigen::AliasFreeProduct>> =
    is_added_in_place<Eigen::Product<Lhs, Rhs, Eigen::DefaultProduct>>;
/// And its multiple? Eigen scales the left one of a product's matrices, which triangular and self-adjoint views do not allow.
template <class Type>
inline constexpr bool is_scaled_in_place = is_added_in_place<Type>;
template <class Lhs, class Rhs>
inline constexpr bool is_scaled_in_place<Eigen::Product<Lhs, Rhs, Eigen::DefaultProduct>> =
    is_added_in_place<Eigen::Product<Lhs, Rhs, Eigen::DefaultProduct>> && (dense<Lhs> || sparse_like<Lhs>);

/// Would a plan of the node read what it has written there?
template <class Node>
bool reads_when_lowered(const Node& node, const matrix_view& written, std::int64_t bytes) {
    if constexpr (requires { node.reads_when_lowered(written, bytes); }) {
        return node.reads_when_lowered(written, bytes);
    } else {
        return node.reads(written, bytes);
    }
}

/// First + sign * Second, at least one of them lazy: one assignment, then one accumulation. No temporary, but for a term that Eigen does not
/// add or scale in place.
template <class First, class Second>
struct sum {
    using first_type = bare<First>;
    using second_type = bare<Second>;
    using scalar_type = detail::common_scalar<scalar_of<First>, scalar_of<Second>>;
    static constexpr int rows_at_compile_time = first_type::RowsAtCompileTime != Eigen::Dynamic
                                                    ? int(first_type::RowsAtCompileTime)
                                                    : int(second_type::RowsAtCompileTime);
    static constexpr int cols_at_compile_time = first_type::ColsAtCompileTime != Eigen::Dynamic
                                                    ? int(first_type::ColsAtCompileTime)
                                                    : int(second_type::ColsAtCompileTime);
    static constexpr bool row_major = rows_at_compile_time == 1 && cols_at_compile_time != 1
                                          ? true
                                          : bool(first_type::IsRowMajor) && cols_at_compile_time != 1;
    template <class Term>
    static constexpr bool has_dense() {
        if constexpr (lazy_node<Term>) {
            return Term::node_type::holds_dense_term;
        } else {
            return true;
        }
    }
    static constexpr bool holds_dense_term = has_dense<first_type>() || has_dense<second_type>();

    held<First> first;
    held<Second> second;
    scalar_type sign;

    [[nodiscard]] std::int64_t rows() const { return first.rows(); }
    [[nodiscard]] std::int64_t cols() const { return first.cols(); }

    void check() const {
        check_term(first);
        check_term(second);
        if (first.rows() != second.rows() || first.cols() != second.cols()) {
            throw shape_error("otimes: sum: the first term is " + detail::shape_text(first.rows(), first.cols()) +
                              ", the second " + detail::shape_text(second.rows(), second.cols()) +
                              ". Terms of a sum must have equal shapes.");
        }
    }

    /// The branch with dense terms goes first, so that `Y = Y + X * K` needs no temporary. Whatever goes second must not
    /// read what the first has written.
    [[nodiscard]] bool reads(const matrix_view& written, std::int64_t bytes) const {
        return term_reads(first, written, bytes) || term_reads(second, written, bytes) ||
               (has_dense<first_type>() && has_dense<second_type>() && may_read_dense(second, written, bytes));
    }

    /// The same for a plan, whose terms that are no operands in memory are evaluated before anything is written.
    [[nodiscard]] bool reads_when_lowered(const matrix_view& written, std::int64_t bytes) const {
        return term_reads_when_lowered(first, written, bytes) || term_reads_when_lowered(second, written, bytes);
    }

    template <class Destination>
    void evaluate(Destination& destination, bool add, const scalar_type& scale) const {
        if constexpr (has_dense<second_type>() && !has_dense<first_type>()) {
            evaluate_term(second, destination, add, scale * sign);
            evaluate_term(first, destination, true, scale);
        } else {
            evaluate_term(first, destination, add, scale);
            evaluate_term(second, destination, true, scale * sign);
        }
    }

    template <class Kept>
    void lower(lowering<scalar_type>& low, const matrix_view& y, bool add, const scalar_type& scale, Kept& kept) const {
        lower_term(first, low, y, add, scale, kept);
        lower_term(second, low, y, true, scale * sign, kept);
    }
    [[nodiscard]] bool lowers_as_real(signature depends) const {
        return term_lowers_as_real(first, depends) && term_lowers_as_real(second, depends);
    }

private:
    template <class Term>
    static bool term_lowers_as_real(const Term& term, signature depends) {
        if constexpr (lazy_node<Term> && std::is_same_v<scalar_of<Term>, scalar_type>) {
            return eigen::lowers_as_real(term.node(), depends);
        } else {
            return false;
        }
    }
    template <class Term>
    static void check_term(const Term& term) {
        if constexpr (lazy_node<Term>) {
            term.node().check();
        }
    }
    template <class Term>
    static bool term_reads(const Term& term, const matrix_view& written, std::int64_t bytes) {
        if constexpr (lazy_node<Term>) {
            return term.node().reads(written, bytes);
        } else if constexpr (has_direct_access<Term>) {
            return reads_what_is_written(term, written, memory_of(written, bytes), true);
        } else {
            // What is evaluated first may be a product with a destination that is resized before.
            return written.rows != term.rows() || written.cols != term.cols() ||
                   reads_what_is_written(term, written, memory_of(written, bytes), true);
        }
    }
    template <class Term>
    static bool term_reads_when_lowered(const Term& term, const matrix_view& written, std::int64_t bytes) {
        if constexpr (!std::is_same_v<scalar_of<Term>, scalar_type>) {
            return false;
        } else if constexpr (lazy_node<Term>) {
            return eigen::reads_when_lowered(term.node(), written, bytes);
        } else {
            return has_direct_access<Term> && term_reads(term, written, bytes);
        }
    }
    template <class Term>
    static bool may_read_dense(const Term& term, const matrix_view& written, std::int64_t bytes) {
        if constexpr (!lazy_node<Term> && has_direct_access<Term>) {
            return overlap(memory_of(view_of(term), static_cast<std::int64_t>(sizeof(scalar_of<Term>))),
                           memory_of(written, bytes));
        } else {
            return true;  // an expression does not tell what it reads
        }
    }
    template <bool AsItIs, class Term>
    static decltype(auto) as_it_is_or_evaluated(const Term& term) {
        if constexpr (AsItIs) {
            return (term);
        } else {
            return typename Term::PlainObject(term);
        }
    }
    // An array takes a matrix by =, not by +=, hence matrix().
    template <class Term, class Destination>
    static void evaluate_term(const Term& term, Destination& destination, bool add, const scalar_type& scale) {
        if constexpr (lazy_node<Term>) {
            if constexpr (std::is_same_v<scalar_of<Term>, scalar_type>) {
                term.node().evaluate(destination, add, scale);
            } else {
                const typename Term::PlainObject value(term);
                evaluate_term(value, destination, add, scale);
            }
        } else if (scale == scalar_type(1)) {
            if (add) {
                destination.matrix() +=
                    as_it_is_or_evaluated<is_added_in_place<Term>>(term).template cast<scalar_type>();
            } else {
                destination = term.template cast<scalar_type>();
            }
        } else {
            constexpr bool as_it_is = is_scaled_in_place<Term>;
            if (add) {
                destination.matrix() += scale * as_it_is_or_evaluated<as_it_is>(term).template cast<scalar_type>();
            } else {
                destination = scale * as_it_is_or_evaluated<as_it_is>(term).template cast<scalar_type>();
            }
        }
    }
    template <class Term, class Kept>
    static void lower_term(const Term& term, lowering<scalar_type>& low, const matrix_view& y, bool add,
                           const scalar_type& scale, Kept& kept) {
        if constexpr (lazy_node<Term> && std::is_same_v<scalar_of<Term>, scalar_type>) {
            term.node().lower(low, y, add, scale, kept);
        } else if constexpr (!lazy_node<Term> && has_direct_access<Term> &&
                             std::is_same_v<scalar_of<Term>, scalar_type>) {
            low.add_dense(view_of(term), y, scale, add);
        } else {
            using plain = Eigen::Matrix<scalar_type, Eigen::Dynamic, Eigen::Dynamic>;
            auto value = std::make_shared<const plain>(term.template cast<scalar_type>());
            low.add_dense(view_of(*value), y, scale, add);
            low.target().noted.term_apart = true;
            kept.push_back(std::move(value));
        }
    }
};

/// May a destination be resized to that shape?
template <class Destination>
bool takes_shape(Eigen::Index rows, Eigen::Index cols) {
    constexpr int fixed_rows = Destination::RowsAtCompileTime;
    constexpr int fixed_cols = Destination::ColsAtCompileTime;
    constexpr int most_rows = Destination::MaxRowsAtCompileTime;
    constexpr int most_cols = Destination::MaxColsAtCompileTime;
    return is_resizable<Destination> && (fixed_rows == Eigen::Dynamic || fixed_rows == rows) &&
           (fixed_cols == Eigen::Dynamic || fixed_cols == cols) && (most_rows == Eigen::Dynamic || rows <= most_rows) &&
           (most_cols == Eigen::Dynamic || cols <= most_cols);
}

/// X = node in the memory of X: on the CPU, where no factor lies in X.
template <class Node>
bool overwrites_itself(const Node& node, const matrix_view& x) {
    if constexpr (requires { node.runs_in_place(x); }) {
        return node.runs_in_place(x) && current_executor().where() == placement::cpu;
    } else {
        return false;
    }
}

/// Destination (op)= source. The order is: check the shapes, test for overlap, resize, write.
template <class Functor, class Destination, class Node>
void assign(Destination& destination, const lazy<Node>& source, const Functor& functor) {
    using scalar = typename Node::scalar_type;
    using plain = typename lazy<Node>::PlainObject;
    constexpr assignment how = assignment_of<Functor>;
    static_assert(
        !detail::is_complex_scalar<scalar> || detail::is_complex_scalar<scalar_of<Destination>>,
        "otimes: a complex expression does not fit into a real matrix. Assign it to a complex one, or assign its "
        ".real() or .imag().");
    source.node().check();
    const bool fits = destination.rows() == source.rows() && destination.cols() == source.cols();
    if (!fits && how != assignment::overwrite) {
        detail::throw_other_shape(how == assignment::add        ? "+="
                                  : how == assignment::subtract ? "-="
                                                                : "op=",
                                  destination.rows(), destination.cols(), source.rows(), source.cols());
    }
    if (!fits && !takes_shape<Destination>(source.rows(), source.cols())) {
        detail::throw_fixed_shape(destination.rows(), destination.cols(), source.rows(), source.cols());
    }
    // What has no elements overlaps nothing, but may be an operand all the same, whose shape would change under the product.
    const bool empty = destination.rows() == 0 || destination.cols() == 0;
    const bool loses_shape =
        !fits && empty && (destination.rows() != destination.cols() || source.rows() == 0 || source.cols() == 0);
    const auto resize = [&] {
        if constexpr (is_resizable<Destination>) {
            if (!fits) {
                if constexpr (narrow_index) {
                    require_index_counts(source.rows(), source.cols());
                }
                const Eigen::Index rows = source.rows();
                const Eigen::Index cols = source.cols();
                if (destination.size() != rows * cols) {
                    // Eigen gives the memory back and then asks for other. Where there is none, std::bad_alloc must find an empty matrix.
                    destination.resize(Destination::RowsAtCompileTime == Eigen::Dynamic ? 0 : rows,
                                       Destination::ColsAtCompileTime == Eigen::Dynamic ? 0 : cols);
                }
                destination.resize(rows, cols);
            }
        }
    };
    if constexpr (!has_direct_access<Destination> || how == assignment::other ||
                  !std::is_same_v<scalar_of<Destination>, scalar>) {
        const plain value(source);
        resize();
        assign_without_alias(destination, value, functor);
    } else if (loses_shape ||
               (source.node().reads(view_of(destination), static_cast<std::int64_t>(sizeof(scalar))) &&
                !(how == assignment::overwrite && overwrites_itself(source.node(), view_of(destination))))) {
        plain value(source.rows(), source.cols());
        source.node().evaluate(value, false, scalar(1));
        if constexpr (how == assignment::overwrite && std::is_same_v<Destination, plain>) {
            if (!fits) {  // of the right shape it keeps its memory, on which the user may hold views
                destination.swap(value);
                return;
            }
        }
        resize();
        assign_without_alias(destination, value, functor);
    } else {
        resize();
        source.node().evaluate(destination, how != assignment::overwrite,
                               how == assignment::subtract ? scalar(-1) : scalar(1));
    }
}

template <class Node>
inline constexpr bool is_product_node = false;
template <class Scalar, int Rows, int Cols, bool RowMajor>
inline constexpr bool is_product_node<product<Scalar, Rows, Cols, RowMajor>> = true;

/// The leaf that m becomes in `K * m`, `m * K` over `Scalar`.
template <class Scalar, class Matrix>
leaf make_x_leaf(Matrix&& m) {
    if constexpr (is_identity_expression<bare<Matrix>>) {  // a factor needs no elements, X does
        return make_leaf_for<Scalar>(typename bare<Matrix>::PlainObject(m));
    } else {
        return make_leaf_for<Scalar>(std::forward<Matrix>(m));
    }
}

/// Puts K on one side of a product, where nothing is yet.
template <bool FromLeft, class Scalar, class Other>
void attach(product_node<Scalar>& node, const kron_expr<Other>& k) {
    factor_list& side = FromLeft ? node.left : node.right;
    if constexpr (std::is_same_v<Scalar, Other>) {
        side.append(k.node().factors());
    } else {
        kron_node<Scalar> converted;
        append_kron(converted, k.node());
        side = converted.factors();
    }
    (FromLeft ? node.has_left : node.has_right) = true;
    node.alpha = node.alpha * Scalar(k.node().alpha());
    node.complex_scale = node.complex_scale || k.node().complex_scale();
    node.rewritten.add(k.node().rewritten());
}

/// X * K1 * K2 as X * (K1 K2), K2 * K1 * X as (K2 K1) * X where the factors fit (expr/multiply_krons.hpp). False where not.
template <bool FromLeft, class Scalar, class Other>
bool merge(product_node<Scalar>& node, const kron_expr<Other>& k) {
    enable_structure<Scalar>();
    factor_list& side = FromLeft ? node.left : node.right;
    kron_node<Scalar> held;
    for (const leaf& factor : side) {
        held.append(factor);
    }
    kron_node<Scalar> next;
    append_kron(next, k.node());
    const kron_node<Scalar>& first = FromLeft ? next : held;
    const kron_node<Scalar>& second = FromLeft ? held : next;
    kron_node<Scalar> merged;
    if (first.cols() != second.rows() || !detail::mixed_product(first, second, merged)) {
        return false;
    }
    side = merged.factors();
    node.alpha = node.alpha * next.alpha();
    node.complex_scale = node.complex_scale || next.complex_scale();
    node.rewritten.add(merged.rewritten());
    return true;
}

/// The same product over a scalar that contains the old one.
template <class Scalar, class Other>
product_node<Scalar> promote(const product_node<Other>& from) {
    if constexpr (std::is_same_v<Scalar, Other>) {
        return from;
    } else {
        enable_structure<Scalar>();
        product_node<Scalar> to;
        static_cast<product_operands&>(to) = from;
        to.alpha = Scalar(from.alpha);
        to.x.set_real_elements(true);
        for (leaf& f : to.left) {
            f.set_real_elements(true);
        }
        for (leaf& f : to.right) {
            f.set_real_elements(true);
        }
        return to;
    }
}

/// Whose sum stays what can be an operator.
template <class First, class Second>
concept row_pairs_and_shift =
    is_row_pairs<bare<First>> && is_identity_multiple<bare<Second>> && shifts<Second, scalar_of<First>>;
template <class First, class Second>
concept summands = ((lazy_node<First> && dense<Second>) || (dense<First> && lazy_node<Second>)) &&
                   !(is_row_pairs<bare<First>> && is_row_pairs<bare<Second>>)&&!row_pairs_and_shift<First, Second> &&
                   !row_pairs_and_shift<Second, First>;

// Such a function is called in a static_assert, so that its sentence comes first: a call alone is instantiated behind what does
// not compile with these types, by GCC 16 not at all.
template <class Matrix, class Scalar>
constexpr bool require_same_line() {
    static_assert(
        detail::scalars_mix<scalar_of<Matrix>, Scalar>,
        "otimes: the matrix and the Kronecker product have different scalar types. Only a real type and its own "
        "complex type mix; convert one of them with .cast<Scalar>().");
    return true;
}

}  // namespace eigen

/// @name Scalar multiples. They stay products: one chain with a scalar.
/// @{
template <class Node, class Amount>
requires eigen::amount<Amount, typename Node::scalar_type>
[[nodiscard]] auto operator*(const lazy<Node>& y, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, typename Node::scalar_type>;
    if constexpr (eigen::is_product_node<Node>) {
        eigen::product<scalar, Node::rows_at_compile_time, Node::cols_at_compile_time, Node::row_major> result;
        result.node = eigen::promote<scalar>(y.node().node);
        result.node.alpha = result.node.alpha * detail::amount_as<scalar>(amount);
        result.node.rewritten.add(rewrite::scalar_gathered);
        result.node.complex_scale = result.node.complex_scale || detail::is_complex_scalar<Amount>;
        return lazy<decltype(result)>(std::move(result));
    } else {
        auto result = eigen::scaled_node<Node, scalar>{y, detail::amount_as<scalar>(amount)};
        return lazy<decltype(result)>(std::move(result));
    }
}
template <class Node, class Amount>
requires eigen::amount<Amount, typename Node::scalar_type>
[[nodiscard]] auto operator*(const Amount& amount, const lazy<Node>& y) { return y * amount; }
template <class Node, class Amount>
requires eigen::amount<Amount, typename Node::scalar_type>
[[nodiscard]] auto operator/(const lazy<Node>& y, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, typename Node::scalar_type>;
    static_assert(!std::is_integral_v<scalar>,
                  "otimes: a product of integers cannot be divided before it is evaluated, since 1 / n is 0. Write "
                  "(X * K).eval() / n to divide each entry.");
    if constexpr (eigen::is_product_node<Node>) {
        eigen::product<scalar, Node::rows_at_compile_time, Node::cols_at_compile_time, Node::row_major> result;
        result.node = eigen::promote<scalar>(y.node().node);
        result.node.alpha = result.node.alpha / detail::amount_as<scalar>(amount);
        result.node.rewritten.add(rewrite::scalar_gathered);
        result.node.complex_scale = result.node.complex_scale || detail::is_complex_scalar<Amount>;
        return lazy<decltype(result)>(std::move(result));
    } else {
        return y * (scalar(1) / detail::amount_as<scalar>(amount));
    }
}
template <class Node>
[[nodiscard]] auto operator-(const lazy<Node>& y) {
    return y * detail::real_of<typename Node::scalar_type>(-1);  // of a complex type it would make a plan complex
}
/// @}

/// @name Products. X: any dense expression; shapes are checked here and again at evaluation.
/// @{

namespace eigen {

/// X * K or K * X. `2.0 * X` gives its scalar to the product, `K1 * X` its factors; another lazy X is evaluated.
template <bool FromLeft, class Matrix, class Scalar>
auto multiply(Matrix&& x, const kron_expr<Scalar>& k) {
    using type = bare<Matrix>;
    static_assert(require_same_line<Matrix, Scalar>());
    using scalar = detail::common_scalar<scalar_of<Matrix>, Scalar>;
    constexpr int rows = FromLeft ? Eigen::Dynamic : int(type::RowsAtCompileTime);
    constexpr int cols = FromLeft ? int(type::ColsAtCompileTime) : Eigen::Dynamic;
    if constexpr (scalar_multiple<type>::value) {
        return multiply<FromLeft>(scalar_multiple<type>::matrix(x), k) * scalar_multiple<type>::amount(x);
    } else if constexpr (!lazy_node<Matrix>) {
        using node_type = product<scalar, rows, cols, bool(type::IsRowMajor)>;
        lazy<node_type> result;
        product_node<scalar>& node = result.edit().node;
        node.x = make_x_leaf<scalar>(std::forward<Matrix>(x));
        attach<FromLeft>(node, k);
        result.node().check();
        return result;
    } else if constexpr (is_product_node<typename type::node_type>) {
        using node_type = product<scalar, rows, cols, type::node_type::row_major>;
        lazy<node_type> result;
        product_node<scalar>& node = result.edit().node;
        node = promote<scalar>(x.node().node);
        if (!(FromLeft ? node.has_left : node.has_right)) {  // K1 * X * K2 is one product
            attach<FromLeft>(node, k);
        } else if (!merge<FromLeft>(node, k)) {
            node = {};
            node.x = make_leaf_for<scalar>(typename type::PlainObject(x));
            node.rewritten.add(rewrite::applied_in_sequence);
            attach<FromLeft>(node, k);
        }
        result.node().check();
        return result;
    } else {
        return multiply<FromLeft>(typename type::PlainObject(x), k);
    }
}

/// X * (s * identity(n)) or (s * identity(n)) * X, as a kron of one identity.
template <bool FromLeft, class Matrix, class Identity>
auto multiply_identity(Matrix&& x, const Identity& identity) {
    const auto shift = detail::shift_of(identity);
    kron_expr<scalar_of<Matrix>> k;
    k.edit().append(leaf::identity(shift.order >= 0 ? shift.order : FromLeft ? x.rows() : x.cols()));
    auto product = multiply<FromLeft>(std::forward<Matrix>(x), k);
    if constexpr (requires { identity.scale; }) {
        return product * identity.scale;
    } else {
        return product;
    }
}

}  // namespace eigen

/// X * K. @throws shape_error when cols(X) != rows(K).
template <class Matrix, class Scalar>
requires(eigen::dense<Matrix>) [[nodiscard]] auto operator*(Matrix&& x, const kron_expr<Scalar>& k) {
    return eigen::multiply<false>(std::forward<Matrix>(x), k);
}

/// K * X, K * v. @throws shape_error when cols(K) != rows(X).
template <class Scalar, class Matrix>
requires(eigen::dense<Matrix>) [[nodiscard]] auto operator*(const kron_expr<Scalar>& k, Matrix&& x) {
    return eigen::multiply<true>(std::forward<Matrix>(x), k);
}

/// A kron of identities and permutations takes the scalar of X.
template <class Matrix, bool Permutes, bool Fraction>
requires(eigen::dense<Matrix>) [[nodiscard]] auto operator*(Matrix&& x, const index_kron<Permutes, Fraction>& k) {
    return eigen::multiply<false>(std::forward<Matrix>(x), k.template cast<eigen::scalar_of<Matrix>>());
}
template <class Matrix, bool Permutes, bool Fraction>
requires(eigen::dense<Matrix>) [[nodiscard]] auto operator*(const index_kron<Permutes, Fraction>& k, Matrix&& x) {
    return eigen::multiply<true>(std::forward<Matrix>(x), k.template cast<eigen::scalar_of<Matrix>>());
}

/// X * identity(n), X * (s * identity()), and from the left: X, or s X. @throws shape_error an identity of another order
template <class Matrix, detail::identity_like Identity>
requires(eigen::dense<Matrix>) [[nodiscard]] auto operator*(Matrix&& x, const Identity& identity) {
    return eigen::multiply_identity<false>(std::forward<Matrix>(x), identity);
}
template <detail::identity_like Identity, class Matrix>
requires(eigen::dense<Matrix>) [[nodiscard]] auto operator*(const Identity& identity, Matrix&& x) {
    return eigen::multiply_identity<true>(std::forward<Matrix>(x), identity);
}
/// @}

namespace eigen {

/// Lazy products that Eigen multiplies further, and what it multiplies them with.
template <class Node>
concept multiplied_by_eigen = !is_row_pairs<lazy<Node>>;
template <class Type>
concept matrix_of_eigen = dense<Type> || side_like<Type> || triangular_like<Type>;

template <class First, class Second>
void require_inner_extent(const First& y, const Second& z) {
    if (y.cols() != z.rows()) {
        detail::throw_unfit_product(y.rows(), y.cols(), z.rows(), z.cols());
    }
}

}  // namespace eigen

/// @name Products of a lazy one with a matrix: X * K * Z, W * (K * v). They are Eigen's, which asks for the shapes in debug builds alone.
/// @throws shape_error the inner extents differ
/// @{
template <class Node, class Matrix>
requires(eigen::multiplied_by_eigen<Node>&& eigen::matrix_of_eigen<Matrix> && !eigen::is_row_pairs<Matrix>)
    [[nodiscard]] auto
    operator*(const lazy<Node>& y, const Matrix& z) {
    eigen::require_inner_extent(y, z);
    return static_cast<const Eigen::MatrixBase<lazy<Node>>&>(y) * z;
}
template <class Matrix, class Node>
requires(eigen::multiplied_by_eigen<Node>&& eigen::matrix_of_eigen<Matrix> && !eigen::lazy_node<Matrix>)
    [[nodiscard]] auto
    operator*(const Matrix& z, const lazy<Node>& y) {
    eigen::require_inner_extent(z, y);
    return z * static_cast<const Eigen::MatrixBase<lazy<Node>>&>(y);
}
/// @}

/// @name Sums with any dense expression: evaluated as an assignment and an accumulation.
/// @{
template <class First, class Second>
requires eigen::summands<First, Second>
[[nodiscard]] auto operator+(First&& first, Second&& second) {
    static_assert(eigen::require_same_line<First, eigen::scalar_of<Second>>());
    using node = eigen::sum<First, Second>;
    node result{std::forward<First>(first), std::forward<Second>(second), typename node::scalar_type(1)};
    result.check();
    return lazy<node>(std::move(result));
}
template <class First, class Second>
requires eigen::summands<First, Second>
[[nodiscard]] auto operator-(First&& first, Second&& second) {
    static_assert(eigen::require_same_line<First, eigen::scalar_of<Second>>());
    using node = eigen::sum<First, Second>;
    node result{std::forward<First>(first), std::forward<Second>(second), typename node::scalar_type(-1)};
    result.check();
    return lazy<node>(std::move(result));
}
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes
