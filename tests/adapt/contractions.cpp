// SPDX-License-Identifier: MIT
// Contractions against plain loops: all 36 single-mode cases of Shi et al. (2016) in every combination of storage orders, with
// the operands in either order; higher orders, batches, Eigen's tensors.
#include <otimes/einsum.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <otimes/plan/serialize.hpp>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/thrown.hpp"

namespace {

using otimes::einsum;
using otimes::strided_view;
using Index = std::int64_t;

template <class Scalar>
std::vector<Scalar> numbers(Index count, std::uint64_t seed) {
    std::vector<Scalar> result(static_cast<std::size_t>(count));
    support::random_stream stream(seed);
    for (Scalar& value : result) {
        value = support::detail::draw_scalar<Scalar>([&] { return stream.signed_power_of_two(); });
    }
    return result;
}

// Extents that differ: m, n, p, k of the table.
constexpr Index extent_of(char letter) { return letter == 'm' ? 5 : letter == 'n' ? 3 : letter == 'p' ? 7 : 4; }

// Case 0 .. 35 of the table, C[m, n, p] throughout: the matrix holds k and m, n or p in either order (6), the tensor k and the
// other two in any order (6).
struct table_case {
    char matrix[2];
    char tensor[3];
};
constexpr table_case case_number(int number) {
    const char letters[3] = {'m', 'n', 'p'};
    const int own = number / 12;
    table_case c{};
    c.matrix[number / 6 % 2] = letters[own];
    c.matrix[1 - number / 6 % 2] = 'k';
    const char of_tensor[3] = {'k', letters[own == 0 ? 1 : 0], letters[own == 2 ? 1 : 2]};
    constexpr int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < 3; ++k) {
        c.tensor[k] = of_tensor[orders[number % 6][k]];
    }
    return c;
}

template <int Number, bool TensorFirst>
constexpr auto text_of_case() {
    constexpr table_case c = case_number(Number);
    char text[12] = {};
    int at = 0;
    const auto put = [&](char letter) { text[at++] = letter; };
    if (TensorFirst) {
        put(c.tensor[0]), put(c.tensor[1]), put(c.tensor[2]), put(','), put(c.matrix[0]), put(c.matrix[1]);
    } else {
        put(c.matrix[0]), put(c.matrix[1]), put(','), put(c.tensor[0]), put(c.tensor[1]), put(c.tensor[2]);
    }
    put('-'), put('>'), put('m'), put('n'), put('p');
    return std::to_array(text);
}
template <int Number, bool TensorFirst>
consteval otimes::subscript_text<12> subscripts_of_case() {
    otimes::subscript_text<12> result("           ");
    const auto text = text_of_case<Number, TensorFirst>();
    for (std::size_t i = 0; i < 12; ++i) {
        result.text[i] = text[i];
    }
    return result;
}

template <std::size_t Order>
std::array<Index, Order> extents_of(const char (&letters)[Order]) {
    std::array<Index, Order> result{};
    for (std::size_t k = 0; k < Order; ++k) {
        result[k] = extent_of(letters[k]);
    }
    return result;
}
template <class Scalar, std::size_t Order>
auto stored(std::vector<Scalar>& data, const std::array<Index, Order>& extents, bool by_rows) {
    return by_rows ? strided_view<Scalar, Order>::by_rows(data.data(), extents)
                   : strided_view<Scalar, Order>::by_columns(data.data(), extents);
}

// True where some strided-batched matrix product does the case on column-major arrays: batched over an index of tensor and
// result that is not the first of either, so that every matrix of the batch has an index of stride 1.
bool is_batched_product(const table_case& c) {
    for (const char batch : c.tensor) {
        if (batch != 'k' && batch != 'm' && batch != c.tensor[0]) {
            return true;
        }
    }
    return false;
}

