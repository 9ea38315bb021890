// SPDX-License-Identifier: MIT
/// @file operators.hpp
/// Kronecker products between sparse, diagonal and permutation matrices, with a shift: `W * K * W.transpose() + s *
/// identity()`, the operator of Gaussian processes with interpolated kernels. It is applied factor by factor and handed to
/// Eigen's iterative solvers as it is. <Eigen/SparseCore> is needed only by who uses a sparse matrix.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/applied.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/sums.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// No matrix on that side.
struct absent {};

/// A sparse, diagonal or permutation matrix beside a kron. Lvalue plain objects are borrowed, everything else is held by
/// value (a Transpose of an lvalue holds a reference to it, as in Eigen; what is computed is the value that it has, as a factor's).
template <class Matrix>
class side_matrix {
public:
    explicit side_matrix(const Matrix& m, std::true_type /*borrow*/) : borrowed_(std::addressof(m)) {}
    template <class Value>
    side_matrix(Value&& m, std::false_type /*borrow*/)
        : owned_(std::make_shared<const Matrix>(std::forward<Value>(m))) {}
    [[nodiscard]] const Matrix& get() const { return borrowed_ != nullptr ? *borrowed_ : *owned_; }
    [[nodiscard]] bool is_borrowed() const noexcept { return borrowed_ != nullptr; }

private:
    const Matrix* borrowed_ = nullptr;
    std::shared_ptr<const Matrix> owned_;
};

/// May a matrix beside a kron have elements in that memory? What does not tell where they are may, such as 2.0 * W: then the
/// result takes a temporary.
template <class Matrix>
bool side_reads(const Matrix& m, const strided_memory& written) {
    if constexpr (permutation_like<Matrix>) {
        if constexpr (requires { m.indices(); }) {
            using indices = bare<decltype(m.indices())>;
            return overlap(memory_of(view_of(m.indices()), static_cast<std::int64_t>(sizeof(scalar_of<indices>))),
                           written);
        } else {
            return side_reads(m.nestedExpression(), written);
        }
    } else if constexpr (diagonal_like<Matrix>) {
        using diagonal_type = bare<decltype(m.diagonal())>;
        if constexpr (has_direct_access<diagonal_type>) {
            const auto& d = m.diagonal();
            return overlap(memory_of(view_of(d), static_cast<std::int64_t>(sizeof(scalar_of<diagonal_type>))), written);
        } else {
            return true;
        }
    } else if constexpr (requires {
                             m.valuePtr();
                             m.outerIndexPtr();
                             m.innerNonZeroPtr();
                         }) {
        // Elements lie in the order of the outer indices; a block of columns starts where its first one does.
        const sparse_elements s = look_at_sparse<Matrix>(std::addressof(m));
        const std::int64_t outer = m.outerSize();
        if (s.values == nullptr || outer == 0) {
            return false;
        }
        const auto bytes = static_cast<std::int64_t>(sizeof(scalar_of<Matrix>));
        const std::int64_t first = s.begin(0);
        return overlap({reinterpret_cast<std::intptr_t>(s.values) + first * bytes, s.end(outer - 1) - first, 1, bytes,
                        bytes, bytes},
                       written);
    } else {
        return true;
    }
}

template <class Matrix>
inline constexpr bool is_transpose = false;
template <class Nested>
inline constexpr bool is_transpose<Eigen::Transpose<Nested>> = true;

template <class Scalar, int Options, class StorageIndex>
std::true_type probe_owner(const Eigen::SparseMatrix<Scalar, Options, StorageIndex>*);
template <class Scalar, int Size, int MaxSize>
std::true_type probe_owner(const Eigen::DiagonalMatrix<Scalar, Size, MaxSize>*);
template <int Size, int MaxSize, class StorageIndex>
std::true_type probe_owner(const Eigen::PermutationMatrix<Size, MaxSize, StorageIndex>*);
std::false_type probe_owner(...);
/// True for what owns its elements and can be borrowed by address; of a view the handle is copied, which may go before the operator.
template <class Matrix>
inline constexpr bool is_plain_side = decltype(probe_owner(static_cast<Matrix*>(nullptr)))::value;

