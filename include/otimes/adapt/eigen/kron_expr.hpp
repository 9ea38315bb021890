// SPDX-License-Identifier: MIT
/// @file kron_expr.hpp
/// The operator that `kron(...)` over Eigen matrices makes, and what it is without a product: entries, rows, the transpose, the trace, norms.
/// The mathematics is in expr/kron.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/adapt/eigen/operator_base.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/identity.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/factorwise/elements.hpp>
#include <otimes/factorwise/norms.hpp>
#include <otimes/factorwise/scaled_number.hpp>
#include <otimes/factorwise/trace.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// Makes factors with structure known to the products over Scalar and their executors; structured.hpp defines it. Whoever
/// makes such a factor calls it, so that a program without them does not compile what they need.
template <class Scalar>
void enable_structure();

/// The same kron over another scalar.
template <class Scalar, class Other>
kron_expr<Scalar> kron_over(const kron_expr<Other>& k);

/// What needs factorisations. The definitions are in otimes/algebra.hpp, so that a product stays cheap to compile.
template <class Operator>
struct algebra {
    static_assert(always_false<Operator>,
                  "otimes: solve, inverse, determinant and rank are in <otimes/algebra.hpp>: include it.");
};

}  // namespace eigen

/// kron(F1, ..., FN) over `ScalarType`, lazy. Copying it is cheap; its type does not depend on the number or the types of
/// the factors, so it can be a class member.
///
/// Shape: rows() x cols(), the products of the factors' extents. Lifetime: lvalue matrices and views are borrowed, rvalues
/// and computed expressions owned (expr/leaf.hpp). It never turns into a matrix unless `toDenseMatrix()` says so.
template <class ScalarType>
class kron_expr : public eigen::operator_base<kron_expr<ScalarType>> {
public:
    static_assert(!std::is_same_v<ScalarType, bool>,
                  "otimes: sums of bool are no sums. Convert the operands with .cast<int>().");
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

    kron_expr() = default;
    /// @throws shape_error extents that Eigen::Index does not hold, where that has fewer than 64 bits
    explicit kron_expr(kron_node<Scalar> node) : node_(std::move(node)) {
        if constexpr (eigen::narrow_index) {
            eigen::require_index(node_);
        }
    }

    /// The product of the factors' rows, of their columns. Cost: O(N) for N factors.
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(node_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return eigen::index_of(node_.cols()); }
    /// Number of factors; nested krons are flattened.
    [[nodiscard]] std::size_t factor_count() const noexcept { return node_.factors().size(); }
    /// The Eigen-free node: the factors as leaves, and the scalar (expr/kron.hpp).
    [[nodiscard]] const kron_node<Scalar>& node() const noexcept { return node_; }
    [[nodiscard]] kron_node<Scalar>& edit() noexcept { return node_; }

    /// Factor i (from 0) as an Eigen expression with coefficient access; it shares the factor's lifetime rule.
    /// @throws shape_error when there is no factor i.
    [[nodiscard]] auto factor(std::size_t i) const {
        if (i >= factor_count()) {
            throw shape_error("otimes: " + detail::kron_text(factor_count()) + ".factor(" +
                              std::to_string(static_cast<std::int64_t>(i)) + "): there are " +
                              std::to_string(factor_count()) + " factors, counted from 0.");
        }
        const leaf f = node_.factors()[i];
        return DenseMatrix::NullaryExpr(
            eigen::index_of(f.rows()), eigen::index_of(f.cols()),
            [f](Eigen::Index r, Eigen::Index c) { return kron_node<Scalar>::element(f, f.view(), r, c); });
    }

    /// Element (i, j), by the index formula. Cost: O(N). @throws shape_error outside the matrix.
    [[nodiscard]] Scalar operator()(Eigen::Index i, Eigen::Index j) const {
        if (i < 0 || j < 0 || i >= rows() || j >= cols()) {
            throw shape_error("otimes: " + detail::kron_text(factor_count()) + "(" + std::to_string(i) + ", " +
                              std::to_string(j) + "): the product is " + detail::shape_text(rows(), cols()) + ".");
        }
        return node_.coefficient(i, j);
    }
    /// As K(i, j).
    [[nodiscard]] Scalar coeff(Eigen::Index i, Eigen::Index j) const { return (*this)(i, j); }