template <int Number, bool TensorFirst>
void check_case() {
    constexpr table_case c = case_number(Number);
    static constexpr otimes::subscript_text<12> text = subscripts_of_case<Number, TensorFirst>();
    CAPTURE(std::string(text.text));
    std::vector<double> a = numbers<double>(extent_of(c.matrix[0]) * extent_of(c.matrix[1]), Number + 1);
    std::vector<double> b =
        numbers<double>(extent_of(c.tensor[0]) * extent_of(c.tensor[1]) * extent_of(c.tensor[2]), Number + 50);
    for (int orders = 0; orders < 8; ++orders) {
        const auto A = stored(a, extents_of(c.matrix), (orders & 1) != 0);
        const auto B = stored(b, extents_of(c.tensor), (orders & 2) != 0);
        std::vector<double> result(5 * 3 * 7, std::numeric_limits<double>::quiet_NaN());
        const auto C = stored(result, std::array<Index, 3>{5, 3, 7}, (orders & 4) != 0);
        const auto expression = [&] {
            if constexpr (TensorFirst) {
                return einsum<text>(B, A);
            } else {
                return einsum<text>(A, B);
            }
        }();
        C = expression;
        bool right = true;
        for (Index m = 0; m < 5; ++m) {
            for (Index n = 0; n < 3; ++n) {
                for (Index p = 0; p < 7; ++p) {
                    double sum = 0;
                    for (Index k = 0; k < 4; ++k) {
                        const auto at = [&](char letter) {
                            return letter == 'm' ? m : letter == 'n' ? n : letter == 'p' ? p : k;
                        };
                        sum +=
                            A(at(c.matrix[0]), at(c.matrix[1])) * B(at(c.tensor[0]), at(c.tensor[1]), at(c.tensor[2]));
                    }
                    right = right && C(m, n, p) == sum;  // powers of two: no rounding
                }
            }
        }
        CHECK(right);
        if (orders == 0) {  // one contract step on the operands where they lie, in one pass
            otimes::program lowered;
            otimes::bindings bound;
            expression.describe(C.data(), C.strides()).lower(lowered, bound);
            CHECK(lowered.steps.size() == 1);
            CHECK(lowered.steps.front().kind == otimes::step_kind::contract);
            CHECK(lowered.tensors.size() == 3);
            const otimes::plan p = expression.make_plan();
            CHECK(p.passes.size() == 1);
            CHECK(p.passes.front().kernel == otimes::pass_kernel::cpu_tiles);
            CHECK(p.buffer_elements.empty());
            CHECK(p.flops == 2 * 5 * 3 * 7 * 4);
        }
    }
}

template <bool TensorFirst, int... Numbers>
void check_cases(std::integer_sequence<int, Numbers...>) {
    (check_case<Numbers, TensorFirst>(), ...);
}

using support::text_of;

}  // namespace

TEST_CASE(
    "einsum: all 36 contractions of a matrix with an order-3 tensor, eight of which no batched product expresses") {
    check_cases<false>(std::make_integer_sequence<int, 36>());
    int exceptional = 0;
    for (int number = 0; number < 36; ++number) {
        exceptional += is_batched_product(case_number(number)) ? 0 : 1;
    }
    CHECK(exceptional == 8);
}
TEST_CASE("einsum: the 36 contractions with the tensor before the matrix") {
    check_cases<true>(std::make_integer_sequence<int, 36>());
}