/// True for what is computed when its elements are read: of sparse matrices everything but the plain ones, views of their memory, and the
/// transposes of both. Sparse vectors count as computed: Eigen multiplies no dense matrix by one.
template <class Matrix>
constexpr bool is_computed_side() {
    if constexpr (sparse_matrix_like<Matrix>) {
        if constexpr (is_transpose<Matrix>) {
            return is_computed_side<bare<decltype(std::declval<const Matrix&>().nestedExpression())>>();
        } else {
            return Matrix::IsVectorAtCompileTime || !requires(const Matrix& m) {
                m.valuePtr();
                m.innerNonZeroPtr();
            };
        }
    } else if constexpr (diagonal_like<Matrix>) {
        return !has_direct_access<bare<decltype(std::declval<const Matrix&>().diagonal())>>;
    } else {
        return false;
    }
}

template <class Matrix>
auto make_side(Matrix&& m) {
    if constexpr (!sparse_like<Matrix>) {  // the inverse of a permutation, which Eigen cannot multiply with an operator
        auto plain = m.eval();
        return side_matrix<decltype(plain)>(std::move(plain), std::false_type());
    } else if constexpr (is_computed_side<bare<Matrix>>() && diagonal_like<Matrix>) {
        using plain = Eigen::DiagonalMatrix<scalar_of<Matrix>, Eigen::Dynamic>;
        return side_matrix<plain>(plain(m.diagonal()), std::false_type());
    } else if constexpr (is_computed_side<bare<Matrix>>()) {
        using plain = typename bare<Matrix>::PlainObject;
        return side_matrix<plain>(plain(m), std::false_type());
    } else {
        constexpr bool borrowed = std::is_lvalue_reference_v<Matrix> && is_plain_side<bare<Matrix>>;
        return side_matrix<bare<Matrix>>(std::forward<Matrix>(m), std::bool_constant<borrowed>());
    }
}

}  // namespace eigen

/// Left * K * Right + shift * I, with either side absent. An Eigen operator: `op * X`, `op * v`, and Eigen's iterative
/// solvers (`ConjugateGradient<decltype(op), Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner>`).
/// Shape: rows() x cols(). Memory: two intermediates of cols(K) and rows(K) rows, kept with the operator between
/// applications; concurrent applications allocate their own.
template <class Left, class Right, class ScalarType>
class operator_expr : public eigen::operator_base<operator_expr<Left, Right, ScalarType>> {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<ScalarType>;
    using StorageIndex = Eigen::Index;
    enum {
        ColsAtCompileTime = Eigen::Dynamic,
        RowsAtCompileTime = Eigen::Dynamic,
        MaxRowsAtCompileTime = Eigen::Dynamic,
        MaxColsAtCompileTime = Eigen::Dynamic,
        IsRowMajor = false
    };
    static constexpr bool has_left = !std::is_same_v<Left, eigen::absent>;
    static constexpr bool has_right = !std::is_same_v<Right, eigen::absent>;

    operator_expr(Left left, kron_expr<Scalar> k, Right right, Scalar scale, Scalar shift)
        : left_(std::move(left)),
          kron_(std::move(k)),
          right_(std::move(right)),
          scale_(scale),
          shift_(shift),
          scratch_(std::make_shared<scratch>()) {
        check();
    }

    [[nodiscard]] Eigen::Index rows() const {
        if constexpr (has_left) {
            return left_.get().rows();
        } else {
            return kron_.rows();
        }
    }
    [[nodiscard]] Eigen::Index cols() const {
        if constexpr (has_right) {
            return right_.get().cols();
        } else {
            return kron_.cols();
        }
    }
    /// The same operator with another scale and shift. It shares the intermediates, so that a fresh shift in each step of a
    /// training loop allocates nothing.
    [[nodiscard]] operator_expr rescaled(Scalar scale, Scalar shift) const {
        operator_expr result(*this);
        result.scale_ = scale;
        result.shift_ = shift;
        result.check();
        return result;
    }
    /// The same over another scalar; the matrices beside K stay what they are.
    template <class Other>
    [[nodiscard]] operator_expr<Left, Right, Other> cast() const {
        if constexpr (std::is_same_v<Other, Scalar>) {
            return *this;  // with its intermediates
        } else {
            return {left_, eigen::kron_over<Other>(kron_), right_, Other(scale_), Other(shift_)};
        }
    }
    [[nodiscard]] const kron_expr<Scalar>& kron() const noexcept { return kron_; }
    [[nodiscard]] const Left& left() const noexcept { return left_; }
    [[nodiscard]] const Right& right() const noexcept { return right_; }
    [[nodiscard]] Scalar scale() const noexcept { return scale_; }
    [[nodiscard]] Scalar shift() const noexcept { return shift_; }

