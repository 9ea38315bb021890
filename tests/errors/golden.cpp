// SPDX-License-Identifier: MIT
// The texts of the errors, word for word, and that nothing was written when they are thrown.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(3, 2, 2);
const matrix_d C = random(4, 5, 3);

using support::text_of;

// The text of a shape_error, after checking that Y, whatever it is, is not touched by the statement.
template <class Destination, class Statement>
std::string untouched(Destination& Y, const Statement& statement) {
    const matrix_d before = Y;
    const auto* const memory = Y.data();
    const std::string text = text_of<otimes::shape_error>(statement);
    CHECK(Y.data() == memory);
    CHECK(support::exactly_equal(matrix_d(Y), before));
    return text;
}

}  // namespace

TEST_CASE("X * K: the columns of X") {
    const auto K = kron(A, B, C);  // 24 x 30
    const matrix_d X = random(5, 23, 4);
    matrix_d Y = random(2, 2, 5);
    const std::string text =
        "otimes: X * kron(F1, F2, F3): X is 5 x 23, but kron(F1, F2, F3) is 24 x 30. The columns of X must equal the "
        "product of "
        "the factors' rows, 2 * 3 * 4 = 24.";
    CHECK(untouched(Y, [&] { Y = X * K; }) == text);
    CHECK(untouched(Y, [&] { Y += 2.0 * X * K; }) == text);
    CHECK(untouched(Y, [&] { Y.noalias() -= X * K * 2; }) == text);
    CHECK(untouched(Y, [&] { Y = Y + X * K; }) == text);
    CHECK(untouched(Y, [&] { otimes::on(otimes::reference(), Y) = X * K; }) == text);
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(X * K); }) == text);  // already where it is written
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(otimes::make_plan(X * K)); }) == text);
}

TEST_CASE("K * X: the rows of X") {
    const auto K = kron(A, C);  // 8 x 15
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = K * random(14, 3, 6); }) ==
          "otimes: kron(F1, F2) * X: X is 14 x 3, but kron(F1, F2) is 8 x 15. The rows of X must equal the product of "
          "the factors' "
          "columns, 3 * 5 = 15.");
    CHECK(untouched(Y, [&] { Y = kron(C) * random<vector_d>(7, 1, 7); }) ==
          "otimes: kron(F1) * X: X is 7 x 1, but kron(F1) is 4 x 5. The rows of X must equal the product of the "
          "factors' columns, "
          "5.");
    CHECK(untouched(Y, [&] { Y = K * random(15, 7, 6) * kron(A); }) ==
          "otimes: X * kron(F1): X is 15 x 7, but kron(F1) is 2 x 3. The columns of X must equal the product of the "
          "factors' rows, "
          "2.");
}

TEST_CASE("a transpose that was forgotten") {
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = random(5, 15, 6) * kron(A, C); }) ==
          "otimes: X * kron(F1, F2): X is 5 x 15, but kron(F1, F2) is 8 x 15. The columns of X must equal the product "
          "of the "
          "factors' rows, 2 * 4 = 8. They equal the product of the factors' other extents: did you mean "
          "kron(F1, F2).transpose()?");
    CHECK(untouched(Y, [&] { Y = kron(A, C) * random(8, 2, 6); }) ==
          "otimes: kron(F1, F2) * X: X is 8 x 2, but kron(F1, F2) is 8 x 15. The rows of X must equal the product of "
          "the factors' "
          "columns, 3 * 5 = 15. They equal the product of the factors' other extents: did you mean "
          "kron(F1, F2).transpose()?");
}

TEST_CASE("many factors and none") {
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = random(1, 100, 6) * otimes::kron_power(A, 8); }) ==
          "otimes: X * kron(F1, F2, ..., F8): X is 1 x 100, but kron(F1, F2, ..., F8) is 256 x 6561. The columns of X "
          "must equal "
          "the product of the factors' rows, 2 * 2 * 2 * 2 * 2 * 2 * 2 * 2 = 256.");
    CHECK(untouched(Y, [&] { Y = random(3, 2, 6) * kron(); }) ==
          "otimes: X * kron(): X is 3 x 2, but kron() is 1 x 1. The columns of X must equal the product of the "
          "factors' rows, 1 (no "
          "factors).");
}