TEST_CASE("einsum: other orders, vectors, batches, strides with gaps, both executors, += and -=") {
    using scalar = std::complex<double>;
    const Index a = 2, b = 3, c = 4, d = 5, k = 3;
    std::vector<scalar> x = numbers<scalar>(a * k * b * c * 2, 1), f = numbers<scalar>(c * k * d * 3, 2);
    const auto X = strided_view<scalar, 4>(x.data(), {a, k, b, c}, {1, a, a * k * 2, a * k * b * 2});
    const auto F = strided_view<scalar, 3>(f.data(), {c, d, k}, {d * k, 1, d});
    for (const otimes::executor* e : {&otimes::cpu(), &otimes::reference()}) {
        const otimes::scoped_executor scope(*e);
        // each c has a factor of its own
        otimes::dense_tensor<scalar, 4> Y = einsum<"akbc, cdk -> bdca">(X, F);
        const otimes::dense_tensor<scalar, 4> first = Y;
        CHECK(Y.extents() == std::array<Index, 4>{b, d, c, a});
        Y.view() += einsum<"akbc, cdk -> bdca">(X, F);
        Y.view() -= einsum<"cdk,akbc->bdca">(F, X) * 3;
        Y.view() += 2.0 * einsum<"cdk,akbc->bdca">(F, X);
        const auto matrix = strided_view<const scalar, 2>(f.data(), {d, k}, {1, d});
        const auto vector = strided_view<const scalar, 1>(f.data(), {k}, {2});
        const otimes::dense_tensor<scalar, 4> shared = einsum<"akbc,dk->cbda">(X, matrix);
        const otimes::dense_tensor<scalar, 3> with_vector = einsum<"akbc,k->abc">(X, vector);
        bool right = true;
        for (Index ia = 0; ia < a; ++ia) {
            for (Index ib = 0; ib < b; ++ib) {
                for (Index ic = 0; ic < c; ++ic) {
                    scalar v = 0;
                    for (Index ik = 0; ik < k; ++ik) {
                        v += X(ia, ik, ib, ic) * vector(ik);
                    }
                    right = right && with_vector(ia, ib, ic) == v;
                    for (Index id = 0; id < d; ++id) {
                        scalar own = 0, same = 0;
                        for (Index ik = 0; ik < k; ++ik) {
                            own += X(ia, ik, ib, ic) * F(ic, id, ik);
                            same += X(ia, ik, ib, ic) * matrix(id, ik);
                        }
                        right = right && first(ib, id, ic, ia) == own && Y(ib, id, ic, ia) == own &&
                                shared(ic, ib, id, ia) == same;
                    }
                }
            }
        }
        CHECK(right);
    }
    CHECK(otimes::explain(einsum<"akbc,cdk->bdca">(X, F)).find("4 items") == 0);
}

TEST_CASE("einsum: Eigen's tensors and matrices, in both layouts") {
    Eigen::Tensor<double, 3, Eigen::RowMajor> B(7, 4, 3);
    Eigen::MatrixXd A(5, 4);
    for (Eigen::Index i = 0; i < A.size(); ++i) {
        A.data()[i] = static_cast<double>(i % 5 - 2);
    }
    for (Eigen::Index i = 0; i < B.size(); ++i) {
        B.data()[i] = static_cast<double>(i % 7 - 3);
    }
    // [einsum-eigen]
    // C[m, n, p] = sum over k of A[m, k] * B[p, k, n], B where it lies
    Eigen::Tensor<double, 3> C = otimes::einsum<"mk,pkn->mnp">(A, B);

    std::vector<double> memory(5 * 3 * 7);
    Eigen::TensorMap<Eigen::Tensor<double, 3, Eigen::RowMajor>> D(memory.data(), 5, 3, 7);
    D = otimes::einsum<"mk,pkn->mnp">(A, B);
    otimes::view(D) += otimes::einsum<"mk,pkn->mnp">(A, B);
    // [/einsum-eigen]
    bool right = true;
    for (int m = 0; m < 5; ++m) {
        for (int n = 0; n < 3; ++n) {
            for (int p = 0; p < 7; ++p) {
                double sum = 0;
                for (int k = 0; k < 4; ++k) {
                    sum += A(m, k) * B(p, k, n);
                }
                right = right && C(m, n, p) == sum && D(m, n, p) == 2 * sum;
            }
        }
    }
    CHECK(right);
    const Eigen::MatrixXd first = A.topRows(2);
    Eigen::MatrixXd G = Eigen::MatrixXd::Constant(2, 5, std::numeric_limits<double>::quiet_NaN());
    otimes::view(G) = einsum<"mk,nk->mn">(A.topRows(2), A);
    CHECK(G == Eigen::MatrixXd(first * A.transpose()));
}