    /// May K or the elements of a matrix beside it lie in that memory?
    [[nodiscard]] bool factors_read(const matrix_view& written, std::int64_t bytes) const {
        const strided_memory memory = memory_of(written, bytes);
        for (const leaf& f : kron_.node().factors()) {
            if (detail::factor_reads<Scalar>(f, memory)) {
                return true;
            }
        }
        if constexpr (has_left) {
            if (eigen::side_reads(left_.get(), memory)) {
                return true;
            }
        }
        if constexpr (has_right) {
            return eigen::side_reads(right_.get(), memory);
        } else {
            return false;
        }
    }

    /// @name As for a sum of krons (sums.hpp). `toDenseMatrix()` is the only way to form the matrix.
    /// @{
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> toDenseMatrix() const;
    /// As a value whose type does not say what stands beside the kron: a class member, a sum that grows.
    operator sum_expr<Scalar>() const;
    [[nodiscard]] sum_expr<Scalar> transpose() const;
    [[nodiscard]] sum_expr<Scalar> conjugate() const;
    [[nodiscard]] sum_expr<Scalar> adjoint() const;
    /// @}

    /// The diagonal. Cost: for each entry, the elements of that row and column of the matrices beside K. <Eigen/SparseCore>
    /// must be included.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> diagonal() const {
        check();
        using by_rows_type = Eigen::SparseMatrix<Scalar, Eigen::RowMajor, int>;
        using by_columns_type = Eigen::SparseMatrix<Scalar, Eigen::ColMajor, int>;
        const auto sparse_of = [](const auto& side, Eigen::Index order) {
            by_rows_type unit(order, order);
            unit.setIdentity();
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(side)>, eigen::absent>) {
                return unit;
            } else {
                return by_rows_type(side.get() * unit);
            }
        };
        const by_rows_type by_rows = sparse_of(left_, kron_.rows());
        const by_columns_type by_columns = sparse_of(right_, cols());
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> result(rows() < cols() ? rows() : cols());
        for (Eigen::Index i = 0; i < result.size(); ++i) {
            Scalar sum(0);
            for (typename by_rows_type::InnerIterator a(by_rows, i); a; ++a) {
                for (typename by_columns_type::InnerIterator b(by_columns, i); b; ++b) {
                    sum += a.value() * kron_(a.col(), b.row()) * b.value();
                }
            }
            result(i) = scale_ * sum + shift_;
        }
        return result;
    }
    /// The trace, at the cost of the diagonal. @throws shape_error not square
    [[nodiscard]] Scalar trace() const {
        if (rows() != cols()) {
            throw shape_error("otimes: trace() of W * K * V: it is " + detail::shape_text(rows(), cols()) +
                              "; only a square matrix has a trace.");
        }
        return diagonal().sum();
    }

    /// @throws shape_error where op * X does not fit an X of that shape.
    template <bool FromLeft>
    void check_operand(std::int64_t x_rows, std::int64_t x_cols) const {
        static_assert(FromLeft);
        check();  // a matrix may have been resized since
        if (cols() != x_rows) {
            throw shape_error("otimes: operator * X: X is " + detail::shape_text(x_rows, x_cols) +
                              ", but the operator is " + detail::shape_text(rows(), cols()) +
                              ". The rows of X must equal the columns of the operator.");
        }
    }

    /// y (+)= factor * op * x. Shapes checked by the caller; y must not overlap x.
    template <bool FromLeft, class Destination, class Matrix>
    void apply(Destination& y, const Matrix& x, bool add, Scalar factor) const {
        const scratch_use use(*scratch_);
        block& right_product = use.get().first;
        block& kron_product = use.get().second;
        const Scalar total = factor * scale_;
        auto&& to = y.matrix();  // an array takes no matrix by +=
        if constexpr (has_right) {
            right_product.noalias() = right_.get() * x;
        }
        const auto middle = [&]() -> const auto& {
            if constexpr (has_right) {
                return right_product;
            } else {
                return x;
            }
        };
        if constexpr (has_left) {
            kron_product.noalias() = kron_ * middle() * total;
            if (!add) {
                to.noalias() = left_.get() * kron_product;
            } else if constexpr (eigen::permutation_like<eigen::bare<decltype(left_.get())>>) {
                to += (left_.get() * kron_product).eval();  // Eigen adds no permuted matrix in place
            } else {
                to.noalias() += left_.get() * kron_product;
            }
        } else if (add) {
            to.noalias() += kron_ * middle() * total;
        } else {
            to.noalias() = kron_ * middle() * total;
        }
        if (shift_ != Scalar(0)) {
            to += (factor * shift_) * x.topRows(y.rows());  // compiled for operators that are not square, too
        }
    }

    template <class Destination>
    void evalTo(Destination&) const {
        static_assert(eigen::always_false<Destination>,
                      "otimes: an operator with a Kronecker product does not turn into a matrix by itself. Write "
                      "op.toDenseMatrix() to form it, or multiply it with a matrix.");
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
    using block = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    struct scratch {
        std::atomic_flag busy = ATOMIC_FLAG_INIT;
        std::pair<block, block> blocks;
    };
    /// The operator's own intermediates, or fresh ones when another thread uses those.
    class scratch_use {
    public:
        explicit scratch_use(scratch& shared)
            : shared_(shared), held_(!shared.busy.test_and_set(std::memory_order_acquire)) {}
        scratch_use(const scratch_use&) = delete;
        scratch_use& operator=(const scratch_use&) = delete;
        ~scratch_use() {
            if (held_) {
                shared_.busy.clear(std::memory_order_release);
            }
        }
        [[nodiscard]] std::pair<block, block>& get() const { return held_ ? shared_.blocks : own_; }

    private:
        scratch& shared_;
        bool held_;
        mutable std::pair<block, block> own_;
    };

    void check() const {
        if constexpr (has_left) {
            if (left_.get().cols() != kron_.rows()) {
                throw shape_error(mismatch("W * ", "", left_.get().rows(), left_.get().cols(), "columns", "rows"));
            }
        }
        if constexpr (has_right) {
            if (right_.get().rows() != kron_.cols()) {
                throw shape_error(mismatch("", " * W", right_.get().rows(), right_.get().cols(), "rows", "columns"));
            }
        }
        if (shift_ != Scalar(0)) {
            detail::check_shift(rows(), cols(), -1);
        }
    }
    [[nodiscard]] std::string mismatch(const char* before, const char* after, Eigen::Index w_rows, Eigen::Index w_cols,
                                       const char* side_of_w, const char* side_of_k) const {
        const std::string name = detail::kron_text(kron_.factor_count());
        return "otimes: " + (before + name + after) + ": W is " + detail::shape_text(w_rows, w_cols) + ", but " + name +
               " is " + detail::shape_text(kron_.rows(), kron_.cols()) + ". The " + side_of_w +
               " of W must equal the " + side_of_k + " of the Kronecker product.";
    }

    Left left_;
    kron_expr<Scalar> kron_;
    Right right_;
    Scalar scale_;
    Scalar shift_;
    std::shared_ptr<scratch> scratch_;
};