TEST_CASE("a factor that changed its shape after the expression was built") {
    matrix_d F = random(3, 3, 8);
    const matrix_d X = random(2, 3, 9);
    const auto e = X * kron(F);
    F.resize(4, 4);
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = e; }) ==
          "otimes: X * kron(F1): X is 2 x 3, but kron(F1) is 4 x 4. The columns of X must equal the product of the "
          "factors' rows, "
          "4.");
}

TEST_CASE("destinations that do not fit") {
    const matrix_d X = random(4, 6, 10);
    const auto K = kron(A, B);
    matrix_d Y = random(4, 5, 5);
    CHECK(untouched(Y, [&] { Y += X * K; }) ==
          "otimes: Y += expression: Y is 4 x 5, the expression 4 x 6. Only a plain assignment resizes.");
    CHECK(untouched(Y, [&] { Y.noalias() -= X * K; }) ==
          "otimes: Y -= expression: Y is 4 x 5, the expression 4 x 6. Only a plain assignment resizes.");
    CHECK(untouched(Y, [&] { Y += X + X * K; }) ==
          "otimes: Y += expression: Y is 4 x 5, the expression 4 x 6. Only a plain assignment resizes.");
    const std::string fixed_text = "otimes: Y = expression: Y is 4 x 5 and cannot be resized, the expression is 4 x 6.";
    Eigen::Matrix<double, 4, 5> fixed = Y;
    CHECK(untouched(fixed, [&] { fixed = X * K; }) == fixed_text);
    Eigen::Ref<matrix_d> ref(Y);
    CHECK(untouched(Y, [&] { ref = X * K; }) == fixed_text);
    Eigen::Map<matrix_d> map(Y.data(), 4, 5);
    CHECK(untouched(Y, [&] { map.noalias() = X * K; }) == fixed_text);
    CHECK(untouched(Y, [&] { Y.topRows(4) = X * K; }) == fixed_text);
    CHECK(untouched(Y, [&] { otimes::on(otimes::cpu(), Y.topRows(4)) = X * K; }) == fixed_text);
    Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, 0, 4, 5> bounded = Y;
    CHECK(untouched(bounded, [&] { bounded = X * K; }) == fixed_text);
    Eigen::Matrix<double, Eigen::Dynamic, 5> columns = Y;
    CHECK(untouched(columns, [&] { columns = X * K; }) == fixed_text);
}

TEST_CASE("terms of a sum") {
    const matrix_d X = random(4, 6, 10);
    const auto K = kron(A, B);
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(random(3, 6, 11) + X * K); }) ==
          "otimes: sum: the first term is 3 x 6, the second 4 x 6. Terms of a sum must have equal shapes.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(X * K - X * kron(A, B, A)); }) ==
          "otimes: X * kron(F1, F2, F3): X is 4 x 6, but kron(F1, F2, F3) is 12 x 18. The columns of X must equal the "
          "product of "
          "the factors' rows, 2 * 3 * 2 = 12.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(2 * (X * K) - random(6, 4, 12)); }) ==
          "otimes: sum: the first term is 4 x 6, the second 6 x 4. Terms of a sum must have equal shapes.");
}

