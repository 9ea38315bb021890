// SPDX-License-Identifier: MIT
/// @file vec.hpp
/// Stacking a matrix into a vector, by columns (`vec`) or by rows (`vec_r`), with the convention in the type:
///
///     kron(A, B) * vec(X)   = vec(B X A^T)               kron(A, B) * vec_r(X) = vec_r(A X B^T)
///
/// Both are evaluated on X where it lies, without a transposition, whatever its storage order. Mixing the two does not
/// compile. `unvec(y, rows, cols)` and `unvec_r` go back: views of a vector that has a name. X is borrowed like a factor.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/adapt/eigen/operators.hpp>
#include <otimes/adapt/eigen/reductions.hpp>
#include <otimes/adapt/eigen/sums.hpp>
#include <otimes/expr/stacking.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

template <class Matrix, bool ByRows>
class vec_expr;

namespace eigen {
/// to (=, +=, -=) from, of equal shapes, where `from` may read what is written.
template <assignment How, class To, class From>
void write_matrix(To& to, const From& from) {
    const auto write = [&to](const auto& value) {
        if constexpr (How == assignment::overwrite) {
            to = value;
        } else if constexpr (How == assignment::add) {
            to += value;
        } else {
            to -= value;
        }
    };
    if constexpr (has_direct_access<To> && !lazy_node<From>) {
        const matrix_view view = view_of(to);
        if (reads_what_is_written(from, view, memory_of(view, static_cast<std::int64_t>(sizeof(scalar_of<To>))),
                                  true)) {
            write(typename From::PlainObject(from));
            return;
        }
    }
    write(from);
}

template <class Type>
inline constexpr bool is_stacked = false;
template <class Matrix, bool ByRows>
inline constexpr bool is_stacked<vec_expr<Matrix, ByRows>> = true;

/// dot(x, y) of below.
template <class First, class Second>
auto dot_of_stacked(const First& x, const Second& y);
}  // namespace eigen

/// A stacked matrix; see the file comment. `ByRows`: vec_r. A column among the expressions of Eigen: it becomes a vector, a block, a map where it
/// is assigned to one, written straight into it, and is evaluated once inside Eigen's.
template <class Matrix, bool ByRows>
class vec_expr : public Eigen::MatrixBase<vec_expr<Matrix, ByRows>> {
public:
    static constexpr bool by_rows = ByRows;
    using Base = Eigen::MatrixBase<vec_expr>;
    EIGEN_GENERIC_PUBLIC_INTERFACE(vec_expr)