/// @name Sparse, diagonal and permutation matrices on either side of a kron.
/// @{
template <class Matrix, class Scalar>
requires eigen::side_like<Matrix>
[[nodiscard]] auto operator*(Matrix&& w, const kron_expr<Scalar>& k) {
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    auto side = eigen::make_side(std::forward<Matrix>(w));
    return operator_expr<decltype(side), eigen::absent, scalar>(std::move(side), eigen::kron_over<scalar>(k), {},
                                                                scalar(1), scalar(0));
}
template <class Scalar, class Matrix>
requires eigen::side_like<Matrix>
[[nodiscard]] auto operator*(const kron_expr<Scalar>& k, Matrix&& w) {
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    auto side = eigen::make_side(std::forward<Matrix>(w));
    return operator_expr<eigen::absent, decltype(side), scalar>({}, eigen::kron_over<scalar>(k), std::move(side),
                                                                scalar(1), scalar(0));
}
/// A kron of identities and permutations takes the scalar of W.
template <class Matrix, bool Permutes, bool Fraction>
requires(eigen::side_like<Matrix> && !eigen::permutation_like<eigen::bare<Matrix>>) [[nodiscard]] auto operator*(
    Matrix&& w, const index_kron<Permutes, Fraction>& k) {
    return std::forward<Matrix>(w) * k.template cast<eigen::scalar_of<Matrix>>();
}
template <bool Permutes, bool Fraction, class Matrix>
requires(eigen::side_like<Matrix> && !eigen::permutation_like<eigen::bare<Matrix>>) [[nodiscard]] auto operator*(
    const index_kron<Permutes, Fraction>& k, Matrix&& w) {
    return k.template cast<eigen::scalar_of<Matrix>>() * std::forward<Matrix>(w);
}
template <class Left, class Scalar, class Matrix>
requires eigen::side_like<Matrix>
[[nodiscard]] auto operator*(const operator_expr<Left, eigen::absent, Scalar>& op, Matrix&& w) {
    auto side = eigen::make_side(std::forward<Matrix>(w));
    if (op.shift() != Scalar(0)) {
        throw unsupported_error(
            "otimes: (operator + s * identity()) * W: the shift comes last; multiply first, then add s * identity().");
    }
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    return operator_expr<Left, decltype(side), scalar>(op.left(), eigen::kron_over<scalar>(op.kron()), std::move(side),
                                                       scalar(op.scale()), scalar(0));
}
template <class Matrix, class Right, class Scalar>
requires eigen::side_like<Matrix>
[[nodiscard]] auto operator*(Matrix&& w, const operator_expr<eigen::absent, Right, Scalar>& op) {
    auto side = eigen::make_side(std::forward<Matrix>(w));
    if (op.shift() != Scalar(0)) {
        throw unsupported_error(
            "otimes: W * (operator + s * identity()): the shift comes last; multiply first, then add s * identity().");
    }
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    return operator_expr<decltype(side), Right, scalar>(std::move(side), eigen::kron_over<scalar>(op.kron()),
                                                        op.right(), scalar(op.scale()), scalar(0));
}
/// @}