    /// K(rows, cols) with lists of indices: these rows and columns, lazy (selected.hpp). std::vector, std::array, a span
    /// or a vector of Eigen; a single index; Eigen's `all` for one of the two. @throws shape_error an index outside
    template <class Rows, class Cols>
    requires(std::is_class_v<Rows> || std::is_class_v<Cols>) [[nodiscard]] auto operator()(const Rows& rows,
                                                                                           const Cols& cols) const {
        return select_from(*this, rows, cols);
    }

    /// @name The same with lists in braces, as Eigen has it: K({0, 2}, {1, 3}), K({0, 2}, Eigen::indexing::all).
    /// @{
    template <class First, std::size_t RowCount, class Second, std::size_t ColCount>
    [[nodiscard]] auto operator()(const First (&rows)[RowCount], const Second (&cols)[ColCount]) const {
        return select_from(*this, std::vector<First>(rows, rows + RowCount),
                           std::vector<Second>(cols, cols + ColCount));
    }
    template <class First, std::size_t RowCount, class Cols>
    [[nodiscard]] auto operator()(const First (&rows)[RowCount], const Cols& cols) const {
        return select_from(*this, std::vector<First>(rows, rows + RowCount), cols);
    }
    template <class Rows, class Second, std::size_t ColCount>
    [[nodiscard]] auto operator()(const Rows& rows, const Second (&cols)[ColCount]) const {
        return select_from(*this, rows, std::vector<Second>(cols, cols + ColCount));
    }
    /// @}

    /// @name Rows and columns that follow each other, named as Eigen names blocks: what K(seqN(i, r), seqN(j, c)) is. @throws shape_error outside
    /// the product
    /// @{
    [[nodiscard]] auto block(Eigen::Index i, Eigen::Index j, Eigen::Index r, Eigen::Index c) const {
        return block_from(*this, i, j, r, c);
    }
    [[nodiscard]] auto middleRows(Eigen::Index i, Eigen::Index r) const { return block(i, 0, r, cols()); }
    [[nodiscard]] auto middleCols(Eigen::Index j, Eigen::Index c) const { return block(0, j, rows(), c); }
    [[nodiscard]] auto topRows(Eigen::Index r) const { return block(0, 0, r, cols()); }
    [[nodiscard]] auto bottomRows(Eigen::Index r) const { return block(rows() - r, 0, r, cols()); }
    [[nodiscard]] auto leftCols(Eigen::Index c) const { return block(0, 0, rows(), c); }
    [[nodiscard]] auto rightCols(Eigen::Index c) const { return block(0, cols() - c, rows(), c); }
    /// @}

