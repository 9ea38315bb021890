// SPDX-License-Identifier: MIT
/// @file sums.hpp
/// Sums and products of Kronecker products over Eigen matrices: `kron(A, M) + kron(M, A) - 2 * kron(M, M)`,
/// `kron_sum(A, B, C)`, `K + s * identity()`, `K + d.asDiagonal()`, `kron(A, B) * kron(C, D)`. One value type per scalar,
/// whatever the formula; it is applied as one program (expr/lower_tree.hpp) and never formed.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/blocks.hpp>
#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/structured.hpp>
#include <otimes/adapt/evaluate_sum.hpp>
#include <otimes/expr/lower_tree.hpp>
#include <otimes/expr/multiply_krons.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/expr/tree.hpp>
#include <otimes/factorwise/inner_products.hpp>
#include <otimes/factorwise/product_diagonal.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// A sum or product of Kronecker products over `ScalarType`, lazy. Copying it is cheap; its type does not depend on the
/// formula, so it can be a class member. An Eigen operator: `S * X`, `X * S`, and Eigen's iterative solvers
/// (`ConjugateGradient<sum_expr<double>, Lower | Upper, IdentityPreconditioner>`).
///
/// Shape: rows() x cols(). Lifetime: per factor, as in kron. It never turns into a matrix unless `toDenseMatrix()` says so.
template <class ScalarType>
class sum_expr : public eigen::operator_base<sum_expr<ScalarType>> {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<ScalarType>;
    using StorageIndex = Eigen::Index;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    enum {
        ColsAtCompileTime = Eigen::Dynamic,
        RowsAtCompileTime = Eigen::Dynamic,
        MaxRowsAtCompileTime = Eigen::Dynamic,
        MaxColsAtCompileTime = Eigen::Dynamic,
        IsRowMajor = false
    };

    sum_expr() : tree_(std::make_shared<const operator_tree<Scalar>>()) {}
    explicit sum_expr(operator_tree<Scalar> tree)
        : tree_(std::make_shared<const operator_tree<Scalar>>(std::move(tree))) {
        eigen::require_index(*tree_);
    }
    /// A single kron as a sum of one term.
    sum_expr(const kron_expr<Scalar>& k) : sum_expr(operator_tree<Scalar>(k.node())) {}