/// @name Shifts and scalar multiples.
/// @{
template <class Left, class Right, class Scalar, class Identity>
requires eigen::shifts<Identity, Scalar>
[[nodiscard]] auto operator+(const operator_expr<Left, Right, Scalar>& op, const Identity& identity) {
    const auto shift = eigen::shift_of(identity);
    detail::check_shift(op.rows(), op.cols(), shift.order);
    using scalar = detail::scaled_scalar<eigen::bare<decltype(shift.scale)>, Scalar>;
    return op.template cast<scalar>().rescaled(scalar(op.scale()),
                                               scalar(op.shift()) + detail::amount_as<scalar>(shift.scale));
}
template <class Left, class Right, class Scalar, class Identity>
requires eigen::shifts<Identity, Scalar>
[[nodiscard]] auto operator+(const Identity& identity, const operator_expr<Left, Right, Scalar>& op) {
    return op + identity;
}
template <class Left, class Right, class Scalar, class Identity>
requires eigen::shifts<Identity, Scalar>
[[nodiscard]] auto operator-(const operator_expr<Left, Right, Scalar>& op, const Identity& identity) {
    const auto shift = eigen::shift_of(identity);
    using scalar = detail::scaled_scalar<eigen::bare<decltype(shift.scale)>, Scalar>;
    return op + scaled_identity<scalar>{-detail::amount_as<scalar>(shift.scale), shift.order};
}
template <class Left, class Right, class Scalar, class Identity>
requires eigen::shifts<Identity, Scalar>
[[nodiscard]] auto operator-(const Identity& identity, const operator_expr<Left, Right, Scalar>& op) {
    return Scalar(-1) * op + identity;
}
template <class Left, class Right, class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const operator_expr<Left, Right, Scalar>& op) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    const scalar s = detail::amount_as<scalar>(amount);
    return op.template cast<scalar>().rescaled(s * scalar(op.scale()), s * scalar(op.shift()));
}
template <class Left, class Right, class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const operator_expr<Left, Right, Scalar>& op, const Amount& amount) { return amount * op; }
template <class Left, class Right, class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const operator_expr<Left, Right, Scalar>& op, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    static_assert(!std::is_integral_v<scalar>,
                  "otimes: an operator with a Kronecker product of integers cannot be divided, since 1 / n is 0.");
    return op * (scalar(1) / detail::amount_as<scalar>(amount));
}
template <class Left, class Right, class Scalar>
[[nodiscard]] auto operator-(const operator_expr<Left, Right, Scalar>& op) {
    return op * Scalar(-1);
}
/// @}