    explicit vec_expr(Matrix m) : matrix_(std::forward<Matrix>(m)) {}
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(std::int64_t{matrix_.rows()} * matrix_.cols()); }
    [[nodiscard]] Eigen::Index cols() const { return 1; }
    [[nodiscard]] const std::remove_reference_t<Matrix>& matrix() const& noexcept { return matrix_; }
    /// Of a temporary: a matrix that it holds is handed on, so that a product with it may own it.
    [[nodiscard]] Matrix&& matrix() && noexcept { return std::forward<Matrix>(matrix_); }

    /// The stacked vector: the matrix is evaluated straight into it.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> toVector() const {
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> result(rows());
        using stacked =
            Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, ByRows ? Eigen::RowMajor : Eigen::ColMajor>;
        Eigen::Map<stacked>(result.data(), matrix_.rows(), matrix_.cols()) = matrix_;
        return result;
    }
    /// The stacked vector as a row, as in vec(X).transpose() * K.
    [[nodiscard]] Eigen::Matrix<Scalar, 1, Eigen::Dynamic> transpose() const { return toVector().transpose(); }
    [[nodiscard]] Eigen::Matrix<Scalar, 1, Eigen::Dynamic> adjoint() const { return toVector().adjoint(); }

    vec_expr(const vec_expr&) = default;
    vec_expr(vec_expr&&) noexcept = default;
    ~vec_expr() = default;
    vec_expr& operator=(const vec_expr& other) { return assign(other); }

    /// vec(Y) = kron(A, B) * vec(X): writes into Y, which keeps its shape. Where the matrix that is stacked has another shape, of as
    /// many entries, it is evaluated first. @throws shape_error
    template <class Other>
    vec_expr& operator=(const vec_expr<Other, ByRows>& other) {
        return assign(other);
    }
    template <class Other>
    vec_expr& operator=(const vec_expr<Other, !ByRows>&) {
        static_assert(eigen::always_false<Other>,
                      "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
        return *this;
    }

    /// vec(Y) = y, a column of as many entries, of which a copy is taken; also +=, -=. @throws shape_error
    template <class Vector>
    requires eigen::dense<Vector> vec_expr& operator=(const Vector& y) {
        stacked<eigen::assignment::overwrite>(y);
        return *this;
    }
    template <class Vector>
    requires eigen::dense<Vector> vec_expr& operator+=(const Vector& y) {
        stacked<eigen::assignment::add>(y);
        return *this;
    }
    template <class Vector>
    requires eigen::dense<Vector> vec_expr& operator-=(const Vector& y) {
        stacked<eigen::assignment::subtract>(y);
        return *this;
    }

    /// vec(Y) += kron(A, B) * vec(X), likewise -=. @throws shape_error
    template <class Other>
    vec_expr& operator+=(const vec_expr<Other, ByRows>& other) {
        return write<eigen::assignment::add>(other);
    }
    template <class Other>
    vec_expr& operator-=(const vec_expr<Other, ByRows>& other) {
        return write<eigen::assignment::subtract>(other);
    }
    template <class Other>
    vec_expr& operator+=(const vec_expr<Other, !ByRows>& other) {
        return *this = other;
    }
    template <class Other>
    vec_expr& operator-=(const vec_expr<Other, !ByRows>& other) {
        return *this = other;
    }

    /// Overlap is asked for, so that this promise saves nothing.
    [[nodiscard]] vec_expr& noalias() noexcept { return *this; }

    /// @name Eigen's, but for stacked matrices of the other convention
    /// @{
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        static_assert(require_one_convention<Other>());
        return eigen::dot_of_stacked(*this, y);
    }
    template <class Other>
    [[nodiscard]] auto cwiseProduct(const Other& y) const {
        static_assert(require_one_convention<Other>());
        return Base::cwiseProduct(y);
    }
    template <class Other>
    [[nodiscard]] bool isApprox(const Other& y) const {
        static_assert(require_one_convention<Other>());
        return Base::isApprox(y);
    }
    template <class Other>
    [[nodiscard]] bool operator==(const vec_expr<Other, !ByRows>&) const {
        static_assert(require_one_convention<vec_expr<Other, !ByRows>>());
        return false;
    }
    using Base::operator==;
    /// @}

    /// @name A stacked matrix has no coefficients before it is evaluated.
    /// @{
    template <class... Indices>
    Scalar operator()(const Indices&...) const {
        static_assert(sizeof...(Indices) == 0 && eigen::always_false<Matrix>,
                      "otimes: vec(X) has no single coefficients, each might cost all of X. Make it a vector: "
                      "vec(X).toVector()(i).");
        return Scalar();
    }
    template <class AnyIndex>
    Scalar operator[](const AnyIndex&) const {
        return (*this)(0, 0);
    }
    template <class... Indices>
    Scalar coeff(const Indices&... indices) const {
        return (*this)(indices...);
    }
    /// @}