TEST_CASE("extents beyond 64 bits") {
    const Index big = Index(1) << 32;
    CHECK(text_of<otimes::shape_error>(
              [&] { static_cast<void>(kron(A, otimes::identity(big), otimes::identity(big))); }) ==
          "otimes: kron(F1, F2, F3): the product of the factors' rows exceeds 2^63 - 1 at factor 3, which is "
          "4294967296 x 4294967296. Extents are 64-bit; use fewer or smaller factors.");
    // Columns alone.
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(otimes::kron_power(matrix_d::Ones(1, 2), 63)); }) ==
          "otimes: kron(F1, F2, ..., F63): the product of the factors' columns exceeds 2^63 - 1 at factor 63, which is "
          "1 x 2. "
          "Extents are 64-bit; use fewer or smaller factors.");
    CHECK_NOTHROW(otimes::kron_power(matrix_d::Ones(1, 2), 62));
    const std::vector<matrix_d> many(64, matrix_d::Ones(2, 1));
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(kron(many)); }) ==
          "otimes: kron(F1, F2, ..., F64): the product of the factors' rows exceeds 2^63 - 1 at factor 63, which is 2 "
          "x 1. "
          "Extents are 64-bit; use fewer or smaller factors.");
    const auto wide = otimes::kron_power(matrix_d::Ones(1, 2), 62);
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = matrix_d::Ones(4, 1) * wide; }) ==
          "otimes: X * kron(F1, F2, ..., F62): X is 4 x 1 and the result 4 x 4611686018427387904; an operand or an "
          "intermediate has "
          "more than 2^63 - 1 elements.");
    // An intermediate alone: 2^32 columns, then 2^-32 of that.
    CHECK(text_of<otimes::shape_error>([&] {
              static_cast<void>(matrix_d::Ones(4, 1) *
                                kron(wide, otimes::kron_power(matrix_d::Ones(2, 1), 0), matrix_d::Ones(1, 1)));
          }) ==
          "otimes: X * kron(F1, F2, ..., F63): X is 4 x 1 and the result 4 x 4611686018427387904; an operand or an "
          "intermediate has more than 2^63 - 1 elements.");
    // Between two operators that are applied one after the other.
    const matrix_d column = matrix_d::Ones(8, 1);
    const auto tall = kron(column, otimes::kron_power(matrix_d::Ones(4, 1), 28), column);
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(matrix_d::Ones(4, 1) * (wide * tall)); }) ==
          "otimes: X * S: X is 4 x 1 and the result 4 x 1; an operand or an intermediate has more than 2^63 - 1 "
          "elements.");
    CHECK_NOTHROW(static_cast<void>(matrix_d::Ones(0, 1) * (wide * tall)));
    CHECK(text_of<otimes::shape_error>(
              [&] { static_cast<void>(kron(otimes::identity(big), otimes::identity(big / 4)).toDenseMatrix()); }) ==
          "otimes: kron(F1, F2).toDenseMatrix(): 4611686018427387904 x 4611686018427387904 elements exceed 2^63 - 1.");
}

TEST_CASE("orders, powers, indices") {
    CHECK(text_of<otimes::shape_error>([] { static_cast<void>(otimes::identity(-3)); }) ==
          "otimes: identity(-3): the order must not be negative.");
    CHECK(text_of<otimes::shape_error>([] { static_cast<void>(otimes::kron_power(A, -1)); }) ==
          "otimes: kron_power(F, -1): the power must not be negative.");
    CHECK(text_of<otimes::shape_error>(
              [] { static_cast<void>(otimes::kron_power(matrix_d::Ones(1, 1), 1'000'000'000)); }) ==
          "otimes: kron of more than 1024 factors: all but a few are 1 x 1. Multiply those into one number first.");
    CHECK_NOTHROW(otimes::kron_power(matrix_d::Ones(1, 1), 1024));
    CHECK_THROWS_AS(kron(otimes::kron_power(matrix_d::Ones(1, 1), 1024), A), otimes::shape_error);
    const auto K = kron(A, B);
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(K.factor(2)); }) ==
          "otimes: kron(F1, F2).factor(2): there are 2 factors, counted from 0.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(K.factor(-1)); }) ==
          "otimes: kron(F1, F2).factor(-1): there are 2 factors, counted from 0.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(K(6, 0)); }) ==
          "otimes: kron(F1, F2)(6, 0): the product is 6 x 6.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(K.coeff(0, -1)); }) ==
          "otimes: kron(F1, F2)(0, -1): the product is 6 x 6.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(kron(matrix_d(0, 3))(0, 0)); }) ==
          "otimes: kron(F1)(0, 0): the product is 0 x 3.");
}

TEST_CASE("views of nothing, placements that do not exist") {
    using view = Eigen::Map<matrix_d>;
    const auto K = kron(A, B);
    const std::string sentence =
        "otimes: a view of 2 x 6 elements at a null pointer. Give the Map the address of its "
        "elements.";
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = view(nullptr, 2, 6) * K; }) == sentence);
    CHECK(text_of<otimes::shape_error>([&] { view(nullptr, 2, 6) = random(2, 6, 6) * K; }) == sentence);
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(kron(A, view(nullptr, 2, 6))); }) == sentence);
    CHECK((view(nullptr, 0, 6) * K).eval().size() == 0);
    const otimes::options unknown{.placement = static_cast<otimes::placement>(77)};
    CHECK(text_of<otimes::unsupported_error>([&] {
              static_cast<void>(otimes::make_plan(Y.leftCols(1) * kron(A.row(0), B.row(0)), unknown));
          }) == "otimes: options::placement is 77, which is none of automatic, cpu, gpu and gpus.");
    const otimes::options unnamed{.precision = static_cast<otimes::precision>(9)};
    CHECK(text_of<otimes::unsupported_error>([&] {
              static_cast<void>(otimes::make_plan(Y.leftCols(1) * kron(A.row(0), B.row(0)), unnamed));
          }) == "otimes: options::precision is 9, which is none of standard, ieee, tf32 and bf16.");
}