/// op * X. @throws shape_error when cols(op) != rows(X).
template <class Left, class Right, class Scalar, class Matrix>
requires eigen::dense<Matrix>
[[nodiscard]] auto operator*(const operator_expr<Left, Right, Scalar>& op, Matrix&& x) {
    return eigen::apply<true>(op, std::forward<Matrix>(x));
}

namespace eigen {

template <class Type>
inline constexpr bool is_operator_expr = false;
template <class Left, class Right, class Scalar>
inline constexpr bool is_operator_expr<operator_expr<Left, Right, Scalar>> = true;

/// A sparse, diagonal or permutation matrix as an operator of one factor. A borrowed one, or the transpose of one, is
/// followed; what is computed (-W, W.adjoint(), a block) is evaluated.
template <class Scalar, class Matrix>
operator_tree<Scalar> side_tree(const Matrix& w, bool borrowed) {
    kron_node<Scalar> node;
    if constexpr (sparse_matrix_like<Matrix> && is_transpose<Matrix>) {
        append_argument(node, w.nestedExpression());
        node.transpose();
    } else if (borrowed) {
        append_argument(node, w);
    } else {
        append_argument(node, Matrix(w));
    }
    return operator_tree<Scalar>(std::move(node));
}

/// W1 * K * W2 + s * identity() as a tree, so that it can be a term of a sum or a part of a product.
template <class Scalar, class Left, class Right, class Other>
operator_tree<Scalar> tree_of(const operator_expr<Left, Right, Other>& op) {
    enable_structure<Scalar>();
    operator_tree<Scalar> tree = scaled_tree<Scalar>(op.kron(), Scalar(op.scale()));
    if constexpr (!std::is_same_v<Left, absent>) {
        tree = multiply_trees(side_tree<Scalar>(op.left().get(), op.left().is_borrowed()), tree);
    }
    if constexpr (!std::is_same_v<Right, absent>) {
        tree = multiply_trees(tree, side_tree<Scalar>(op.right().get(), op.right().is_borrowed()));
    }
    if (op.shift() != Other(0)) {
        tree = add_trees(tree, identity_beside<Scalar>(op, Scalar(op.shift())));
    }
    return tree;
}
template <class Scalar, class Left, class Right, class Other>
operator_tree<Scalar> scaled_tree(const operator_expr<Left, Right, Other>& op, const Scalar& amount) {
    operator_tree<Scalar> tree = tree_of<Scalar>(op);
    tree.scale(amount);
    return tree;
}

/// @name What applies itself as a tree; defined in applied_sums.hpp.
/// @{
template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const selected_expr<Other>& s);
template <class Scalar, class Other>
operator_tree<Scalar> tree_of(const row_product_expr<Other>& r);
/// @}

/// X * op for an op with matrices beside its kron.
template <class Type>
concept operator_with_sides = is_operator_expr<bare<Type>>;

template <class Type>
concept any_operator = kron_operator<Type> || operator_with_sides<Type> || applies_itself<bare<Type>>;

/// Factors with structure that are no matrices beside a kron of their own.
template <class Type>
concept lone_factor = is_structured<bare<Type>> || triangular_like<Type> || householder_like<Type>;