private:
    template <class Other>
    static constexpr bool require_one_convention() {
        if constexpr (eigen::is_stacked<Other>) {
            static_assert(Other::by_rows == ByRows,
                          "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
        }
        return true;
    }
    /// vec(Y), vec(Y.topRows(2)): a matrix or a view of one.
    static constexpr bool require_writable() {
        static_assert(std::is_lvalue_reference_v<Matrix> || eigen::is_writable_view<eigen::bare<Matrix>>,
                      "otimes: vec() of a temporary cannot be assigned to.");
        return true;
    }
    template <class Other>
    vec_expr& assign(const vec_expr<Other, ByRows>& other) {
        return write<eigen::assignment::overwrite>(other);
    }
    template <eigen::assignment How, class Other>
    vec_expr& write(const vec_expr<Other, ByRows>& other) {
        static_assert(require_writable());
        if (other.matrix().rows() == matrix_.rows() && other.matrix().cols() == matrix_.cols()) {
            eigen::write_matrix<How>(matrix_, other.matrix());
        } else {
            stacked<How>(other.toVector());
        }
        return *this;
    }
    template <eigen::assignment How, class Vector>
    void stacked(const Vector& y) {
        static_assert(require_writable());
        static_assert(std::is_same_v<Scalar, typename Vector::Scalar>,
                      "otimes: vec(Y) = y: Y and y have different scalar types. Convert y with .cast<Scalar>().");
        const eigen::dense_matrix<Scalar> value = y;  // y may read Y
        if (value.cols() != 1 || value.rows() != rows()) {
            throw shape_error("otimes: vec(Y) = y: Y is " + detail::shape_text(matrix_.rows(), matrix_.cols()) +
                              ", y is " + detail::shape_text(value.rows(), value.cols()) + ", not " +
                              detail::shape_text(rows(), 1) + ".");
        }
        using order = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, ByRows ? Eigen::RowMajor : Eigen::ColMajor>;
        eigen::write_matrix<How>(matrix_, Eigen::Map<const order>(value.data(), matrix_.rows(), matrix_.cols()));
    }

    Matrix matrix_;
};

/// vec(X): the columns of X one under the other.
template <class Matrix>
requires eigen::dense<Matrix>
[[nodiscard]] auto vec(Matrix&& m) { return vec_expr<Matrix, false>(std::forward<Matrix>(m)); }
/// vec_r(X): the rows of X one after the other, as a column.
template <class Matrix>
requires eigen::dense<Matrix>
[[nodiscard]] auto vec_r(Matrix&& m) { return vec_expr<Matrix, true>(std::forward<Matrix>(m)); }