    /// The whole matrix, rows() x cols(). The only way to form it. Cost: somewhat more than a multiplication for each element; the
    /// memory of the matrix, and of the product of all factors but the last. @throws shape_error when it cannot be addressed,
    /// std::bad_alloc where there is no memory for it, before anything is computed
    [[nodiscard]] DenseMatrix toDenseMatrix() const {
        std::int64_t ignored = 0;
        if (!checked_multiply(rows(), cols(), ignored)) {
            throw shape_error("otimes: " + detail::kron_text(factor_count()) +
                              ".toDenseMatrix(): " + detail::shape_text(rows(), cols()) + " elements exceed 2^63 - 1.");
        }
        eigen::require_index_counts(rows(), cols());
        // The whole matrix first: where there is no memory for it, nothing smaller is formed in vain.
        DenseMatrix whole(rows(), cols());
        DenseMatrix result = DenseMatrix::Constant(1, 1, node_.alpha());
        for (std::size_t k = 0; k < factor_count(); ++k) {
            const leaf& f = node_.factors()[k];
            const DenseMatrix factor = f.is_dense() || f.is_identity() ? DenseMatrix() : dense_factor(f);
            const leaf& read = f.is_dense() || f.is_identity() ? f : leaf_of(factor);
            const matrix_view view = read.view();
            DenseMatrix next;
            if (k + 1 == factor_count()) {
                next.swap(whole);
            } else {
                next.resize(eigen::index_of(result.rows() * view.rows), eigen::index_of(result.cols() * view.cols));
            }
            // Column by column of the factor, which is read once.
            std::vector<Scalar> column(static_cast<std::size_t>(view.rows));
            for (std::int64_t c = 0; c < view.cols; ++c) {
                for (std::int64_t r = 0; r < view.rows; ++r) {
                    column[static_cast<std::size_t>(r)] = kron_node<Scalar>::element(read, view, r, c);
                }
                for (Eigen::Index j = 0; j < result.cols(); ++j) {
                    const Eigen::Index at = j * eigen::index_of(view.cols) + eigen::index_of(c);
                    for (Eigen::Index i = 0, row = 0; i < result.rows(); ++i) {
                        const Scalar by = result(i, j);
                        for (const Scalar& element : column) {
                            next(row++, at) = by * element;
                        }
                    }
                }
            }
            result.swap(next);
        }
        return result;
    }

    /// The same over its complex type; over any other the factors have to be converted.
    template <class Other>
    [[nodiscard]] kron_expr<Other> cast() const {
        constexpr bool known = std::is_same_v<Other, Scalar> || std::is_same_v<detail::real_of<Other>, Scalar>;
        static_assert(
            known,
            "otimes: K.cast<Scalar>() makes a real Kronecker product complex and nothing else, since it holds no "
            "copies of its factors. Convert the factors: kron(A.cast<float>(), B.cast<float>()).");
        if constexpr (known) {
            return eigen::kron_over<Other>(*this);
        } else {
            return kron_expr<Other>();
        }
    }

    /// kron(F1^T, ..., FN^T): the factors are transposed where they stand, their order does not change. Cost of this and the next
    /// two: a list of N leaves; no element is touched.
    [[nodiscard]] kron_expr transpose() const {
        kron_expr result(*this);
        result.node_.transpose();
        return result;
    }
    /// kron of the factors' conjugates, with the scalar's.
    [[nodiscard]] kron_expr conjugate() const {
        kron_expr result(*this);
        result.node_.conjugate();
        return result;
    }
    /// kron(F1^H, ..., FN^H).
    [[nodiscard]] kron_expr adjoint() const { return transpose().conjugate(); }