TEST_CASE("einsum: assigned to tensors of Eigen that exist, which are resized, maps and fixed ones") {
    const Eigen::MatrixXd A = Eigen::MatrixXd::Random(5, 4);
    Eigen::Tensor<double, 3> B(7, 4, 3);
    B.setRandom();
    const Eigen::Tensor<double, 3> want = einsum<"mk,pkn->mnp">(A, B);  // into new memory
    const auto same = [&](const auto& C) {
        bool right = C.dimension(0) == 5 && C.dimension(1) == 3 && C.dimension(2) == 7;
        for (int m = 0; right && m < 5; ++m) {
            for (int n = 0; n < 3; ++n) {
                for (int p = 0; p < 7; ++p) {
                    right = right && C(m, n, p) == want(m, n, p);
                }
            }
        }
        return right;
    };
    Eigen::Tensor<double, 3> C(2, 2, 2), empty;
    C = einsum<"mk,pkn->mnp">(A, B);
    CHECK(same(C));
    const double* const memory = C.data();
    C.setConstant(std::numeric_limits<double>::quiet_NaN());
    C = einsum<"mk,pkn->mnp">(A, B);
    CHECK(same(C));
    CHECK(C.data() == memory);
    empty = einsum<"mk,pkn->mnp">(A, B);
    CHECK(same(empty));
    Eigen::Tensor<double, 3, Eigen::RowMajor> R(1, 1, 1);
    R = 2.0 * einsum<"mk,pkn->mnp">(A, B);
    R = R * 0.5;
    CHECK(same(R));
    Eigen::TensorFixedSize<double, Eigen::Sizes<5, 3, 7>> F;
    F = einsum<"mk,pkn->mnp">(A, B);
    CHECK(same(F));
    std::vector<double> held(105);
    Eigen::TensorMap<Eigen::Tensor<double, 3>> M(held.data(), 5, 3, 7), other(held.data(), 3, 5, 7);
    M = einsum<"mk,pkn->mnp">(A, B);
    CHECK(same(M));
    CHECK_THROWS_AS((other = einsum<"mk,pkn->mnp">(A, B)), otimes::shape_error);
    CHECK(same(M));
    // Eigen would have given B new memory before anything is written: refused before that.
    const Eigen::Tensor<double, 3> before = B;
    CHECK_THROWS_AS((B = einsum<"mk,pkn->mnp">(A, B)), otimes::alias_error);
    CHECK(B.dimension(0) == 7);
    CHECK(std::equal(before.data(), before.data() + before.size(), B.data()));
}

TEST_CASE("einsum: views, a raw pointer with strides") {
    std::vector<double> a = numbers<double>(6, 1), b = numbers<double>(24, 2), c(12);
    // [einsum-views]
    // rows of a 2 x 3 matrix, a 3 x 4 x 2 tensor whose last index runs fastest, a 2 x 2 x 4 result
    const auto A = otimes::strided_view<const double, 2>::by_rows(a.data(), {2, 3});
    const auto B = otimes::strided_view<const double, 3>::by_rows(b.data(), {3, 4, 2});
    const otimes::dense_tensor<double, 3> C = otimes::einsum<"mk,knp->mpn">(A, B);
    // a slice of the tensor: its strides, another pointer
    const otimes::strided_view<const double, 2> slice(b.data() + 1, {3, 4}, {8, 2});
    otimes::strided_view<double, 2>(c.data(), {2, 4}, {1, 3}) = otimes::einsum<"mk,kn->mn">(A, slice);
    // [/einsum-views]
    bool right = true;
    for (Index m = 0; m < 2; ++m) {
        for (Index n = 0; n < 4; ++n) {
            for (Index p = 0; p < 2; ++p) {
                const double sum = A(m, 0) * B(0, n, p) + A(m, 1) * B(1, n, p) + A(m, 2) * B(2, n, p);
                right = right && C(m, p, n) == sum;
                right = right && (p == 0 || c[static_cast<std::size_t>(m + 3 * n)] == sum);
            }
        }
    }
    CHECK(right);
    CHECK(c[2] == 0);
}