/// s * identity(n) * op (`FromLeft`), op * identity(n). @throws shape_error
template <bool FromLeft, class Operator, class Identity>
auto multiple_of(const Operator& op, const Identity& identity) {
    const auto shift = detail::shift_of(identity);
    const std::int64_t extent = FromLeft ? op.rows() : op.cols();
    if (shift.order >= 0 && shift.order != extent) {
        throw shape_error("otimes: " + std::string(FromLeft ? "identity(n) * K" : "K * identity(n)") + ": K is " +
                          detail::shape_text(op.rows(), op.cols()) + ", the identity " +
                          detail::shape_text(shift.order, shift.order) + ".");
    }
    return op * shift.scale;
}

/// Two operators of which one at least has matrices beside its kron, or takes rows and columns of it.
template <class First, class Second>
concept operators_with_sides =
    any_operator<First> && any_operator<Second> && !(kron_operator<First> && kron_operator<Second>);

}  // namespace eigen

/// @name Operators with matrices beside them in sums and products: W * K * W.transpose() + kron_sum(A, B), and
/// W * (K1 + K2) * W.transpose() with a sum in the middle. Borrowed matrices are followed. @throws shape_error
/// @{
template <class First, class Second>
requires eigen::operators_with_sides<First, Second>
[[nodiscard]] auto operator+(const First& first, const Second& second) {
    static_assert(eigen::require_operators_mix<First, Second>());
    using scalar = eigen::common_operator_scalar<First, Second>;
    return sum_expr<scalar>(add_trees(eigen::tree_of<scalar>(first), eigen::tree_of<scalar>(second)));
}
template <class First, class Second>
requires eigen::operators_with_sides<First, Second>
[[nodiscard]] auto operator-(const First& first, const Second& second) {
    static_assert(eigen::require_operators_mix<First, Second>());
    using scalar = eigen::common_operator_scalar<First, Second>;
    return sum_expr<scalar>(add_trees(eigen::tree_of<scalar>(first), eigen::scaled_tree<scalar>(second, scalar(-1))));
}
template <class First, class Second>
requires eigen::operators_with_sides<First, Second>
[[nodiscard]] auto operator*(const First& first, const Second& second) {
    static_assert(eigen::require_operators_mix<First, Second>());
    using scalar = eigen::common_operator_scalar<First, Second>;
    eigen::enable_structure<scalar>();
    return sum_expr<scalar>(multiply_trees(eigen::tree_of<scalar>(first), eigen::tree_of<scalar>(second)));
}
template <class Left, class Right, class Scalar, class Matrix>
requires eigen::sparse_term<Matrix>
[[nodiscard]] auto operator+(const operator_expr<Left, Right, Scalar>& op, Matrix&& d) {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(op)) + std::forward<Matrix>(d);
}
template <class Left, class Right, class Scalar, class Matrix>
requires eigen::sparse_term<Matrix>
[[nodiscard]] auto operator+(Matrix&& d, const operator_expr<Left, Right, Scalar>& op) {
    return op + std::forward<Matrix>(d);
}
template <class Left, class Right, class Scalar, class Matrix>
requires eigen::sparse_term<Matrix>
[[nodiscard]] auto operator-(const operator_expr<Left, Right, Scalar>& op, Matrix&& d) {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(op)) - std::forward<Matrix>(d);
}
template <class Left, class Right, class Scalar, class Matrix>
requires eigen::sparse_term<Matrix>
[[nodiscard]] auto operator-(Matrix&& d, const operator_expr<Left, Right, Scalar>& op) {
    return Scalar(-1) * op + std::forward<Matrix>(d);
}
/// K * identity(n), s * identity() * K: the operator again, or its multiple. @throws shape_error an identity of another order
template <class Operator, detail::identity_like Identity>
requires eigen::any_operator<Operator>
[[nodiscard]] auto operator*(const Operator& op, const Identity& identity) {
    return eigen::multiple_of<false>(op, identity);
}
template <detail::identity_like Identity, class Operator>
requires eigen::any_operator<Operator>
[[nodiscard]] auto operator*(const Identity& identity, const Operator& op) {
    return eigen::multiple_of<true>(op, identity);
}
/// A factor with structure alone is a kron of one: toeplitz(c, r) * X, K * A.triangularView<Eigen::Lower>(). @throws shape_error
template <class Matrix, class Factor>
requires((eigen::dense<Matrix> && eigen::is_structured<eigen::bare<Factor>>) ||
         (eigen::any_operator<Matrix> && eigen::lone_factor<Factor>)) [[nodiscard]] auto