    /// The extents that all terms have.
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(tree_->rows()); }
    [[nodiscard]] Eigen::Index cols() const { return eigen::index_of(tree_->cols()); }
    /// The Eigen-free tree of sums, products and krons, which copies share (expr/tree.hpp).
    [[nodiscard]] const operator_tree<Scalar>& tree() const noexcept { return *tree_; }
    [[nodiscard]] const std::shared_ptr<const operator_tree<Scalar>>& shared_tree() const noexcept { return tree_; }

    /// Number of terms: 1 for a single Kronecker product and for a product of operators.
    [[nodiscard]] std::size_t term_count() const noexcept {
        return tree_->kind == tree_kind::sum ? tree_->parts.size() : 1;
    }
    /// True when the rewriting has left one Kronecker product.
    [[nodiscard]] bool is_kron() const noexcept { return tree_->kind == tree_kind::kron; }
    /// That Kronecker product. @throws unsupported_error where there is none.
    [[nodiscard]] kron_expr<Scalar> as_kron() const {
        if (!is_kron()) {
            throw unsupported_error("otimes: as_kron(): the expression is " + tree_->name() +
                                    ", not a single Kronecker product. Ask is_kron() first.");
        }
        return kron_expr<Scalar>(tree_->kron);
    }

    /// Element (i, j). Cost: the number of factors per term. @throws shape_error outside the matrix.
    [[nodiscard]] Scalar operator()(Eigen::Index i, Eigen::Index j) const {
        tree_->check();
        if (i < 0 || j < 0 || i >= rows() || j >= cols()) {
            throw shape_error("otimes: " + tree_->name() + "(" + std::to_string(i) + ", " + std::to_string(j) +
                              "): it is " + detail::shape_text(rows(), cols()) + ".");
        }
        return tree_->coefficient(i, j);
    }
    /// As S(i, j).
    [[nodiscard]] Scalar coeff(Eigen::Index i, Eigen::Index j) const { return (*this)(i, j); }

    /// The whole matrix, rows() x cols(). The only way to form it. Cost: each term as a matrix. @throws shape_error when it cannot be
    /// addressed, std::bad_alloc where there is no memory for it
    [[nodiscard]] DenseMatrix toDenseMatrix() const { return dense_of(checked()); }

    /// The sum of the terms' transposes (conjugates, adjoints); of products of operators in reversed order. Cost: a copy of the tree.
    [[nodiscard]] sum_expr transpose() const {
        operator_tree<Scalar> result = *tree_;
        result.transpose();
        return sum_expr(std::move(result));
    }
    /// See transpose().
    [[nodiscard]] sum_expr conjugate() const {
        operator_tree<Scalar> result = *tree_;
        result.conjugate();
        return sum_expr(std::move(result));
    }
    /// See transpose().
    [[nodiscard]] sum_expr adjoint() const { return transpose().conjugate(); }

    /// The trace. Cost: O(factors) for sums of krons with square factors, else that of the diagonal. @throws shape_error not square
    [[nodiscard]] Scalar trace() const { return trace_of(checked()); }
    /// The diagonal, min(rows, cols) entries. Cost: O(factors) for each entry and term; of a product of operators the stored elements of
    /// that row and column of the sparse, diagonal and permutation matrices that it begins and ends with, else an application to a vector.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> diagonal() const { return diagonal_of(checked()); }

    /// The Frobenius norm and its square, through inner products of the factors (factorwise/inner_products.hpp): no term is formed.
    /// @throws unsupported_error two terms have factors of different shapes, or a term is a product of operators
    [[nodiscard]] RealScalar squaredNorm() const { return squared_norm(checked()); }
    /// The root of squaredNorm(); overflows and vanishes only where it has no other value.
    [[nodiscard]] RealScalar norm() const { return norm_of(checked()); }

    /// @name Defined in otimes/algebra.hpp: include it to use them.
    /// @{

    /// X, rows() x b.cols(), with S * X = b, where the factors at each place can be diagonalised or made triangular together. Cost: the
    /// factors' decompositions, then 2 products and a division, or more (docs/algebra/solving.md); kron_sum_solver keeps the former.
    /// @throws shape_error a sum that is not square, or b of other rows; singular_error; unsupported_error a sum without such a form
    template <class Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        if constexpr (eigen::may_solve_for<Rhs, Scalar>()) {
            return eigen::algebra<sum_expr>::solve(*this, b);
        } else {
            return DenseMatrix();
        }
    }
    /// log |det S|, where solve() knows S; -infinity where it is singular to working precision. @throws as solve() otherwise
    [[nodiscard]] auto logAbsDeterminant() const { return eigen::algebra<sum_expr>::log_abs_determinant(*this); }
    /// @}

    template <class Destination>
    void evalTo(Destination&) const {
        static_assert(
            eigen::always_false<Destination>,
            "otimes: a sum of Kronecker products does not turn into a matrix by itself. Write S.toDenseMatrix() to "
            "form it, or multiply it with a matrix.");
    }
    template <class Destination>
    void addTo(Destination& destination) const {
        evalTo(destination);
    }
    template <class Destination>
    void subTo(Destination& destination) const {
        evalTo(destination);
    }