TEST_CASE("einsum: plans are made once and run for other operands") {
    const auto random = [](Eigen::Index rows, Eigen::Index cols, std::uint64_t seed) {
        return support::powers_of_two_matrix<Eigen::MatrixXd>(rows, cols, seed);
    };
    const Eigen::MatrixXd A = random(4, 3, 1), B = random(3, 6, 2), C = random(4, 3, 3), D = random(3, 6, 4);
    Eigen::MatrixXd Y = support::poisoned_matrix<Eigen::MatrixXd>(4, 6);
    const auto product = einsum<"mk,kn->mn">(A, B);
    const otimes::plan p = make_plan(product);
    p.run(Y, product);
    CHECK(Y == Eigen::MatrixXd(A * B));  // powers of two: exact
    p.run(Y, -2.0 * einsum<"mk,kn->mn">(C, D));
    CHECK(Y == Eigen::MatrixXd(-2 * C * D));
    CHECK(otimes::plan_from_text(otimes::to_text(p)) == p);
    // Stored otherwise: a plan of its own, which the other is not.
    Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows =
        support::poisoned_matrix<Eigen::MatrixXd>(4, 6);
    CHECK(support::text_of([&] { p.run(rows, product); }).find("was made for another expression") != std::string::npos);
    CHECK(std::isnan(rows(0, 0)));
    make_plan(rows, product).run(rows, product);
    CHECK(rows == Eigen::MatrixXd(A * B));
    CHECK_THROWS_AS((void)make_plan(A, product), otimes::shape_error);
    // Orders of three, a vector as the result.
    const auto t = numbers<double>(5 * 4 * 7, 5);
    const strided_view<const double, 3> T(t.data(), {5, 4, 7}, {1, 5, 20});
    std::vector<double> z(5 * 6 * 7, std::numeric_limits<double>::quiet_NaN());
    const Eigen::MatrixXd F = random(4, 6, 6);
    const auto contraction = einsum<"mkp,kn->mnp">(T, F);
    make_plan(contraction).run(strided_view<double, 3>(z.data(), {5, 6, 7}, {1, 5, 30}), contraction);
    for (Index i = 0; i < 5 * 6 * 7; ++i) {
        double want = 0;
        for (Index k = 0; k < 4; ++k) {
            want += t[static_cast<std::size_t>(i % 5 + 5 * k + 20 * (i / 30))] * F(k, i / 5 % 6);
        }
        CHECK(z[static_cast<std::size_t>(i)] == want);
    }
    const Eigen::VectorXd v = random(3, 1, 7);
    Eigen::VectorXd w = support::poisoned_matrix<Eigen::MatrixXd>(4, 1);
    const auto vector = einsum<"mk,k->m">(A, v);
    make_plan(w, vector).run(w, vector);
    CHECK(w == Eigen::VectorXd(A * v));
}

TEST_CASE("einsum: added to matrices of Eigen, divided") {
    const auto random = [](Eigen::Index rows, Eigen::Index cols, std::uint64_t seed) {
        return support::powers_of_two_matrix<Eigen::MatrixXd>(rows, cols, seed);
    };
    const Eigen::MatrixXd A = random(4, 3, 1), B = random(3, 6, 2), Z = random(9, 6, 3);
    Eigen::MatrixXd Y = Z;
    Y.middleRows(2, 4) += einsum<"mk,kn->mn">(A, B) / 4;
    Eigen::MatrixXd want = Z;
    want.middleRows(2, 4) += A * B / 4;
    CHECK(Y == want);
    Eigen::MatrixXd D = A * B;
    D -= 2.0 * einsum<"mk,kn->mn">(A, B);
    CHECK(D == Eigen::MatrixXd(-A * B));
    CHECK_THROWS_AS((Y += einsum<"mk,kn->mn">(A, B)), otimes::shape_error);
}