namespace eigen {

/// From one entry of a vector in memory to the next; of a view that has one row at run time alone, as X.topRows(1), its outer stride.
template <class Vector>
Eigen::Index step_of(const Vector& y) {
    const matrix_view v = view_of(y);
    return index_of(v.cols == 1 ? v.row_stride : v.col_stride);
}

/// y (op)= vec(X), y a column: X is evaluated straight into y, seen as a matrix of X's shape. In the order of lazy.hpp: shapes, overlap,
/// only then y is resized and written. @throws shape_error
template <class Functor, class Destination, class Matrix, bool ByRows>
void assign(Destination& y, const vec_expr<Matrix, ByRows>& source, const Functor& functor) {
    using scalar = typename vec_expr<Matrix, ByRows>::Scalar;
    using plain = typename vec_expr<Matrix, ByRows>::PlainObject;
    constexpr assignment how = assignment_of<Functor>;
    static_assert(
        !detail::is_complex_scalar<scalar> || detail::is_complex_scalar<scalar_of<Destination>>,
        "otimes: a complex expression does not fit into a real matrix. Assign it to a complex one, or assign its "
        ".real() or .imag().");
    if constexpr (lazy_node<Matrix>) {
        source.matrix().node().check();
    }
    const bool fits = y.rows() == source.rows() && y.cols() == 1;
    if (!fits && how != assignment::overwrite) {
        detail::throw_other_shape(how == assignment::add        ? "+="
                                  : how == assignment::subtract ? "-="
                                                                : "op=",
                                  y.rows(), y.cols(), source.rows(), 1);
    }
    if (!fits && !takes_shape<Destination>(source.rows(), 1)) {
        detail::throw_fixed_shape(y.rows(), y.cols(), source.rows(), 1);
    }
    if constexpr (has_direct_access<Destination> && how != assignment::other &&
                  std::is_same_v<scalar_of<Destination>, scalar>) {
        if (fits) {
            using stacked =
                Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic, ByRows ? Eigen::RowMajor : Eigen::ColMajor>;
            const Eigen::Index rows = source.matrix().rows();
            const Eigen::Index cols = source.matrix().cols();
            const Eigen::Index step = step_of(y);
            Eigen::Map<stacked, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> view(
                y.data(), rows, cols, {step * (ByRows ? cols : rows), step});
            write_matrix<how>(view, source.matrix());
            return;
        }
    }
    plain value = source.toVector();
    if constexpr (is_resizable<Destination>) {
        if (!fits) {
            if constexpr (how == assignment::overwrite && std::is_same_v<Destination, plain>) {
                y.swap(value);
                return;
            }
            y.resize(source.rows(), 1);
        }
    }
    assign_without_alias(y, value, functor);
}

template <class Vector>
void require_unvec(const Vector& y, std::int64_t rows, std::int64_t cols) {
    std::int64_t entries = 0;
    if (rows < 0 || cols < 0 || (y.rows() != 1 && y.cols() != 1) || !checked_multiply(rows, cols, entries) ||
        y.size() != entries) {
        throw shape_error("otimes: unvec(y, " + std::to_string(rows) + ", " + std::to_string(cols) + "): y is " +
                          detail::shape_text(y.rows(), y.cols()) + ", but " + std::to_string(rows) + " * " +
                          std::to_string(cols) + " entries are asked for.");
    }
}

template <class Vector, class Stacked>
void require_stacked_length(const Vector& v, const Stacked& stacked) {
    static_assert(std::is_same_v<scalar_of<Vector>, scalar_of<Stacked>>,
                  "otimes: v + vec(X): v and X have different scalar types. Convert one with .cast<Scalar>().");
    if (v.cols() != 1 || v.rows() != stacked.rows()) {
        throw shape_error("otimes: v + vec(X): v is " + detail::shape_text(v.rows(), v.cols()) + ", vec(X) is " +
                          detail::shape_text(stacked.rows(), 1) + ".");
    }
}

/// The columns of unequal matrices with as many entries can be added, but not by adding the matrices.
template <class First, class Second>
void require_one_shape(const First& x, const Second& z) {
    if (x.rows() != z.rows() || x.cols() != z.cols()) {
        throw shape_error("otimes: vec(X) + vec(Z): X is " + detail::shape_text(x.rows(), x.cols()) + ", Z is " +
                          detail::shape_text(z.rows(), z.cols()) +
                          ". They must have equal shapes; of others with as many entries write vec(X).toVector() + "
                          "vec(Z).");
    }
}

/// A matrix of its own whose columns (`Order` RowMajor: rows) one after another are the vector `y`, evaluated into it.
template <int Order, class Vector>
auto unstacked(const Vector& y, std::int64_t rows, std::int64_t cols) {
    require_unvec(y, rows, cols);
    using scalar = scalar_of<Vector>;
    Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic, Order> result(index_of(rows), index_of(cols));
    Eigen::Map<dense_matrix<scalar>>(result.data(), y.rows(), y.cols()) = y;
    return result;
}

}  // namespace eigen