private:
    /// The tree, whose factors may have been resized. @throws shape_error
    [[nodiscard]] const operator_tree<Scalar>& checked() const {
        tree_->check();
        return *tree_;
    }
    static DenseMatrix dense_of(const operator_tree<Scalar>& tree) {
        std::int64_t ignored = 0;
        if (!checked_multiply(tree.rows(), tree.cols(), ignored)) {
            throw shape_error("otimes: toDenseMatrix() of " + tree.name() + ": " +
                              detail::shape_text(tree.rows(), tree.cols()) + " elements exceed 2^63 - 1.");
        }
        eigen::require_index_counts(tree.rows(), tree.cols());
        if (tree.kind == tree_kind::kron) {
            return kron_expr<Scalar>(tree.kron).toDenseMatrix();
        }
        DenseMatrix result = dense_of(tree.parts.front());
        for (std::size_t k = 1; k < tree.parts.size(); ++k) {
            if (tree.kind == tree_kind::sum) {
                result += dense_of(tree.parts[k]);
            } else {
                DenseMatrix next(result.rows(), eigen::index_of(tree.parts[k].cols()));
                next.setZero();
                const DenseMatrix right = dense_of(tree.parts[k]);
                for (Eigen::Index j = 0; j < next.cols(); ++j) {
                    for (Eigen::Index p = 0; p < right.rows(); ++p) {
                        next.col(j) += result.col(p) * right(p, j);
                    }
                }
                result.swap(next);
            }
        }
        return result;
    }
    static Scalar trace_of(const operator_tree<Scalar>& tree) {
        if (tree.kind == tree_kind::kron) {
            return kron_expr<Scalar>(tree.kron).trace();
        }
        if (tree.rows() != tree.cols()) {
            throw shape_error("otimes: trace() of " + tree.name() + ": it is " +
                              detail::shape_text(tree.rows(), tree.cols()) + "; only a square matrix has a trace.");
        }
        Scalar result(0);
        if (tree.kind == tree_kind::sum) {
            for (const operator_tree<Scalar>& part : tree.parts) {
                result = result + trace_of(part);
            }
        } else {
            for (const Scalar& entry : diagonal_of(tree)) {
                result = result + entry;
            }
        }
        return result;
    }
    static Eigen::Matrix<Scalar, Eigen::Dynamic, 1> diagonal_of(const operator_tree<Scalar>& tree) {
        if (tree.kind == tree_kind::kron) {
            const factor_list& factors = tree.kron.factors();
            if (factors.size() == 1 && factors[0].kind() == factor_kind::low_rank) {
                return diagonal_of(detail::unfolded_product(tree.kron));
            }
            return kron_expr<Scalar>(tree.kron).diagonal();
        }
        const std::int64_t n = tree.rows() < tree.cols() ? tree.rows() : tree.cols();
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> result(static_cast<Eigen::Index>(n));
        if (tree.kind == tree_kind::sum) {
            result.setZero();
            for (const operator_tree<Scalar>& part : tree.parts) {
                result += diagonal_of(part);
            }
        } else if (!detail::diagonal_by_elements(tree, n, [&result](std::int64_t i, const Scalar& entry) {
                       result(static_cast<Eigen::Index>(i)) = entry;
                   })) {
            write_diagonal(tree, result);
        }
        return result;
    }
    /// Of a product: a few of its columns at a time, as it is applied to those of the identity.
    static void write_diagonal(const operator_tree<Scalar>& tree, Eigen::Matrix<Scalar, Eigen::Dynamic, 1>& result) {
        const Eigen::Index width = (std::min)(result.size(), Eigen::Index(16));
        if (width == 0) {
            return;
        }
        DenseMatrix unit = DenseMatrix::Zero(eigen::index_of(tree.cols()), width);
        DenseMatrix image(eigen::index_of(tree.rows()), width);
        eigen::movable_program<Scalar> program([&](lowering<Scalar>& low) {
            if (!tree.is_real()) {
                low.compute_complex();
            }
            detail::lower_tree(low, tree, leaf::borrowed(eigen::view_of(unit)), true, eigen::view_of(image), false,
                               Scalar(1));
        });
        for (Eigen::Index begin = 0; begin < result.size(); begin += width) {
            const Eigen::Index count = (std::min)(width, result.size() - begin);
            unit.block(begin, 0, count, count).setIdentity();
            program.run();
            unit.block(begin, 0, count, count).setZero();
            for (Eigen::Index k = 0; k < count; ++k) {
                result(begin + k) = image(begin + k, k);
                if constexpr (std::is_floating_point_v<RealScalar>) {  // the zeros may have met what is infinite
                    if (!detail::is_finite(result(begin + k))) {
                        result(begin + k) = tree.coefficient(begin + k, begin + k);
                    }
                }
            }
        }
    }

    std::shared_ptr<const operator_tree<Scalar>> tree_;
};

namespace eigen {

/// alpha * L * X * R with trees.
template <class Scalar, int Rows, int Cols, bool RowMajor>
struct tree_product {
    using scalar_type = Scalar;
    static constexpr int rows_at_compile_time = Rows;
    static constexpr int cols_at_compile_time = Cols;
    static constexpr bool row_major = (RowMajor && Cols != 1) || (Rows == 1 && Cols != 1);
    static constexpr bool holds_dense_term = false;

    tree_product_node<Scalar> node;

    [[nodiscard]] std::int64_t rows() const { return node.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node.cols(); }
    void check() const {
        node.check();
        require_index(node);
    }

    [[nodiscard]] bool reads(const matrix_view& written, std::int64_t written_bytes) const {
        const strided_memory memory = memory_of(written, written_bytes);
        bool found = false;
        const auto look = [&](const leaf& factor) { found = found || detail::factor_reads<Scalar>(factor, memory); };
        look(node.x);
        for (const auto* tree : {node.left.get(), node.right.get()}) {
            if (tree != nullptr) {
                tree->for_each_factor(look);
            }
        }
        return found;
    }