TEST_CASE("einsum: a destination whose strides do not nest, but whose elements are distinct") {
    std::vector<double> a(12), b(24), c(40, 7.0);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * i % 7) - 3;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * 5 % 11) - 4;
    const auto A = strided_view<double, 2>::by_columns(a.data(), {3, 4});
    const auto B = strided_view<double, 3>::by_columns(b.data(), {4, 2, 3});
    const strided_view<double, 3> C(c.data(), {3, 2, 3}, {2, 3, 12});  // 0, 2, 4 and 3, 5, 7
    C = einsum<"mk,knp->mnp">(A, B);
    for (std::size_t p = 0; p < 3; ++p) {
        for (std::size_t n = 0; n < 2; ++n) {
            for (std::size_t m = 0; m < 3; ++m) {
                double sum = 0;
                for (std::size_t k = 0; k < 4; ++k) sum += a[m + 3 * k] * b[k + 4 * n + 8 * p];
                CHECK(c[2 * m + 3 * n + 12 * p] == sum);
            }
        }
        CHECK(c[12 * p + 1] == 7.0);
        CHECK(c[12 * p + 6] == 7.0);
    }
    CHECK_THROWS_AS((strided_view<double, 3>(c.data(), {3, 2, 3}, {2, 4, 12}) = einsum<"mk,knp->mnp">(A, B)),
                    otimes::alias_error);
}

TEST_CASE("einsum: what is refused") {
    std::vector<double> a(12, 1.0), b(24, 1.0), c(40, 7.0);
    const auto A = strided_view<double, 2>::by_columns(a.data(), {3, 4});
    const auto B = strided_view<double, 3>::by_columns(b.data(), {4, 3, 2});
    const auto shape = [&](const auto& statement) { return text_of<otimes::shape_error>(statement); };
    const auto alias = [&](const auto& statement) { return text_of<otimes::alias_error>(statement); };
    CHECK(shape([&] { static_cast<void>(einsum<"mk,nkp->mnp">(A, B)); }) ==
          "otimes: einsum<\"mk,nkp->mnp\">: index k is 4 in the first operand, but 3 in the second. An index has one "
          "extent.");
    CHECK(shape([&] {
              strided_view<double, 3>::by_columns(c.data(), {3, 2, 3}) = einsum<"mk,knp->mnp">(A, B);
          }) ==
          "otimes: einsum<\"mk,knp->mnp\">: the destination is 3 x 2 x 3, but the result is 3 x 3 x 2. A view is not "
          "resized.");
    CHECK(alias([&] {
              strided_view<double, 3>::by_columns(b.data(), {3, 3, 2}) = einsum<"mk,knp->mnp">(A, B);
          }) ==
          "otimes: einsum<\"mk,knp->mnp\">: the destination shares memory with the second operand. Evaluate by .eval() "
          "first, or give it memory of its own.");
    CHECK(alias([&] {
              strided_view<double, 3>(c.data(), {3, 3, 2}, {1, 2, 9}) = einsum<"mk,knp->mnp">(A, B);
          }).find("with itself: two indices may mean one element") != std::string::npos);
    // slices of one array, an element of one after each of the other
    std::vector<double> both(24, 1.0);
    const strided_view<double, 2> even(both.data(), {3, 4}, {2, 6}), odd(both.data() + 1, {3, 4}, {2, 6});
    odd = einsum<"mk,kn->mn">(strided_view<double, 2>::by_columns(a.data(), {3, 3}), even);
    CHECK(both[0] + both[22] + both[1] + both[23] == 1 + 1 + 3 + 3);
    const auto nowhere = strided_view<double, 3>::by_columns(nullptr, {4, 3, 2});
    CHECK(shape([&] {
              strided_view<double, 3>::by_columns(c.data(), {3, 3, 2}) = einsum<"mk,knp->mnp">(A, nowhere);
          }) == "otimes: einsum<\"mk,knp->mnp\">: the second operand is at a null pointer.");
    CHECK(shape([&] {
              strided_view<double, 3>::by_columns(nullptr, {3, 3, 2}) = einsum<"mk,knp->mnp">(A, B);
          }) == "otimes: einsum<\"mk,knp->mnp\">: the destination is at a null pointer.");
    CHECK(shape([&] {
              strided_view<double, 2>(a.data(), {3, -4}, {1, 3});
          }) ==
          "otimes: strided_view: extent 1 is -4; extents and strides must not be negative, and the last element must "
          "lie within 2^63 - 1 bytes.");
    CHECK(shape([&] {
              strided_view<double, 2>(a.data(), {3, 4}, {-1, 3});
          }).find("stride 0 is -1") != std::string::npos);
    CHECK(shape([&] {
              static_cast<void>(strided_view<double, 2>::by_rows(a.data(), {Index(1) << 40, Index(1) << 40}));
          }).find("extent 0 is") != std::string::npos);
    CHECK(shape([&] {
              strided_view<double, 2>(a.data(), {3, 2}, {1, Index(1) << 60});  // in bytes
          }).find("stride 1 is") != std::string::npos);
    CHECK(c == std::vector<double>(40, 7.0));
    // sums over nothing are zero; nothing to write
    std::vector<double> y(6, 5.0);
    const auto none = strided_view<double, 2>::by_columns(a.data(), {3, 0});
    strided_view<double, 2>::by_columns(y.data(), {3, 2}) =
        einsum<"mk,kn->mn">(none, strided_view<double, 2>::by_columns(b.data(), {0, 2}));
    CHECK(y == std::vector<double>(6, 0.0));
    CHECK(einsum<"km,kn->mn">(none, strided_view<double, 2>::by_columns(b.data(), {3, 2})).eval().size() == 0);
}