/// The matrix with vec(unvec(y, rows, cols)) = y. A view of y where y is a vector in memory. @throws shape_error
template <class Vector>
requires(eigen::dense<Vector>&& eigen::has_direct_access<eigen::bare<Vector>>)
    [[nodiscard]] auto unvec(const Vector& y, std::int64_t rows, std::int64_t cols) {
    eigen::require_unvec(y, rows, cols);
    using scalar = typename Vector::Scalar;
    return Eigen::Map<const eigen::dense_matrix<scalar>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>(
        y.data(), eigen::index_of(rows), eigen::index_of(cols),
        {eigen::step_of(y) * eigen::index_of(rows), eigen::step_of(y)});
}
/// The same of a vector that is computed, as unvec(K * v, rows, cols): a matrix of its own. @throws shape_error
template <class Vector>
requires(eigen::dense<Vector> && !eigen::has_direct_access<eigen::bare<Vector>>)
    [[nodiscard]] auto unvec(const Vector& y, std::int64_t rows, std::int64_t cols) {
    return eigen::unstacked<Eigen::ColMajor>(y, rows, cols);
}
/// The same of a vector that ends with the statement. @throws shape_error
template <class Vector>
requires(!std::is_reference_v<Vector> && eigen::is_plain<Vector>)
    [[nodiscard]] auto unvec(Vector&& y, std::int64_t rows, std::int64_t cols) {
    return eigen::unstacked<Eigen::ColMajor>(y, rows, cols);
}
/// The matrix with vec_r(unvec_r(y, rows, cols)) = y. @throws shape_error
template <class Vector>
requires(eigen::dense<Vector>&& eigen::has_direct_access<eigen::bare<Vector>>)
    [[nodiscard]] auto unvec_r(const Vector& y, std::int64_t rows, std::int64_t cols) {
    eigen::require_unvec(y, rows, cols);
    using scalar = typename Vector::Scalar;
    return Eigen::Map<const Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                      Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>(
        y.data(), eigen::index_of(rows), eigen::index_of(cols),
        {eigen::step_of(y) * eigen::index_of(cols), eigen::step_of(y)});
}

template <class Vector>
requires(eigen::dense<Vector> && !eigen::has_direct_access<eigen::bare<Vector>>)
    [[nodiscard]] auto unvec_r(const Vector& y, std::int64_t rows, std::int64_t cols) {
    return eigen::unstacked<Eigen::RowMajor>(y, rows, cols);
}
/// The same of a vector that ends with the statement. @throws shape_error
template <class Vector>
requires(!std::is_reference_v<Vector> && eigen::is_plain<Vector>)
    [[nodiscard]] auto unvec_r(Vector&& y, std::int64_t rows, std::int64_t cols) {
    return eigen::unstacked<Eigen::RowMajor>(y, rows, cols);
}