    /// Row i, 1 x cols(). Cost: cols() multiplications per level. @throws shape_error outside the matrix.
    [[nodiscard]] Eigen::Matrix<Scalar, 1, Eigen::Dynamic> row(Eigen::Index i) const {
        check_line(i, rows(), "row");
        return line(i, true).transpose();
    }
    /// Column j, rows() x 1. @throws shape_error outside the matrix.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> col(Eigen::Index j) const {
        check_line(j, cols(), "col");
        return line(j, false);
    }
    /// The diagonal, min(rows(), cols()) entries. Cost: O(N) per entry; with square factors those of the factors' diagonals alone are read.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> diagonal() const {
        const factor_list& factors = node_.factors();
        if (std::all_of(factors.begin(), factors.end(), [](const leaf& f) { return f.rows() == f.cols(); })) {
            return product_of_lines(rows(), [](const leaf& f, const matrix_view& view, auto& entries) {
                entries.resize(eigen::index_of(view.rows));
                for (Eigen::Index e = 0; e < entries.size(); ++e) {
                    entries(e) = kron_node<Scalar>::element(f, view, e, e);
                }
            });
        }
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> result(rows() < cols() ? rows() : cols());
        for (Eigen::Index i = 0; i < result.size(); ++i) {
            result(i) = node_.coefficient(i, i);
        }
        return result;
    }
    /// The trace: the product of the factors' traces where all are square, which overflows and vanishes only where it has no other value;
    /// else the sum of the diagonal.
    /// @throws shape_error a kron that is not square.
    [[nodiscard]] Scalar trace() const {
        if (rows() != cols()) {
            throw shape_error("otimes: " + detail::kron_text(factor_count()) + ".trace(): the product is " +
                              detail::shape_text(rows(), cols()) + "; only a square matrix has a trace.");
        }
        return detail::trace_of(node_);
    }
    /// The Frobenius norm: the product of the factors' norms (factorwise/norms.hpp: structure is kept). Overflows and vanishes
    /// only where the norm itself does.
    [[nodiscard]] RealScalar norm() const { return norm_of_entries<2>(); }
    /// The square of norm(), at its cost; overflows where that exceeds the root of RealScalar's largest number. Of integers exact.
    [[nodiscard]] RealScalar squaredNorm() const {
        if constexpr (std::is_floating_point_v<RealScalar>) {
            const RealScalar n = norm();
            return n * n;
        } else {  // roots of integers are cut off
            RealScalar result = Eigen::numext::abs2(node_.alpha());
            for (const leaf& f : node_.factors()) {
                result = result * dense_factor(f).squaredNorm();
            }
            return result;
        }
    }

    /// The p-norm of all entries as one vector (as Eigen's: 1, 2, Eigen::Infinity): the product of the factors'.
    template <int Power>
    [[nodiscard]] RealScalar lpNorm() const {
        return norm_of_entries<Power>();
    }

    /// @name Defined in otimes/algebra.hpp: include it to use them.
    /// @{

    /// The spectral norm, the largest singular value; NaN where a factor has elements that are NaN or infinite. Any shapes.
    [[nodiscard]] auto operatorNorm() const { return eigen::algebra<kron_expr>::operator_norm(*this); }
    /// X, cols() x b.cols(), with K * X = b; where a factor is not square, the least-squares
    /// solution of least norm. Cost: a decomposition of each factor, then 1 product, or 3 or 5 with refinement (docs/algebra/solving.md).
    /// @throws shape_error b has other rows than K; singular_error a square factor that is singular to working precision, or one
    /// that is not square with NaN or Inf
    template <class Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        if constexpr (eigen::may_solve_for<Rhs, Scalar>()) {
            return eigen::algebra<kron_expr>::solve(*this, b);
        } else {
            return DenseMatrix();
        }
    }
    /// X of least norm with the least |K X - B|, whatever the rank: kron_svd(K).solve(b). @throws shape_error, singular_error
    template <class Rhs>
    [[nodiscard]] auto leastSquaresSolve(const Eigen::MatrixBase<Rhs>& b) const {
        return eigen::algebra<kron_expr>::least_squares_solve(*this, b);
    }
    /// kron of the factors' inverses, cols() x rows(). Cost: an LU decomposition of each factor. @throws shape_error a factor that is
    /// not square; singular_error one that is singular to working precision
    [[nodiscard]] auto inverse() const { return eigen::algebra<kron_expr>::inverse(*this); }
    /// Whether inverse() gives one: whether all factors are square and none is singular to working precision, or has NaN or Inf, and the scalar is finite
    /// and not 0. Cost: as inverse().
    [[nodiscard]] bool isInvertible() const { return eigen::algebra<kron_expr>::is_invertible(*this); }
    /// kron of the factors' Moore-Penrose inverses, cols() x rows(). Cost: a complete orthogonal decomposition of each. @throws singular_error a factor with NaN or Inf
    [[nodiscard]] auto pseudoInverse() const { return eigen::algebra<kron_expr>::pseudo_inverse(*this); }
    /// The determinant. May overflow; see logAbsDeterminant. @throws shape_error a kron that is not square
    [[nodiscard]] auto determinant() const { return eigen::algebra<kron_expr>::determinant(*this); }
    /// log |det K|, which does not overflow; -infinity for a singular K. @throws shape_error a kron that is not square
    [[nodiscard]] auto logAbsDeterminant() const { return eigen::algebra<kron_expr>::log_abs_determinant(*this); }
    /// The rank: the product of the factors' ranks. @throws singular_error a factor with NaN or Inf
    [[nodiscard]] auto rank() const { return eigen::algebra<kron_expr>::rank(*this); }
    /// Largest over smallest singular value: the product of the factors'; infinity for a singular K, NaN as operatorNorm.
    [[nodiscard]] auto conditionNumber() const { return eigen::algebra<kron_expr>::condition_number(*this); }
    /// The singular values, largest first; all min(rows, cols) of them. @throws singular_error a factor with NaN or Inf
    [[nodiscard]] auto singularValues() const { return eigen::algebra<kron_expr>::singular_values(*this); }
    /// The eigenvalues, complex, in the order of the product, and a kron whose columns are vectors to them: those of kron_eigen(K).
    /// @throws shape_error a factor that is not square; singular_error one with NaN or Inf
    [[nodiscard]] auto eigenvalues() const { return eigen::algebra<kron_expr>::eigenvalues(*this); }
    [[nodiscard]] auto eigenvectors() const { return eigen::algebra<kron_expr>::eigenvectors(*this); }
    /// @}

    /// One factor as a matrix.
    [[nodiscard]] static DenseMatrix dense_factor(const leaf& f) {
        const matrix_view view = f.view();
        DenseMatrix result(eigen::index_of(view.rows), eigen::index_of(view.cols));
        if (f.kind() == factor_kind::callback ||
            f.kind() == factor_kind::low_rank) {  // a column costs little more than an element
            const std::vector<leaf> parts = detail::product_factors(f);
            std::vector<Scalar> column;
            std::vector<Scalar> next;
            std::vector<Scalar> of_part;
            for (Eigen::Index j = 0; j < result.cols(); ++j) {
                detail::write_column<Scalar>(parts, j, column, next, of_part);
                std::copy(column.begin(), column.end(), result.col(j).begin());
            }
            return result;
        }
        for (Eigen::Index j = 0; j < result.cols(); ++j) {
            for (Eigen::Index i = 0; i < result.rows(); ++i) {
                result(i, j) = kron_node<Scalar>::element(f, view, i, j);
            }
        }
        return result;
    }

    /// @name `X *= K` and `X.applyOnTheLeft(K)`, by Eigen's own operators: X = X * K and X = K * X. With square factors they need
    /// no second matrix (docs/memory.md).
    /// @{
    template <class Destination>
    void applyThisOnTheRight(Destination& x) const {
        x = x * *this;
    }
    template <class Destination>
    void applyThisOnTheLeft(Destination& x) const {
        x = *this * x;
    }
    /// @}

    /// @name A kron does not become a matrix by itself.
    /// @{
    template <class Destination>
    void evalTo(Destination&) const {
        static_assert(
            eigen::always_false<Destination>,
            "otimes: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix() to form "
            "it, or multiply it with a matrix.");
    }
    template <class Destination>
    void addTo(Destination& destination) const {
        evalTo(destination);
    }
    template <class Destination>
    void subTo(Destination& destination) const {
        evalTo(destination);
    }
    /// @}