    template <class Destination>
    void evaluate(Destination& destination, bool add, const Scalar& scale) const {
        const matrix_view y = view_of(destination);
        const matrix_view x = node.x.view();
        // X and Y, and what lies between the mode products of a sum: in ranges that
        // stay in cache.
        const bool of_columns = !node.right;
        const std::int64_t total = of_columns ? x.cols : x.rows;
        const bool contiguous = (of_columns ? x.col_stride : x.row_stride) == 1;
        const std::int64_t held = of_columns ? x.rows + 4 * y.rows : x.cols + 4 * y.cols;
        const bool cut = !(node.left && node.right) && dtype_of<Scalar>() != dtype::other;
        const std::int64_t held_bytes = held * static_cast<std::int64_t>(sizeof(Scalar));
        // Rows that lie apart and fit in cache are what the cpu executor runs one by one itself.
        const bool rows = !contiguous && held_bytes <= current_executor().target().cpu.l2_bytes;
        const std::int64_t step = cut && !rows ? indices_in_cache(total, held_bytes, contiguous ? 16 : 1) : total;
        if (step >= total) {
            evaluate_sum(node, y, add, scale, [&](lowering<Scalar>& low) { write(low, node.x, y, add, scale); });
            return;
        }
        const std::int64_t whole = total / step;
        const std::int64_t x_bytes = element_bytes_of<Scalar>(node.x);
        const auto y_bytes = static_cast<std::int64_t>(sizeof(Scalar));
        const auto run = [&](std::int64_t begin, std::int64_t width, std::int64_t count) {
            const leaf x_part = part_of(node.x, of_columns, begin, width, x_bytes);
            const matrix_view y_part = part_of(y, of_columns, begin, width, y_bytes);
            movable_program<Scalar> program([&](lowering<Scalar>& low) { write(low, x_part, y_part, add, scale); });
            const std::int64_t x_step = width * (of_columns ? x.col_stride : x.row_stride) * x_bytes;
            const std::int64_t y_step = width * (of_columns ? y.col_stride : y.row_stride) * y_bytes;
            const auto* x_at = static_cast<const char*>(x_part.view().data);
            const auto* y_at = static_cast<const char*>(y_part.data);
            for (std::int64_t k = 0; k < count; ++k) {
                program.run();
                program.move(tensor_role::input, x_at, x_step);
                program.move(tensor_role::output, y_at, y_step);
                x_at += x_step;
                y_at += y_step;
            }
        };
        run(0, step, whole);
        if (whole * step < total) {
            run(whole * step, total - whole * step, 1);
        }
    }

    template <class Kept>
    void lower(lowering<Scalar>& low, const matrix_view& y, bool add, const Scalar& scale, Kept&) const {
        write(low, node.x, y, add, scale);
    }
    [[nodiscard]] bool lowers_as_real(signature depends) const { return is_real(depends, Scalar(1)); }
    /// use(program, bindings) of y = this, which is not lowered again where this thread has done that lately.
    template <class Use>
    void with_program(const matrix_view& y, const Use& use) const {
        with_sum_program(
            node, y, [&](lowering<Scalar>& low) { write(low, node.x, y, false, Scalar(1)); }, use);
    }

private:
    [[nodiscard]] bool is_real(signature depends, const Scalar& scale) const {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            const auto real = [depends](const auto& tree) {
                return tree == nullptr || tree->is_real(depends == signature::by_type);
            };
            return (scale * node.alpha).imag() == detail::real_of<Scalar>(0) && !node.x.real_elements() &&
                   !node.x.conjugated() && real(node.left) && real(node.right);
        } else {
            return false;
        }
    }
    void write(lowering<Scalar>& low, leaf x, const matrix_view& y, bool add, const Scalar& scale) const {
        for (const auto* tree : {node.left.get(), node.right.get()}) {
            if (tree != nullptr) {
                low.target().rewritten.add(tree->rewritten());
            }
        }
        if (!is_real(low.depends(), scale)) {
            low.compute_complex();
        }
        if (node.left && node.right) {
            const matrix_view between = low.scratch(node.left->rows(), x.view().cols, y);
            detail::lower_tree(low, *node.left, x, true, between, false, Scalar(1));
            const memory_space space = x.space();
            x = leaf::borrowed(between);
            x.set_space(space);
        }
        if (node.right) {
            detail::lower_tree(low, *node.right, x, false, y, add, Scalar(scale * node.alpha));
        } else {
            detail::lower_tree(low, *node.left, x, true, y, add, Scalar(scale * node.alpha));
        }
    }
};