/// @name The same of a stacked matrix, as unvec(kron(A, B) * vec(X), rows, cols), which is evaluated straight into the result. @throws shape_error
/// @{
template <class Matrix, bool ByRows>
[[nodiscard]] auto unvec(const vec_expr<Matrix, ByRows>& y, std::int64_t rows, std::int64_t cols) {
    static_assert(!ByRows, "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
    return eigen::unstacked<Eigen::ColMajor>(y, rows, cols);
}
template <class Matrix, bool ByRows>
[[nodiscard]] auto unvec_r(const vec_expr<Matrix, ByRows>& y, std::int64_t rows, std::int64_t cols) {
    static_assert(ByRows, "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
    return eigen::unstacked<Eigen::RowMajor>(y, rows, cols);
}
/// @}

/// kron(A, B) * vec(X) = vec(B X A^T), kron(A, B) * vec_r(X) = vec_r(A X B^T), both lazy. More than two factors: the first ones
/// whose columns together are the columns (rows, for vec_r) of X go to that side. @throws shape_error where no cut fits
template <class Scalar, class Stacked>
requires eigen::is_stacked<eigen::bare<Stacked>>
[[nodiscard]] auto operator*(const kron_expr<Scalar>& k, Stacked&& x) {
    constexpr bool by_rows = eigen::bare<Stacked>::by_rows;
    const auto& m = std::as_const(x).matrix();
    auto [first, second] =
        detail::split_for_stacking(k.node(), by_rows ? m.rows() : m.cols(), by_rows ? m.cols() : m.rows(), by_rows);
    const kron_expr<Scalar> a(std::move(first));
    const kron_expr<Scalar> b(std::move(second));
    if constexpr (by_rows) {
        auto y = a * std::forward<Stacked>(x).matrix() * b.transpose();
        return vec_expr<decltype(y), true>(std::move(y));
    } else {
        auto y = b * std::forward<Stacked>(x).matrix() * a.transpose();
        return vec_expr<decltype(y), false>(std::move(y));
    }
}

/// A kron of identities and permutations takes the scalar of X.
template <bool Permutes, bool Fraction, class Stacked>
requires eigen::is_stacked<eigen::bare<Stacked>>
[[nodiscard]] auto operator*(const index_kron<Permutes, Fraction>& k, Stacked&& x) {
    return k.template cast<typename eigen::bare<Stacked>::Scalar>() * std::forward<Stacked>(x);
}

/// S * vec(X) for a sum or a product of krons S, as kron_sum(A, B) * vec(X): a stacked matrix, of X's shape where S is square. X is stacked in a
/// copy of its own, unless S is one kron. @throws shape_error a sum of another order, or not square and without a term that X can be cut for
template <class Scalar, class Matrix, bool ByRows>
[[nodiscard]] auto operator*(const sum_expr<Scalar>& s, const vec_expr<Matrix, ByRows>& x) {
    const std::int64_t outer = ByRows ? x.matrix().rows() : x.matrix().cols();
    const std::int64_t inner = ByRows ? x.matrix().cols() : x.matrix().rows();
    using scalar = typename decltype((s * x.toVector()).eval())::Scalar;
    using order = Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic, ByRows ? Eigen::RowMajor : Eigen::ColMajor>;
    if (s.is_kron() && detail::cut_for_stacking(s.as_kron().node(), outer, inner)) {
        order y = (s.as_kron() * x).matrix();
        return vec_expr<order, ByRows>(std::move(y));
    }
    const auto image = (s * x.toVector()).eval();
    const auto extents = detail::image_of_stacked(s.tree(), outer, inner);
    if (!extents) {
        throw shape_error("otimes: S * vec(X): S is " + detail::shape_text(s.rows(), s.cols()) + ", X " +
                          detail::shape_text(x.matrix().rows(), x.matrix().cols()) +
                          "; no term has a cut between its factors that fits X, so that the image is a vector alone. "
                          "Write S * vec(X).toVector().");
    }
    const auto [image_outer, image_inner] = *extents;
    order y = Eigen::Map<const order>(image.data(), eigen::index_of(ByRows ? image_outer : image_inner),
                                      eigen::index_of(ByRows ? image_inner : image_outer));
    return vec_expr<order, ByRows>(std::move(y));
}

/// W * K * vec(X), face_split(P, Q) * vec(X), K(rows, Eigen::all) * vec(X), toeplitz(c, r) * vec(X): a vector, lazy, of a stacked copy of X that it
/// owns. @throws shape_error
template <class Operator, class Matrix, bool ByRows>
requires((eigen::any_operator<Operator> && !eigen::kron_operator<Operator>) ||
         eigen::is_structured<eigen::bare<Operator>> || detail::identity_like<eigen::bare<Operator>>) [[nodiscard]] auto
operator*(Operator&& op, const vec_expr<Matrix, ByRows>& x) {
    return std::forward<Operator>(op) * x.toVector();
}

/// @name Sums and multiples of stacked matrices of one convention; a temporary inside lives as long as in Eigen.
/// @throws shape_error a sum of matrices of unequal shapes
/// @{
template <class First, class Second, bool ByRows>
[[nodiscard]] auto operator+(const vec_expr<First, ByRows>& a, const vec_expr<Second, ByRows>& b) {
    eigen::require_one_shape(a.matrix(), b.matrix());
    auto sum = a.matrix() + b.matrix();
    return vec_expr<decltype(sum), ByRows>(std::move(sum));
}
template <class First, class Second, bool ByRows>
[[nodiscard]] auto operator-(const vec_expr<First, ByRows>& a, const vec_expr<Second, ByRows>& b) {
    eigen::require_one_shape(a.matrix(), b.matrix());
    auto difference = a.matrix() - b.matrix();
    return vec_expr<decltype(difference), ByRows>(std::move(difference));
}
template <class Matrix, bool ByRows, class Amount>
requires eigen::amount<Amount, typename vec_expr<Matrix, ByRows>::Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const vec_expr<Matrix, ByRows>& x) {
    auto scaled = amount * x.matrix();
    return vec_expr<decltype(scaled), ByRows>(std::move(scaled));
}
template <class Matrix, bool ByRows, class Amount>
requires eigen::amount<Amount, typename vec_expr<Matrix, ByRows>::Scalar>
[[nodiscard]] auto operator*(const vec_expr<Matrix, ByRows>& x, const Amount& amount) { return amount * x; }
template <class Matrix, bool ByRows, class Amount>
requires eigen::amount<Amount, typename vec_expr<Matrix, ByRows>::Scalar>
[[nodiscard]] auto operator/(const vec_expr<Matrix, ByRows>& x, const Amount& amount) {
    auto scaled = x.matrix() / amount;
    return vec_expr<decltype(scaled), ByRows>(std::move(scaled));
}
template <class Matrix, bool ByRows>
[[nodiscard]] auto operator-(const vec_expr<Matrix, ByRows>& x) {
    auto negated = -x.matrix();
    return vec_expr<decltype(negated), ByRows>(std::move(negated));
}
/// With a vector: a vector, evaluated, since a stacked matrix and a vector have different shapes in memory. @throws shape_error
template <class Vector, class Matrix, bool ByRows>
requires eigen::dense<Vector>
[[nodiscard]] auto operator+(const Vector& v, const vec_expr<Matrix, ByRows>& x) {
    auto sum = x.toVector();
    eigen::require_stacked_length(v, sum);
    sum += v;
    return sum;
}
template <class Matrix, bool ByRows, class Vector>
requires eigen::dense<Vector>
[[nodiscard]] auto operator+(const vec_expr<Matrix, ByRows>& x, const Vector& v) { return v + x; }
template <class Vector, class Matrix, bool ByRows>
requires eigen::dense<Vector>
[[nodiscard]] auto operator-(const Vector& v, const vec_expr<Matrix, ByRows>& x) { return v + -x; }
template <class Matrix, bool ByRows, class Vector>
requires eigen::dense<Vector>
[[nodiscard]] auto operator-(const vec_expr<Matrix, ByRows>& x, const Vector& v) {
    auto difference = x.toVector();
    eigen::require_stacked_length(v, difference);
    difference -= v;
    return difference;
}
template <class First, class Second, bool ByRows>
vec_expr<First, ByRows> operator+(const vec_expr<First, ByRows>& a, const vec_expr<Second, !ByRows>&) {
    static_assert(eigen::always_false<First>,
                  "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
    return a;
}
template <class First, class Second, bool ByRows>
vec_expr<First, ByRows> operator-(const vec_expr<First, ByRows>& a, const vec_expr<Second, !ByRows>& b) {
    return a + b;
}
/// @}

/// sum of conj(x(i)) * y(i) of two stacked matrices of one convention, or of one and a vector; where both have one shape nothing is stacked.
/// @throws shape_error other lengths
template <class First, class Second>
requires((eigen::is_stacked<First> && (eigen::is_stacked<Second> || eigen::dense<Second>)) ||
         (eigen::dense<First> && eigen::is_stacked<Second>)) [[nodiscard]] auto dot(const First& x, const Second& y) {
    if constexpr (!eigen::is_stacked<First>) {
        return dot(x, y.toVector());
    } else if constexpr (!eigen::is_stacked<Second>) {
        return dot(x.toVector(), y);
    } else {
        static_assert(First::by_rows == Second::by_rows,
                      "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
        return x.matrix().rows() == y.matrix().rows() && x.matrix().cols() == y.matrix().cols()
                   ? dot(x.matrix(), y.matrix())
                   : dot(x.toVector(), y.toVector());
    }
}

template <class First, class Second>
auto eigen::dot_of_stacked(const First& x, const Second& y) {
    return otimes::dot(x, y);
}

}  // namespace OTIMES_TARGET
}  // namespace otimes
