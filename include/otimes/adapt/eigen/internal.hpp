// SPDX-License-Identifier: MIT
/// @file internal.hpp
/// Everything that otimes asks of Eigen's internals, in one place: the traits of its two kinds of nodes, the evaluator that
/// evaluates a lazy node once when it is nested in an Eigen expression, and the assignment that evaluates it straight
/// into its destination. Only names that Eigen 3.4 and 5 share are used.
///
/// Two kinds of nodes. `lazy<Node>` is an Eigen dense expression (a product, a sum that contains one, an operator applied
/// to a matrix), and so is `vec_expr`, a stacked matrix. `kron_expr`, `sum_expr`, `operator_expr`, `selected_expr` and `row_product_expr` are operators: they derive from Eigen::EigenBase, so that Eigen's
/// iterative solvers take them, and never turn into a matrix silently.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/exec/target.hpp>
#include <otimes/host_matrix.hpp>

namespace Eigen {
template <class Derived>
class SparseMatrixBase;
template <class Derived>
class PermutationBase;
template <class Scalar, int Options, class StorageIndex>
class SparseMatrix;
}  // namespace Eigen

namespace otimes {
inline namespace OTIMES_TARGET {

template <class Node>
class lazy;
template <class Scalar>
class kron_expr;
template <class Scalar>
class sum_expr;
template <class Left, class Right, class Scalar>
class operator_expr;
template <class Scalar>
class selected_expr;
template <class Scalar>
class row_product_expr;
template <class Matrix, bool ByRows>
class vec_expr;

namespace eigen {

/// K(rows, cols), selected.hpp.
template <class Type>
inline constexpr bool is_selection = false;
template <class Scalar>
inline constexpr bool is_selection<selected_expr<Scalar>> = true;
/// face_split(..) and khatri_rao(..), row_products.hpp.
template <class Type>
inline constexpr bool is_row_product = false;
template <class Scalar>
inline constexpr bool is_row_product<row_product_expr<Scalar>> = true;
/// What is applied by code of its own instead of a program's steps (applied.hpp).
template <class Type>
concept applies_itself = is_row_product<Type> || is_selection<Type>;

template <class Scalar>
struct row_pairs_node;
/// R * S of row-wise products: a matrix where it can be one, and an operator (row_pairs.hpp).
template <class Type>
inline constexpr bool is_row_pairs = false;
template <class Scalar>
inline constexpr bool is_row_pairs<lazy<row_pairs_node<Scalar>>> = true;

/// A matrix of the library's own, by columns also where EIGEN_DEFAULT_TO_ROW_MAJOR is defined: whatever is described by the
/// strides {1, rows} besides.
template <class Scalar>
using dense_matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

/// Assigns a lazy expression to any Eigen destination; defined in lazy.hpp.
template <class Functor, class Destination, class Node>
void assign(Destination& destination, const lazy<Node>& source, const Functor& functor);
/// The same of a stacked matrix; defined in vec.hpp.
template <class Functor, class Destination, class Matrix, bool ByRows>
void assign(Destination& destination, const vec_expr<Matrix, ByRows>& source, const Functor& functor);

/// @name Eigen's `x.dot(y)` and `(y * z).diagonal()` where y is a lazy node;
/// defined in reductions.hpp.
/// @{
template <class First, class Second>
auto dot_with_product(const First& x, const Second& y);
template <class Product, class Matrix>
auto diagonal_of_product(const Product& y, const Matrix& z);
/// @}

/// How an assignment functor of Eigen changes the destination.
enum class assignment { overwrite, add, subtract, other };

template <class Functor>
inline constexpr assignment assignment_of = assignment::other;
template <class To, class From>
inline constexpr assignment assignment_of<Eigen::internal::assign_op<To, From>> = assignment::overwrite;
template <class To, class From>
inline constexpr assignment assignment_of<Eigen::internal::add_assign_op<To, From>> = assignment::add;
template <class To, class From>
inline constexpr assignment assignment_of<Eigen::internal::sub_assign_op<To, From>> = assignment::subtract;

template <class Derived>
Derived* inherited_matrix(const Eigen::MatrixBase<Derived>*);
void inherited_matrix(...);
template <class Type, bool = std::is_class_v<Type> && !std::is_const_v<Type>>
struct choose_eigen_type {
    using type = Type;
};
template <class Type>
struct choose_eigen_type<Type, true> {
    using inherited = std::remove_pointer_t<decltype(inherited_matrix(static_cast<Type*>(nullptr)))>;
    static constexpr bool stays = std::is_void_v<inherited> || std::is_same_v<inherited, Type> || requires {
        sizeof(Eigen::internal::traits<Type>);
    };
    using type = std::conditional_t<stays, Type, inherited>;
};
/// What Eigen knows a type as: of a user's `class my_matrix : public Eigen::MatrixXd`, which has no traits, the class that it inherits.
/// Everything else is what it is.
template <class Type>
using eigen_type = typename choose_eigen_type<Type>::type;

template <class Derived>
Eigen::internal::traits<Eigen::ReturnByValue<Derived>>* traits_by_value(const Eigen::ReturnByValue<Derived>*);
void traits_by_value(...);
template <class Expression, class ByValue = decltype(traits_by_value(static_cast<Expression*>(nullptr)))>
struct choose_traits {
    using type = std::remove_pointer_t<ByValue>;
};
template <class Expression>
struct choose_traits<Expression, void> {
    using type = Eigen::internal::traits<Expression>;
};
/// What Eigen tells of an expression. One that computes its matrix only when it is assigned, A.exp() or kroneckerProduct(A, B), has it at its base.
template <class Expression>
using traits_of = typename choose_traits<eigen_type<Expression>>::type;

/// True for Matrix, Map, Block, Ref and their transposes: pointer and strides describe all of it. Of some other views Eigen says so too,
/// but their strides are not those of their elements (host_matrix.hpp).
template <class Expression>
inline constexpr bool has_direct_access = bool(int(traits_of<Expression>::Flags) & Eigen::DirectAccessBit) &&
                                          detail::strides_hold<eigen_type<Expression>>&& requires(const Expression& e) {
    e.data();
};

/// The real (0) or the imaginary part (1) of a complex matrix that may be written, an Eigen::CwiseUnaryView; -1 for other expressions.
template <class Expression>
inline constexpr int part_of_complex = -1;
template <template <class...> class View, class Complex, class... Matrix>
inline constexpr int part_of_complex<View<Eigen::internal::scalar_real_ref_op<Complex>, Matrix...>> = 0;
template <template <class...> class View, class Complex, class... Matrix>
inline constexpr int part_of_complex<View<Eigen::internal::scalar_imag_ref_op<Complex>, Matrix...>> = 1;

/// What has the first element of the matrix that it wraps.
template <class Expression>
inline constexpr bool is_wrapper = false;
template <class Matrix>
inline constexpr bool is_wrapper<Eigen::Transpose<Matrix>> = true;
template <class Array>
inline constexpr bool is_wrapper<Eigen::MatrixWrapper<Array>> = true;
template <class Matrix>
inline constexpr bool is_wrapper<Eigen::ArrayWrapper<Matrix>> = true;

/// True for a product of matrices: inside another expression Eigen evaluates it before anything is written.
template <class Expression>
inline constexpr bool is_evaluated_first = bool(int(traits_of<Expression>::Flags) & Eigen::EvalBeforeNestingBit);

/// True for what owns its memory: Matrix and what inherits it, nothing else here.
template <class Expression>
inline constexpr bool is_plain = std::is_base_of_v<Eigen::PlainObjectBase<eigen_type<Expression>>, Expression>;

template <class Expression>
inline constexpr bool is_transpose_of_plain = false;
template <class Nested>
inline constexpr bool is_transpose_of_plain<Eigen::Transpose<Nested>> = is_plain<std::remove_const_t<Nested>>;

/// True for views of memory that may be written: Map, Block, Ref, their transposes, of matrices that are not const.
template <class Expression>
inline constexpr bool is_writable_view =
    !is_plain<Expression> && bool(int(traits_of<Expression>::Flags) & Eigen::LvalueBit);

/// True when an assignment may change the shape.
template <class Expression>
inline constexpr bool is_resizable = (is_plain<Expression> || is_transpose_of_plain<Expression>)&&(
    int(traits_of<Expression>::RowsAtCompileTime) == Eigen::Dynamic ||
    int(traits_of<Expression>::ColsAtCompileTime) == Eigen::Dynamic);

/// `MatrixXd::Identity(n, n)`: recognised by type, so that it costs nothing as a factor.
template <class Expression>
inline constexpr bool is_identity_expression = false;
template <class Scalar, class Plain>
inline constexpr bool
    is_identity_expression<Eigen::CwiseNullaryOp<Eigen::internal::scalar_identity_op<Scalar>, Plain>> = true;

/// A scalar multiple of an expression, as in `2.0 * X`: what it multiplies and by how much, so that `2.0 * X * K` is one
/// chain with a scalar and X is not copied.
template <class Expression>
struct scalar_multiple {
    static constexpr bool value = false;
};
template <class To, class From, class Constant, class Plain, class Matrix>
struct scalar_multiple<
    Eigen::CwiseBinaryOp<Eigen::internal::scalar_product_op<To, From>,
                         const Eigen::CwiseNullaryOp<Eigen::internal::scalar_constant_op<Constant>, Plain>, Matrix>> {
    static constexpr bool value = true;
    template <class Expression>
    static Constant amount(const Expression& e) {
        return e.lhs().functor().m_other;
    }
    template <class Expression>
    static const auto& matrix(const Expression& e) {
        return e.rhs();
    }
};
template <class To, class From, class Constant, class Plain, class Matrix>
struct scalar_multiple<
    Eigen::CwiseBinaryOp<Eigen::internal::scalar_product_op<To, From>, Matrix,
                         const Eigen::CwiseNullaryOp<Eigen::internal::scalar_constant_op<Constant>, Plain>>> {
    static constexpr bool value = true;
    template <class Expression>
    static Constant amount(const Expression& e) {
        return e.rhs().functor().m_other;
    }
    template <class Expression>
    static const auto& matrix(const Expression& e) {
        return e.lhs();
    }
};
template <class Constant, class Matrix>
struct scalar_multiple<Eigen::CwiseUnaryOp<Eigen::internal::scalar_opposite_op<Constant>, Matrix>> {
    static constexpr bool value = true;
    template <class Expression>
    static Constant amount(const Expression&) {
        return Constant(-1);
    }
    template <class Expression>
    static const auto& matrix(const Expression& e) {
        return e.nestedExpression();
    }
};

template <class To, class From, class Matrix, class Constant, class Plain>
requires(!std::is_integral_v<Constant>) struct scalar_multiple<
    Eigen::CwiseBinaryOp<Eigen::internal::scalar_quotient_op<To, From>, Matrix,
                         const Eigen::CwiseNullaryOp<Eigen::internal::scalar_constant_op<Constant>, Plain>>> {
    static constexpr bool value = true;
    template <class Expression>
    static Constant amount(const Expression& e) {
        return Constant(1) / e.rhs().functor().m_other;
    }
    template <class Expression>
    static const auto& matrix(const Expression& e) {
        return e.lhs();
    }
};

/// Assigns an Eigen expression without a temporary and with Eigen's own functor.
template <class Destination, class Source, class Functor>
void assign_without_alias(Destination& destination, const Source& source, const Functor& functor) {
    Eigen::internal::call_assignment_no_alias(destination, source, functor);
}

template <class Scalar>
using add_functor = Eigen::internal::add_assign_op<Scalar, Scalar>;
template <class Scalar>
using overwrite_functor = Eigen::internal::assign_op<Scalar, Scalar>;

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

namespace Eigen {
namespace internal {

template <class Node>
struct traits<otimes::lazy<Node>> {
    using Scalar = typename Node::scalar_type;
    using StorageKind = Dense;
    using XprKind = MatrixXpr;
    using StorageIndex = Index;
    static constexpr int RowsAtCompileTime = Node::rows_at_compile_time;
    static constexpr int ColsAtCompileTime = Node::cols_at_compile_time;
    static constexpr int MaxRowsAtCompileTime = RowsAtCompileTime;
    static constexpr int MaxColsAtCompileTime = ColsAtCompileTime;
    static constexpr int Flags = Node::row_major ? int(RowMajorBit) : 0;
};

template <class Stacked, bool ByRows>
struct traits<otimes::vec_expr<Stacked, ByRows>> {
    using Scalar = typename std::remove_cvref_t<Stacked>::Scalar;
    using StorageKind = Dense;
    using XprKind = MatrixXpr;
    using StorageIndex = Index;
    static constexpr int RowsAtCompileTime = Dynamic;
    static constexpr int ColsAtCompileTime = 1;
    static constexpr int MaxRowsAtCompileTime = Dynamic;
    static constexpr int MaxColsAtCompileTime = 1;
    static constexpr int Flags = 0;
};

/// What Eigen's solvers read of an operator. There is deliberately no IsVectorAtCompileTime: with it the solvers would
/// try to make a Ref of the operator.
template <class OperatorScalar>
struct operator_traits {
    using Scalar = OperatorScalar;
    using StorageKind = Sparse;
    using XprKind = MatrixXpr;
    using StorageIndex = Index;
    static constexpr int RowsAtCompileTime = Dynamic;
    static constexpr int ColsAtCompileTime = Dynamic;
    static constexpr int MaxRowsAtCompileTime = Dynamic;
    static constexpr int MaxColsAtCompileTime = Dynamic;
    static constexpr int Flags = 0;
};
template <class Scalar>
struct traits<otimes::kron_expr<Scalar>> : operator_traits<Scalar> {};
template <class Scalar>
struct traits<otimes::sum_expr<Scalar>> : operator_traits<Scalar> {};
template <class Left, class Right, class Scalar>
struct traits<otimes::operator_expr<Left, Right, Scalar>> : operator_traits<Scalar> {};
template <class Scalar>
struct traits<otimes::selected_expr<Scalar>> : operator_traits<Scalar> {};
template <class Scalar>
struct traits<otimes::row_product_expr<Scalar>> : operator_traits<Scalar> {};

/// The shape of an operator. With any of Eigen's own an assignment to a matrix would look for an evaluator; with this one
/// it asks for evalTo, which says what to write instead.
struct OtimesOperatorShape {};
struct operator_evaluator_traits {
    using Kind = IndexBased;
    using Shape = OtimesOperatorShape;
};
template <class Scalar>
struct evaluator_traits<otimes::kron_expr<Scalar>> : operator_evaluator_traits {};
template <class Scalar>
struct evaluator_traits<otimes::sum_expr<Scalar>> : operator_evaluator_traits {};
template <class Left, class Right, class Scalar>
struct evaluator_traits<otimes::operator_expr<Left, Right, Scalar>> : operator_evaluator_traits {};
template <class Scalar>
struct evaluator_traits<otimes::selected_expr<Scalar>> : operator_evaluator_traits {};
template <class Scalar>
struct evaluator_traits<otimes::row_product_expr<Scalar>> : operator_evaluator_traits {};

/// Nested in an Eigen expression, a lazy node is evaluated once into a plain object: EvalBeforeNestingBit keeps Eigen from
/// evaluating it per coefficient.
template <class Expression>
struct evaluated_once : evaluator<typename Expression::PlainObject> {
    using XprType = Expression;
    using PlainObject = typename XprType::PlainObject;
    using Base = evaluator<PlainObject>;
    static constexpr int Flags = int(Base::Flags) | int(EvalBeforeNestingBit);

    explicit evaluated_once(const XprType& expression) : value_(expression) {
        ::new (static_cast<Base*>(this)) Base(value_);
    }

protected:
    PlainObject value_;
};
template <class Node>
struct evaluator<otimes::lazy<Node>> : evaluated_once<otimes::lazy<Node>> {
    using evaluated_once<otimes::lazy<Node>>::evaluated_once;
};
template <class Matrix, bool ByRows>
struct evaluator<otimes::vec_expr<Matrix, ByRows>> : evaluated_once<otimes::vec_expr<Matrix, ByRows>> {
    using evaluated_once<otimes::vec_expr<Matrix, ByRows>>::evaluated_once;
};

template <class Destination, class Node, class Functor>
struct Assignment<Destination, otimes::lazy<Node>, Functor, Dense2Dense, void> {
    static void run(Destination& destination, const otimes::lazy<Node>& source, const Functor& functor) {
        otimes::eigen::assign(destination, source, functor);
    }
};
template <class Destination, class Matrix, bool ByRows, class Functor>
struct Assignment<Destination, otimes::vec_expr<Matrix, ByRows>, Functor, Dense2Dense, void> {
    static void run(Destination& destination, const otimes::vec_expr<Matrix, ByRows>& source, const Functor& functor) {
        otimes::eigen::assign(destination, source, functor);
    }
};

/// x.dot(K * y) and (K * y).dot(x): without storing K * y.
struct otimes_dot {
    template <class First, class Second>
    static auto run(const MatrixBase<First>& a, const MatrixBase<Second>& b) {
        return otimes::eigen::dot_with_product(a.derived(), b.derived());
    }
};
#if EIGEN_VERSION_AT_LEAST(3, 4, 90)  // of 5.0: 3.4 calls it dot_nocheck, and tells vectors of different orders apart
template <class First, class Node>
struct dot_impl<First, otimes::lazy<Node>> : otimes_dot {};
template <class Node, class Second>
struct dot_impl<otimes::lazy<Node>, Second> : otimes_dot {};
template <class First, class Second>
struct dot_impl<otimes::lazy<First>, otimes::lazy<Second>> : otimes_dot {};
#else
template <class First, class Node>
struct dot_nocheck<First, otimes::lazy<Node>, false> : otimes_dot {};
template <class First, class Node>
struct dot_nocheck<First, otimes::lazy<Node>, true> : otimes_dot {};
template <class Node, class Second>
struct dot_nocheck<otimes::lazy<Node>, Second, false> : otimes_dot {};
template <class Node, class Second>
struct dot_nocheck<otimes::lazy<Node>, Second, true> : otimes_dot {};
template <class First, class Second>
struct dot_nocheck<otimes::lazy<First>, otimes::lazy<Second>, false> : otimes_dot {};
template <class First, class Second>
struct dot_nocheck<otimes::lazy<First>, otimes::lazy<Second>, true> : otimes_dot {};
#endif

/// (X.transpose() * K * X).trace(): the diagonal of a product whose left factor
/// is lazy, without storing that factor. A factor that is no product is
/// evaluated once.
template <class Node, class Right>
struct evaluator<Diagonal<const Product<otimes::lazy<Node>, Right, DefaultProduct>, 0>>
    : evaluator<Matrix<typename Product<otimes::lazy<Node>, Right, DefaultProduct>::Scalar, Dynamic, 1>> {
    using XprType = Diagonal<const Product<otimes::lazy<Node>, Right, DefaultProduct>, 0>;
    using PlainObject = Matrix<typename Product<otimes::lazy<Node>, Right, DefaultProduct>::Scalar, Dynamic, 1>;
    using Base = evaluator<PlainObject>;

    explicit evaluator(const XprType& expression)
        : value_(otimes::eigen::diagonal_of_product(expression.nestedExpression().lhs(),
                                                    expression.nestedExpression().rhs())) {
        ::new (static_cast<Base*>(this)) Base(value_);
    }

protected:
    PlainObject value_;
};

/// s * (X * K * B) inside a larger expression: Eigen turns it into (s * (X * K)) * B, and here `s * lazy` is a lazy node,
/// not Eigen's multiple of a matrix.
template <class Amount, class To, class Plain, class Node, class Right>
struct evaluator<CwiseBinaryOp<scalar_product_op<Amount, To>, const CwiseNullaryOp<scalar_constant_op<Amount>, Plain>,
                               const Product<otimes::lazy<Node>, Right, DefaultProduct>>>
    : evaluator<Product<decltype(std::declval<const Amount&>() * std::declval<const otimes::lazy<Node>&>()), Right,
                        DefaultProduct>> {
    using XprType =
        CwiseBinaryOp<scalar_product_op<Amount, To>, const CwiseNullaryOp<scalar_constant_op<Amount>, Plain>,
                      const Product<otimes::lazy<Node>, Right, DefaultProduct>>;
    using Base = evaluator<Product<decltype(std::declval<const Amount&>() * std::declval<const otimes::lazy<Node>&>()),
                                   Right, DefaultProduct>>;

    explicit evaluator(const XprType& expression)
        : Base(expression.lhs().functor().m_other * expression.rhs().lhs() * expression.rhs().rhs()) {}
};

}  // namespace internal
}  // namespace Eigen