template <class Type>
inline constexpr bool is_sum = false;
template <class Scalar>
inline constexpr bool is_sum<sum_expr<Scalar>> = true;

/// A kron or a sum.
template <class Type>
concept kron_operator = is_kron<bare<Type>> || is_sum<bare<Type>>;

/// What is added to an operator entry by entry: Eigen's matrices with structure.
template <class Type>
concept sparse_term =
    diagonal_like<Type> || sparse_matrix_like<Type> || permutation_like<Type> || triangular_like<Type>;

/// S += term: S + term is what S is.
template <class Scalar, class Term>
concept added_in_place = requires(const sum_expr<Scalar>& s, Term&& term) {
    { s + std::forward<Term>(term) } -> std::same_as<sum_expr<Scalar>>;
};

template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const kron_expr<Other>& k) {
    kron_node<Scalar> node;
    append_kron(node, k.node());
    return operator_tree<Scalar>(std::move(node));
}
template <class Scalar, bool Permutes, bool Fraction>
operator_tree<Scalar> tree_of(const index_kron<Permutes, Fraction>& k) {
    return tree_of<Scalar>(k.template cast<Scalar>());
}
template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const sum_expr<Other>& s) {
    if constexpr (!std::is_same_v<Scalar, Other>) {
        enable_structure<Scalar>();
    }
    return promote_tree<Scalar>(s.tree());
}

/// Of a kron without a scalar type and another operator: that of the other.
template <class First, class Second>
using common_operator_scalar = std::conditional_t<
    is_index_kron<bare<First>>, typename bare<Second>::Scalar,
    std::conditional_t<is_index_kron<bare<Second>>, typename bare<First>::Scalar,
                       detail::common_scalar<typename bare<First>::Scalar, typename bare<Second>::Scalar>>>;

/// The scalar of an operator with a matrix beside it; a permutation has none.
template <class Matrix, class Scalar>
struct scalar_beside {
    static_assert(detail::scalars_mix<scalar_of<Matrix>, Scalar>,
                  "otimes: a matrix beside a Kronecker product has another scalar type. Only a real type and its own "
                  "complex type mix; convert one of them with .cast<Scalar>().");
    using type = detail::common_scalar<scalar_of<Matrix>, Scalar>;
};
template <permutation_like Matrix, class Scalar>
struct scalar_beside<Matrix, Scalar> {
    using type = Scalar;
};
/// The same of an operator that may have none, as a kron of permutations: the matrix's.
template <class Operator, class Matrix>
using scalar_of_term = std::conditional_t<is_index_kron<bare<Operator>>, scalar_beside<bare<Matrix>, scalar_of<Matrix>>,
                                          scalar_beside<bare<Matrix>, typename bare<Operator>::Scalar>>;

template <class First, class Second>
constexpr bool require_operators_mix() {
    static_assert(
        is_index_kron<bare<First>> || is_index_kron<bare<Second>> ||
            detail::scalars_mix<typename bare<First>::Scalar, typename bare<Second>::Scalar>,
        "otimes: a sum or product of operators mixes scalar types. Only a real type and its own complex type mix; "
        "convert the others with .cast<Scalar>().");
    return true;
}

template <class Scalar, class Operator>
operator_tree<Scalar> scaled_tree(const Operator& op, const Scalar& amount) {
    operator_tree<Scalar> tree = tree_of<Scalar>(op);
    tree.scale(amount);
    return tree;
}

/// amount times the identity that fits beside `op`. @throws shape_error when op is not square.
template <class Scalar, class Operator>
operator_tree<Scalar> identity_beside(const Operator& op, const Scalar& amount, std::int64_t order = -1) {
    detail::check_shift(op.rows(), op.cols(), order);
    kron_node<Scalar> node;
    node.append(leaf::identity(op.rows()));
    node.set_alpha(amount);
    return operator_tree<Scalar>(std::move(node));
}

/// amount times a diagonal or sparse matrix.
template <class Scalar, class Matrix>
operator_tree<Scalar> term_tree(Matrix&& d, const Scalar& amount) {
    kron_node<Scalar> node;
    append_argument(node, std::forward<Matrix>(d));
    node.set_alpha(amount);
    return operator_tree<Scalar>(std::move(node));
}