private:
    template <int Power>
    [[nodiscard]] RealScalar norm_of_entries() const {
        using std::abs;
        static_assert(Eigen::Infinity == detail::maximum_norm);
        if constexpr (std::is_floating_point_v<RealScalar>) {
            detail::scaled_number<RealScalar> result(abs(node_.alpha()));
            for (const leaf& f : node_.factors()) {
                result.multiply(detail::factor_norm<Scalar, Power>(f));
            }
            return result.value();
        } else if constexpr (Power == 2) {
            return Eigen::numext::sqrt(squaredNorm());
        } else {
            RealScalar result = abs(node_.alpha());
            for (const leaf& f : node_.factors()) {
                result = result * dense_factor(f).template lpNorm<Power>();
            }
            return result;
        }
    }
    static leaf leaf_of(const DenseMatrix& m) { return leaf::borrowed(eigen::view_of(m)); }
    void check_line(Eigen::Index at, Eigen::Index count, const char* name) const {
        if (at < 0 || at >= count) {
            throw shape_error("otimes: " + detail::kron_text(factor_count()) + "." + name + "(" + std::to_string(at) +
                              "): the product is " + detail::shape_text(rows(), cols()) + ".");
        }
    }
    /// One row or column as a vector: the kron of the factors' rows or columns.
    Eigen::Matrix<Scalar, Eigen::Dynamic, 1> line(std::int64_t at, bool of_rows) const {
        return product_of_lines(of_rows ? cols() : rows(),
                                [&at, of_rows](const leaf& f, const matrix_view& view, auto& entries) {
                                    const std::int64_t extent = of_rows ? view.rows : view.cols;
                                    entries.resize(eigen::index_of(of_rows ? view.cols : view.rows));
                                    for (Eigen::Index e = 0; e < entries.size(); ++e) {
                                        entries(e) = of_rows ? kron_node<Scalar>::element(f, view, at % extent, e)
                                                             : kron_node<Scalar>::element(f, view, e, at % extent);
                                    }
                                    at /= extent;
                                });
    }
    /// The scalar times the kron of a vector for each factor, which `write(factor, view, vector)` fills, from the last factor to the first.
    template <class Write>
    Eigen::Matrix<Scalar, Eigen::Dynamic, 1> product_of_lines(Eigen::Index size, const Write& write) const {
        using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
        vector result = vector::Constant(size, node_.alpha());
        vector entries;
        Eigen::Index inner = 1;
        for (std::size_t k = factor_count(); k-- > 0;) {
            const leaf& f = node_.factors()[k];
            write(f, f.view(), entries);
            const Eigen::Index length = entries.size();
            for (Eigen::Index i = 0; i < result.size(); ++i) {
                result(i) = entries(i / inner % length) * result(i);
            }
            inner *= length;
        }
        return result;
    }

    kron_node<Scalar> node_;
};