TEST_CASE("a result of two indices as a matrix of Eigen") {
    const Eigen::MatrixXd A = support::random_matrix<Eigen::MatrixXd>(2, 3, 70);
    const Eigen::MatrixXd B = support::random_matrix<Eigen::MatrixXd>(3, 4, 71);
    const Eigen::MatrixXd C = otimes::einsum<"ij,jk->ik">(A, B);
    CHECK((C - A * B).norm() < 1e-14);
    const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> T = otimes::einsum<"ij,jk->ki">(A, B);
    CHECK((T - (A * B).transpose()).norm() < 1e-14);
    CHECK(
        text_of<otimes::shape_error>([&] { static_cast<void>(Eigen::VectorXd(otimes::einsum<"ij,jk->ik">(A, B))); }) ==
        "otimes: einsum<\"ij,jk->ik\">: the destination is 2 x 1, but the result is 2 x 4. A view is not resized.");
}

TEST_CASE("vectors of Eigen are operands and results of one index") {
    const Eigen::MatrixXd A = support::random_matrix<Eigen::MatrixXd>(3, 5, 72);
    const Eigen::VectorXd v = support::random_matrix<Eigen::VectorXd>(5, 1, 73);
    const Eigen::VectorXd want = A * v;
    const Eigen::VectorXd y = otimes::einsum<"ik,k->i">(A, v);
    CHECK((y - want).norm() < 1e-14);
    const Eigen::RowVectorXd z = otimes::einsum<"k,ik->i">(v.transpose(), A);
    CHECK((z.transpose() - want).norm() < 1e-14);
    Eigen::MatrixXd M = Eigen::MatrixXd::Ones(4, 3);
    otimes::view(M.row(2)) = 2 * otimes::einsum<"ik,k->i">(A, v);
    otimes::view(M.row(2)) += otimes::einsum<"ik,k->i">(A, A.row(1));
    CHECK((M.row(2).transpose() - 2 * want - A * A.row(1).transpose()).norm() < 1e-13);
    CHECK(M.row(1).sum() == 3);
    otimes::view(M.col(0).head(3)) = otimes::einsum<"ik,k->i">(A, v);
    CHECK((M.col(0).head(3) - want).norm() < 1e-14);
    const auto is_viewed = [](const auto& m) {
        return requires { otimes::view(m); };
    };
    CHECK(is_viewed(M.row(2)));
    CHECK(!is_viewed(M(2, Eigen::seqN(0, 2, 2))));  // Eigen 5 tells a stride, but not that of its elements
    CHECK_THROWS_WITH_AS(
        otimes::view(M) = otimes::einsum<"ik,k->i">(A, v),
        "otimes: einsum<\"ik,k->i\">: the destination is 4 x 3, but the result is 3. A view is not resized.",
        otimes::shape_error);
}