template <class Scalar, bool FromLeft, class Matrix>
auto tree_times(Matrix&& x, std::shared_ptr<const operator_tree<Scalar>> tree) {
    using type = bare<Matrix>;
    if constexpr (scalar_multiple<type>::value) {
        return tree_times<Scalar, FromLeft>(scalar_multiple<type>::matrix(x), std::move(tree)) *
               scalar_multiple<type>::amount(x);
    } else {
        constexpr int rows = FromLeft ? Eigen::Dynamic : int(type::RowsAtCompileTime);
        constexpr int cols = FromLeft ? int(type::ColsAtCompileTime) : Eigen::Dynamic;
        tree_product<Scalar, rows, cols, bool(type::IsRowMajor)> result;
        if constexpr (is_identity_expression<type> || lazy_node<Matrix>) {
            result.node.x = make_leaf_for<Scalar>(typename type::PlainObject(x));
        } else {
            result.node.x = make_leaf_for<Scalar>(std::forward<Matrix>(x));
        }
        (FromLeft ? result.node.left : result.node.right) = std::move(tree);
        result.check();
        enable_row_steps<Scalar>();  // here: the bits of a plan must not change with the first sum that is evaluated
        return lazy<decltype(result)>(std::move(result));
    }
}

template <class Scalar, class Other>
std::shared_ptr<const operator_tree<Scalar>> shared_tree_of(const sum_expr<Other>& s) {
    if constexpr (std::is_same_v<Scalar, Other>) {
        return s.shared_tree();
    } else {
        enable_structure<Scalar>();
        return std::make_shared<const operator_tree<Scalar>>(promote_tree<Scalar>(s.tree()));
    }
}

}  // namespace eigen

/// @name Sums of operators.
/// @{
template <class First, class Second>
requires(eigen::kron_operator<First>&& eigen::kron_operator<Second>) [[nodiscard]] auto operator+(
    const First& first, const Second& second) {
    static_assert(eigen::require_operators_mix<First, Second>());
    using scalar = eigen::common_operator_scalar<First, Second>;
    return sum_expr<scalar>(add_trees(eigen::tree_of<scalar>(first), eigen::tree_of<scalar>(second)));
}
template <class First, class Second>
requires(eigen::kron_operator<First>&& eigen::kron_operator<Second>) [[nodiscard]] auto operator-(
    const First& first, const Second& second) {
    static_assert(eigen::require_operators_mix<First, Second>());
    using scalar = eigen::common_operator_scalar<First, Second>;
    return sum_expr<scalar>(add_trees(eigen::tree_of<scalar>(first), eigen::scaled_tree<scalar>(second, scalar(-1))));
}
/// K + s * identity(), K + identity(n), K + s * MatrixXd::Identity(n, n): no identity is formed. A complex s makes the operator complex.
/// @throws shape_error an operator that is not square, an identity of another order
template <class Operator, class Identity>
requires(eigen::kron_operator<Operator>&& eigen::shifts<Identity, typename Operator::Scalar>) [[nodiscard]] auto
operator+(const Operator& op, const Identity& identity) {
    const auto shift = eigen::shift_of(identity);
    using scalar = detail::scaled_scalar<decltype(shift.scale), typename Operator::Scalar>;
    return sum_expr<scalar>(
        add_trees(eigen::tree_of<scalar>(op),
                  eigen::identity_beside<scalar>(op, detail::amount_as<scalar>(shift.scale), shift.order)));
}
template <class Operator, class Identity>
requires(eigen::kron_operator<Operator>&& eigen::shifts<Identity, typename Operator::Scalar>) [[nodiscard]] auto
operator+(const Identity& identity, const Operator& op) {
    return op + identity;
}
template <class Operator, class Identity>
requires(eigen::kron_operator<Operator>&& eigen::shifts<Identity, typename Operator::Scalar>) [[nodiscard]] auto
operator-(const Operator& op, const Identity& identity) {
    const auto shift = eigen::shift_of(identity);
    const auto amount = detail::multiply_amounts(-1, shift.scale);
    return op + scaled_identity<eigen::bare<decltype(amount)>>{amount, shift.order};
}
template <class Operator, class Identity>
requires(eigen::kron_operator<Operator>&& eigen::shifts<Identity, typename Operator::Scalar>) [[nodiscard]] auto
operator-(const Identity& identity, const Operator& op) {
    return -op + identity;
}
/// K + d.asDiagonal(), K + W with a sparse W: the vector, the lvalue matrix, is borrowed like a factor.
template <class Operator, class Matrix>
requires(eigen::kron_operator<Operator>&& eigen::sparse_term<Matrix>) [[nodiscard]] auto operator+(const Operator& op,
                                                                                                   Matrix&& d) {
    using scalar = typename eigen::scalar_of_term<Operator, Matrix>::type;
    return sum_expr<scalar>(
        add_trees(eigen::tree_of<scalar>(op), eigen::term_tree<scalar>(std::forward<Matrix>(d), scalar(1))));
}
template <class Operator, class Matrix>
requires(eigen::kron_operator<Operator>&& eigen::sparse_term<Matrix>) [[nodiscard]] auto operator+(Matrix&& d,
                                                                                                   const Operator& op) {
    return op + std::forward<Matrix>(d);
}
template <class Operator, class Matrix>
requires(eigen::kron_operator<Operator>&& eigen::sparse_term<Matrix>) [[nodiscard]] auto operator-(const Operator& op,
                                                                                                   Matrix&& d) {
    using scalar = typename eigen::scalar_of_term<Operator, Matrix>::type;
    return sum_expr<scalar>(
        add_trees(eigen::tree_of<scalar>(op), eigen::term_tree<scalar>(std::forward<Matrix>(d), scalar(-1))));
}
template <class Operator, class Matrix>
requires(eigen::kron_operator<Operator>&& eigen::sparse_term<Matrix>) [[nodiscard]] auto operator-(Matrix&& d,
                                                                                                   const Operator& op) {
    return -op + std::forward<Matrix>(d);
}
/// S += K, S -= K, for sums whose number of terms is known at run time. @throws shape_error; S is then as it was
template <class Scalar, class Term>
requires eigen::added_in_place<Scalar, Term> sum_expr<Scalar>
&operator+=(sum_expr<Scalar>& s, Term&& term) { return s = s + std::forward<Term>(term); }
template <class Scalar, class Term>
requires eigen::added_in_place<Scalar, Term> sum_expr<Scalar>
&operator-=(sum_expr<Scalar>& s, Term&& term) { return s = s - std::forward<Term>(term); }
/// @}