operator*(Matrix&& x, Factor&& t) {
    return std::forward<Matrix>(x) * kron(std::forward<Factor>(t));
}
template <class Factor, class Matrix>
requires((eigen::dense<Matrix> && eigen::is_structured<eigen::bare<Factor>>) ||
         (eigen::any_operator<Matrix> && eigen::lone_factor<Factor>)) [[nodiscard]] auto
operator*(Factor&& t, Matrix&& x) {
    return kron(std::forward<Factor>(t)) * std::forward<Matrix>(x);
}
template <class Operator>
requires eigen::any_operator<Operator>
[[nodiscard]] Operator operator+(const Operator& op) { return op; }
/// X * op.
template <class Matrix, class Operator>
requires(eigen::dense<Matrix>&& eigen::operator_with_sides<Operator>) [[nodiscard]] auto operator*(Matrix&& x,
                                                                                                   const Operator& op) {
    using scalar = typename Operator::Scalar;
    return std::forward<Matrix>(x) * sum_expr<scalar>(eigen::tree_of<scalar>(op));
}
template <class Matrix, class Scalar>
requires eigen::side_like<Matrix>
[[nodiscard]] auto operator*(Matrix&& w, const sum_expr<Scalar>& s) {
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    eigen::enable_structure<scalar>();
    return sum_expr<scalar>(
        multiply_trees(eigen::side_tree<scalar>(w, std::is_lvalue_reference_v<Matrix>), eigen::tree_of<scalar>(s)));
}
template <class Scalar, class Matrix>
requires eigen::side_like<Matrix>
[[nodiscard]] auto operator*(const sum_expr<Scalar>& s, Matrix&& w) {
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    eigen::enable_structure<scalar>();
    return sum_expr<scalar>(
        multiply_trees(eigen::tree_of<scalar>(s), eigen::side_tree<scalar>(w, std::is_lvalue_reference_v<Matrix>)));
}
template <class Left, class Right, class Scalar, class Matrix>
requires(eigen::side_like<Matrix> && !std::is_same_v<Right, eigen::absent>) [[nodiscard]] auto operator*(
    const operator_expr<Left, Right, Scalar>& op, Matrix&& w) {
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    return sum_expr<scalar>(eigen::tree_of<scalar>(op)) * std::forward<Matrix>(w);
}
template <class Matrix, class Left, class Right, class Scalar>
requires(eigen::side_like<Matrix> && !std::is_same_v<Left, eigen::absent>) [[nodiscard]] auto operator*(
    Matrix&& w, const operator_expr<Left, Right, Scalar>& op) {
    using scalar = typename eigen::scalar_beside<eigen::bare<Matrix>, Scalar>::type;
    return std::forward<Matrix>(w) * sum_expr<scalar>(eigen::tree_of<scalar>(op));
}
/// @}

template <class Left, class Right, class Scalar>
Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> operator_expr<Left, Right, Scalar>::toDenseMatrix() const {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(*this)).toDenseMatrix();
}
template <class Left, class Right, class Scalar>
operator_expr<Left, Right, Scalar>::operator sum_expr<Scalar>() const {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(*this));
}
template <class Left, class Right, class Scalar>
sum_expr<Scalar> operator_expr<Left, Right, Scalar>::transpose() const {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(*this)).transpose();
}
template <class Left, class Right, class Scalar>
sum_expr<Scalar> operator_expr<Left, Right, Scalar>::conjugate() const {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(*this)).conjugate();
}
template <class Left, class Right, class Scalar>
sum_expr<Scalar> operator_expr<Left, Right, Scalar>::adjoint() const {
    return sum_expr<Scalar>(eigen::tree_of<Scalar>(*this)).adjoint();
}

}  // namespace OTIMES_TARGET
}  // namespace otimes