TEST_CASE("operators with sparse, diagonal and permutation matrices") {
    const auto K = kron(A, B);
    const Eigen::SparseMatrix<double> W(4, 5);
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(W * K); }) ==
          "otimes: W * kron(F1, F2): W is 4 x 5, but kron(F1, F2) is 6 x 6. The columns of W must equal the rows of "
          "the Kronecker "
          "product.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(K * W); }) ==
          "otimes: kron(F1, F2) * W: W is 4 x 5, but kron(F1, F2) is 6 x 6. The rows of W must equal the columns of "
          "the Kronecker "
          "product.");
    const Eigen::SparseMatrix<double> V(4, 6);
    const auto op = V * K * V.transpose() + 0.5 * otimes::identity();
    matrix_d Y = random(2, 2, 5);
    CHECK(untouched(Y, [&] { Y = op * random(6, 1, 13); }) ==
          "otimes: operator * X: X is 6 x 1, but the operator is 4 x 4. The rows of X must equal the columns of the "
          "operator.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(V * K + 2.0 * otimes::identity()); }) ==
          "otimes: operator + s * identity(): the operator is 4 x 6; only a square operator can be shifted.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(op - matrix_d::Identity(6, 6)); }) ==
          "otimes: operator + s * identity(6): the operator is 4 x 4, the identity 6 x 6. Their orders must be equal; "
          "identity() takes the order that fits.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(K + 2 * otimes::identity(5)); }) ==
          "otimes: operator + s * identity(5): the operator is 6 x 6, the identity 5 x 5. Their orders must be equal; "
          "identity() takes the order that fits.");
    CHECK(text_of<otimes::shape_error>([&] { static_cast<void>(kron(K, 2 * otimes::identity())); }) ==
          "otimes: kron(.., s * identity(), ..): a factor needs its order; write s * identity(n).");
    const Eigen::SparseMatrix<double> S(6, 6);
    CHECK(text_of<otimes::unsupported_error>([&] { static_cast<void>((S * K + 0.5 * otimes::identity()) * S); }) ==
          "otimes: (operator + s * identity()) * W: the shift comes last; multiply first, then add s * identity().");
    CHECK(text_of<otimes::unsupported_error>([&] { static_cast<void>(S * (K * S + 0.5 * otimes::identity())); }) ==
          "otimes: W * (operator + s * identity()): the shift comes last; multiply first, then add s * identity().");
}

TEST_CASE("workspace limits and foreign plan texts") {
    const matrix_d X = random(40, 24, 14);
    const auto e = X * kron(A, B, C);
    const std::string text =
        text_of<otimes::budget_error>([&] { static_cast<void>(otimes::make_plan(e, {.workspace_limit_bytes = 8})); });
    CHECK(text.find("otimes: the product needs a workspace of at least ") == 0);
    CHECK(text.find(" bytes, but workspace_limit_bytes is 8. Raise the limit to that or more.") != std::string::npos);
    CHECK(text_of<otimes::unsupported_error>([] {
              static_cast<void>(otimes::plan_from_text("select * from plans"));
          }).find("otimes: this text is not a plan or machine that this version can read: ") == 0);
}