/// @name Scalar multiples of a sum.
/// @{
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const sum_expr<Scalar>& s, const Amount& amount) {
    using result_scalar = detail::scaled_scalar<Amount, Scalar>;
    return sum_expr<result_scalar>(eigen::scaled_tree<result_scalar>(s, detail::amount_as<result_scalar>(amount)));
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const sum_expr<Scalar>& s) { return s * amount; }
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const sum_expr<Scalar>& s, const Amount& amount) {
    using result_scalar = detail::scaled_scalar<Amount, Scalar>;
    static_assert(!std::is_integral_v<result_scalar>,
                  "otimes: a sum of Kronecker products of integers cannot be divided, since 1 / n is 0.");
    return s * (result_scalar(1) / detail::amount_as<result_scalar>(amount));
}
template <class Scalar>
[[nodiscard]] sum_expr<Scalar> operator-(const sum_expr<Scalar>& s) {
    return sum_expr<Scalar>(eigen::scaled_tree<Scalar>(s, Scalar(-1)));
}
/// @}

/// @name Products of operators: `kron(A, B) * kron(C, D)` is kron(A C, B D) where the factors' shapes fit (or an identity
/// can be split so that they do), otherwise one is applied after the other. @throws shape_error when cols != rows
/// @{
template <class First, class Second>
requires(eigen::kron_operator<First>&& eigen::kron_operator<Second>) [[nodiscard]] auto operator*(
    const First& first, const Second& second) {
    static_assert(eigen::require_operators_mix<First, Second>());
    using scalar = eigen::common_operator_scalar<First, Second>;
    eigen::enable_structure<scalar>();
    return sum_expr<scalar>(multiply_trees(eigen::tree_of<scalar>(first), eigen::tree_of<scalar>(second)));
}
/// @}

/// @name S * X and X * S. @throws shape_error
/// @{
template <class Scalar, class Matrix>
requires eigen::dense<Matrix>
[[nodiscard]] auto operator*(const sum_expr<Scalar>& s, Matrix&& x) {
    static_assert(eigen::require_same_line<Matrix, Scalar>());
    using scalar = detail::common_scalar<eigen::scalar_of<Matrix>, Scalar>;
    return eigen::tree_times<scalar, true>(std::forward<Matrix>(x), eigen::shared_tree_of<scalar>(s));
}
template <class Matrix, class Scalar>
requires eigen::dense<Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const sum_expr<Scalar>& s) {
    static_assert(eigen::require_same_line<Matrix, Scalar>());
    using scalar = detail::common_scalar<eigen::scalar_of<Matrix>, Scalar>;
    return eigen::tree_times<scalar, false>(std::forward<Matrix>(x), eigen::shared_tree_of<scalar>(s));
}
/// @}