/// A kron of identities and, where `Permutes`, permutations alone, which has no scalar type of its own: over double, and over any other
/// scalar beside a matrix, an operator or a factor of that scalar; where `Fraction`, one was a fraction of it: not over integers.
template <bool Permutes, bool Fraction = false>
class index_kron : public kron_expr<double> {
public:
    using kron_expr<double>::kron_expr;
    /// `k = k / 2`
    template <bool Other>
    requires(Other && !Fraction) index_kron(const index_kron<Permutes, Other>& fraction)
        : kron_expr<double>(fraction) {}
    /// The same over another scalar. @throws unsupported_error a fraction over integers
    template <class Other>
    [[nodiscard]] kron_expr<Other> cast() const {
        static_assert(
            !(Fraction && std::is_integral_v<Other>),
            "otimes: a fraction of a Kronecker product of identities and permutations beside integers would be "
            "cut off. Multiply it by an integer, or .cast<double>() the integers.");
        if constexpr (Permutes) {
            eigen::enable_structure<Other>();
        }
        kron_expr<Other> result;
        for (leaf factor : node().factors()) {
            factor.set_real_elements(Permutes && detail::is_complex_scalar<Other>);
            result.edit().append(std::move(factor));
        }
        result.edit().set_alpha(detail::amount_as<Other>(node().alpha()));
        if constexpr (std::is_integral_v<Other>) {
            if (static_cast<double>(result.node().alpha()) != node().alpha()) {
                throw unsupported_error("otimes: " + detail::number_text(node().alpha()) + " * " +
                                        detail::kron_text(factor_count()) +
                                        " beside integers: the fraction would be cut off. Multiply by an integer, or "
                                        ".cast<double>() the integers.");
            }
        }
        result.edit().rewritten().add(node().rewritten());
        return result;
    }
    /// @name Still without a scalar type.
    /// @{
    [[nodiscard]] index_kron transpose() const { return index_kron(kron_expr<double>::transpose().node()); }
    [[nodiscard]] index_kron conjugate() const { return *this; }
    [[nodiscard]] index_kron adjoint() const { return transpose(); }
    /// @}
};

}  // namespace OTIMES_TARGET
}  // namespace otimes