namespace eigen {

/// The order of the argument of kron_sum at `position`, counted from 1. @throws shape_error it is not square, or `s * identity()`
/// without an order
template <class Argument>
std::int64_t order_of(const Argument& argument, std::size_t position) {
    if constexpr (is_reference<bare<Argument>>) {
        return order_of(argument.get(), position);
    } else if constexpr (detail::identity_like<Argument> && !std::is_same_v<bare<Argument>, identity_operator>) {
        const std::int64_t order = detail::shift_of(argument).order;
        detail::check_factor_order(order);
        return order;
    } else {
        if (argument.rows() != argument.cols()) {
            throw shape_error("otimes: kron_sum: factor " + std::to_string(position) + " is " +
                              detail::shape_text(argument.rows(), argument.cols()) +
                              "; the terms of a Kronecker sum are square.");
        }
        return argument.rows();
    }
}

}  // namespace eigen

/// The Kronecker sum: kron_sum(A, B, C) = kron(A, I, I) + kron(I, B, I) + kron(I, I, C), each factor square. Arguments, and what is
/// owned and borrowed, as in kron. Applying it costs one mode product per factor. @throws shape_error a factor that is not square, extents that overflow
template <class... Factors>
requires(sizeof...(Factors) > 0 && !any_device_operand<Factors...> &&
         !(sizeof...(Factors) == 1 && (detail::is_factor_range<eigen::bare<Factors>> && ...)))
    [[nodiscard]] auto kron_sum(Factors&&... factors) {
    using combined =
        typename detail::scalar_of_all<typename eigen::argument_scalar<eigen::bare<Factors>>::type...>::type;
    using scalar = std::conditional_t<std::is_void_v<combined>, double, combined>;
    std::size_t position = 0;
    const std::int64_t orders[] = {eigen::order_of(factors, ++position)...};
    operator_tree<scalar> tree;
    tree.kind = tree_kind::sum;
    position = 0;
    const auto add_term = [&](auto&& factor) {
        kron_node<scalar> node;
        for (std::size_t k = 0; k < sizeof...(Factors); ++k) {
            if (k == position) {
                eigen::append_argument(node, std::forward<decltype(factor)>(factor));
            } else {
                node.append(leaf::identity(orders[k]));
            }
        }
        node.check_extents();
        tree.parts.emplace_back(std::move(node));
        ++position;
    };
    (add_term(std::forward<Factors>(factors)), ...);
    if (tree.parts.size() == 1) {
        return sum_expr<scalar>(tree.parts.front());
    }
    return sum_expr<scalar>(std::move(tree));
}

/// The Kronecker sum of the elements of a vector, a std::array or a span, their number known at run time. What is owned and borrowed is as in
/// kron(vector). The sum of no factors is the 1 x 1 zero. @throws shape_error a factor that is not square, extents that overflow
template <class Range>
requires(detail::is_factor_range<eigen::bare<Range>> && !any_device_operand<Range>)
    [[nodiscard]] auto kron_sum(Range&& factors) {
    using scalar = typename decltype(kron(std::forward<Range>(factors)))::Scalar;
    operator_tree<scalar> tree;
    tree.kind = tree_kind::sum;
    std::vector<std::int64_t> orders;
    for (const auto& factor : factors) {
        orders.push_back(eigen::order_of(factor, orders.size() + 1));
    }
    std::size_t position = 0;
    for (auto& factor : factors) {
        kron_node<scalar> node;
        for (std::size_t k = 0; k < orders.size(); ++k) {
            if (k != position) {
                node.append(leaf::identity(orders[k]));
            } else if constexpr (detail::owns_factors<Range>) {
                eigen::append_argument(node, std::move(factor));
            } else {
                eigen::append_argument(node, factor);
            }
        }
        node.check_extents();
        tree.parts.emplace_back(std::move(node));
        ++position;
    }
    if (tree.parts.empty()) {
        kron_node<scalar> zero;
        zero.set_alpha(scalar(0));
        return sum_expr<scalar>(operator_tree<scalar>(std::move(zero)));
    }
    if (tree.parts.size() == 1) {
        return sum_expr<scalar>(tree.parts.front());
    }
    return sum_expr<scalar>(std::move(tree));
}

}  // namespace OTIMES_TARGET
}  // namespace otimes
