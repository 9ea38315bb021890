// SPDX-License-Identifier: MIT
// Operands and destinations of every storage: row- and column-major, fixed, Map with any inner and outer stride, Block, Ref,
// Transpose, and their mixtures. The memory between the elements of a view must stay as it was.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include <otimes/adapt/mdspan.hpp>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
using any_stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using any_map = Eigen::Map<matrix_d, 0, any_stride>;

// One matrix in memory that starts as NaN everywhere, also between its elements.
struct field {
    std::vector<double> memory;
    Index rows, cols, row_stride, col_stride;

    field(Index r, Index c, Index rs, Index cs)
        : memory(static_cast<std::size_t>((r - 1) * rs + (c - 1) * cs + 2), nan_value),
          rows(r),
          cols(c),
          row_stride(rs),
          col_stride(cs) {}
    // Seen from offset 1, so that nothing is aligned by luck. Eigen's column-major outer stride is that of the columns.
    any_map map() { return any_map(memory.data() + 1, rows, cols, any_stride(col_stride, row_stride)); }
    field& fill(std::uint64_t seed) {
        auto m = map();
        m = random(rows, cols, seed);
        return *this;
    }
    [[nodiscard]] std::size_t numbers() const {
        std::size_t count = 0;
        for (const double value : memory) {
            count += std::isnan(value) ? 0u : 1u;
        }
        return count;
    }
};

// Strides of an r x c matrix: packed and padded, column- and row-major, with gaps, and interleaved.
std::vector<field> layouts(Index r, Index c) {
    return {field(r, c, 1, r),         field(r, c, c, 1),     field(r, c, 1, r + 3),     field(r, c, c + 2, 1),
            field(r, c, 2, 2 * r + 1), field(r, c, 3 * c, 3), field(r, c, 7, 7 * r + 5), field(r, c, 2 * c + 1, 2)};
}

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(3, 5, 2);
const auto k = dense_kron(A, B);  // 6 x 15

// What std::mdspan<Element, dextents<int, Order>, layout_stride> has.
template <class Element, std::size_t Order, class Reference = Element&>
struct span_nd {
    using element_type = Element;
    using reference = Reference;
    Element* elements;
    std::array<int, Order> extents, strides;

    static constexpr std::size_t rank() noexcept { return Order; }
    static constexpr bool is_always_strided() noexcept { return true; }
    [[nodiscard]] Element* data_handle() const noexcept { return elements; }
    [[nodiscard]] int extent(std::size_t i) const noexcept { return extents[i]; }
    [[nodiscard]] int stride(std::size_t i) const noexcept { return strides[i]; }
};
template <class Span>
concept is_a_matrix = requires(const Span& m) {
    otimes::as_matrix(m);
};

}  // namespace

TEST_CASE("X and Y of any strides, X * K") {
    const auto K = kron(A, B);
    for (field& x : layouts(4, 6)) {
        x.fill(10);
        const auto want = times(matrix_d(x.map()), k);
        for (field& y : layouts(4, 15)) {
            CAPTURE(x.row_stride);
            CAPTURE(x.col_stride);
            CAPTURE(y.row_stride);
            CAPTURE(y.col_stride);
            any_map Y = y.map();
            Y = x.map() * K;
            CHECK(support::close(matrix_d(Y), want, 6));
            CHECK(y.numbers() == 60);
            Y.noalias() += 0.5 * x.map() * K;
            CHECK(support::close(matrix_d(Y), scaled(1.5, want), 7));
            CHECK(y.numbers() == 60);
        }
    }
}

TEST_CASE("X and Y of any strides, K * X") {
    const auto K = kron(A, B).transpose();  // 15 x 6
    for (field& x : layouts(6, 4)) {
        x.fill(11);
        const auto want = times(oracle::transpose(k), matrix_d(x.map()));
        for (field& y : layouts(15, 4)) {
            any_map Y = y.map();
            Y = K * x.map();
            CHECK(support::close(matrix_d(Y), want, 6));
            CHECK(y.numbers() == 60);
            Y -= K * x.map() * 2;
            CHECK(support::close(matrix_d(Y), scaled(-1.0, want), 7));
        }
    }
}

TEST_CASE("factors of any strides") {
    const matrix_d X = random(4, 6, 12);
    for (field& a : layouts(2, 3)) {
        a.fill(13);
        for (field& b : layouts(3, 5)) {
            b.fill(14);
            const auto want = times(X, dense_kron(matrix_d(a.map()), matrix_d(b.map())));
            const matrix_d Y = X * kron(a.map(), b.map());
            CHECK(support::close(Y, want, 6));
            const matrix_d T = kron(a.map().transpose(), b.map().transpose()) * X.transpose();
            CHECK(support::close(T, oracle::transpose(want), 6));
        }
    }
}

TEST_CASE("vectors of any stride") {
    const auto K = kron(A, B);
    for (const Index step : {1, 2, 5}) {
        std::vector<double> memory(200, nan_value);
        Eigen::Map<vector_d, 0, Eigen::InnerStride<>> v(memory.data(), 15, Eigen::InnerStride<>(step));
        v = random<vector_d>(15, 1, 15);
        Eigen::Map<vector_d, 0, Eigen::InnerStride<>> y(memory.data() + 100, 6, Eigen::InnerStride<>(step + 1));
        y = K * v;
        CHECK(support::close(matrix_d(y), times(k, matrix_d(v)), 15));
        Eigen::Map<row_vector_d, 0, Eigen::InnerStride<>> r(memory.data() + 100, 6, Eigen::InnerStride<>(step));
        r = v.transpose() * K.transpose();
        CHECK(support::close(matrix_d(r.transpose()), times(k, matrix_d(v)), 15));
    }
}

TEST_CASE("row- and column-major mixed") {
    const row_major_d a = A;
    const auto K = kron(a, B);
    const row_major_d xr = random(4, 6, 16);
    const matrix_d xc = xr;
    const auto want = times(xr, k);
    const auto check = [&](const auto& X) {
        matrix_d yc = X * K;
        row_major_d yr = X * K;
        CHECK(support::close(yc, want, 6));
        CHECK(support::close(yr, want, 6));
        yr += X * K;
        yc.noalias() -= 2.0 * X * K;
        CHECK(support::close(yr, scaled(2.0, want), 7));
        CHECK(support::close(yc, scaled(-1.0, want), 7));
    };
    check(xr);
    check(xc);
    static_assert(bool(decltype(xr * K)::IsRowMajor));
    static_assert(!bool(decltype(xc * K)::IsRowMajor));
    const row_major_d both = kron(a) * random<row_major_d>(3, 6, 17) * K;
    CHECK(support::close(both, times(A, times(random<row_major_d>(3, 6, 17), k)), 18));
}

TEST_CASE("fixed-size matrices") {
    const Eigen::Matrix<double, 2, 3> a = A;
    const Eigen::Matrix<double, 3, 5, Eigen::RowMajor> b = B;
    const auto K = kron(a, b);
    const Eigen::Matrix<double, 4, 6> X = random(4, 6, 18);
    static_assert(decltype(X * K)::RowsAtCompileTime == 4);
    const auto want = times(X, k);
    Eigen::Matrix<double, 4, 15> Y = X * K;
    CHECK(support::close(Y, want, 6));
    Y.noalias() += X * K;
    CHECK(support::close(Y, scaled(2.0, want), 7));
    Eigen::Matrix<double, 4, Eigen::Dynamic> half = X * K;
    CHECK(support::close(half, want, 6));
    Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, 0, 4, 16> bounded = X * K;  // memory inside the object
    CHECK(support::close(bounded, want, 6));
    Eigen::Matrix<double, 4, 15, Eigen::RowMajor> sum = X * K + Y;
    CHECK(support::close(sum, scaled(3.0, want), 8));
    const Eigen::Vector3d v(1.0, -2.0, 0.5);
    const Eigen::Vector2d y = kron(a) * v;
    CHECK(support::close(y, times(A, v), 3));
    const Eigen::Vector4d w =
        kron(Eigen::Matrix2d::Identity(), Eigen::Matrix2d::Constant(2.0)) * Eigen::Vector4d(1, 2, 3, 4);
    CHECK(support::exactly_equal(w, Eigen::Vector4d(6, 6, 14, 14)));
}

TEST_CASE("Block, Ref and Transpose as operands and destinations") {
    matrix_d big = random(20, 20, 19);
    const matrix_d before = big;
    const auto K = kron(big.block(1, 1, 2, 3), big.block(4, 4, 3, 5));
    const auto kk = dense_kron(matrix_d(before.block(1, 1, 2, 3)), matrix_d(before.block(4, 4, 3, 5)));
    const Eigen::Ref<const matrix_d> X = big.block(8, 2, 4, 6);
    const auto want = times(matrix_d(before.block(8, 2, 4, 6)), kk);
    auto destination = poisoned(30, 30);
    destination.block(3, 4, 4, 15) = X * K;
    CHECK(support::close(matrix_d(destination.block(3, 4, 4, 15)), want, 6));
    destination.block(10, 4, 15, 4).transpose() = X * K;
    CHECK(support::close(matrix_d(destination.block(10, 4, 15, 4)), oracle::transpose(want), 6));
    Eigen::Ref<matrix_d> ref(destination);
    ref.topLeftCorner(4, 15).noalias() = X * K;
    CHECK(support::close(matrix_d(destination.topLeftCorner(4, 15)), want, 6));
    Eigen::Ref<matrix_d, 0, any_stride> strided(destination.topLeftCorner(4, 15));
    strided = 2 * X * K;
    CHECK(support::close(matrix_d(destination.topLeftCorner(4, 15)), scaled(2.0, want), 6));
    matrix_d turned = big.block(2, 8, 6, 4).transpose() * K;
    CHECK(support::close(turned, times(matrix_d(before.block(2, 8, 6, 4).transpose()), kk), 6));
    turned = big.middleRows(3, 4).middleCols(2, 6) * K;  // a block of a block
    CHECK(support::close(turned, times(matrix_d(before.block(3, 2, 4, 6)), kk), 6));
    CHECK(support::exactly_equal(big, before));
}

// Eigen says of some that they are pointer and strides, and tells no pointer, or strides that are not those of the elements.
TEST_CASE("indexed views as operands and destinations, and complex matrices seen as real ones") {
    matrix_d big = random(20, 20, 29), destination = poisoned(20, 40);
    const auto sevenths = big(Eigen::seqN(1, 2, 7), Eigen::seqN(2, 3, 3));
    const auto K =
        kron(sevenths, big(Eigen::seqN(4, 5, 2), Eigen::seqN(3, 3, 4)).transpose(), big(5, Eigen::seq(6, 6)));
    const auto kk =
        dense_kron(matrix_d(sevenths), matrix_d(big(Eigen::seqN(4, 5, 2), Eigen::seqN(3, 3, 4)).transpose()),
                   matrix_d::Constant(1, 1, big(5, 6)));
    const auto x = big(9, Eigen::seqN(1, 6, 3));
    const auto row = destination(3, Eigen::seqN(4, 15, 2));
    destination(3, Eigen::seqN(4, 15, 2)) = x * K;
    CHECK(support::close(matrix_d(row), times(matrix_d(x), kk), 6));
    destination(3, Eigen::seqN(4, 15, 2)).noalias() += (x + 2 * x) * K;
    CHECK(support::close(matrix_d(row), scaled(4.0, times(matrix_d(x), kk)), 6));
    CHECK(destination.array().isNaN().count() == 800 - 15);
    const auto as_real = [&](auto Z) {  // of Eigen 5
        if constexpr (requires { Z.realView(); }) {
            Z.real() = random(4, 6, 30);
            Z.imag() = random(4, 6, 31);
            const matrix_d all = Z.realView(), line = Z.row(1).realView();
            CHECK(support::exactly_equal(kron(Z.realView()).toDenseMatrix(), all));
            CHECK(support::exactly_equal(kron(Z.row(1).realView()).toDenseMatrix(), line));
            const matrix_d F = random(12, 12, 32);
            Z.row(1).realView() = Z.row(1).realView() * kron(F);
            CHECK(support::close(matrix_d(Z.row(1).realView()), times(line, oracle::from(F)), 12));
            CHECK(support::exactly_equal(matrix_d(Z.bottomRows(2).realView()), matrix_d(all.bottomRows(4))));
        }
    };
    as_real(Eigen::MatrixXcd(4, 6));
}

TEST_CASE("a destination resizes where it can") {
    const auto K = kron(A, B);
    const matrix_d X = random(4, 6, 20);
    const auto want = times(X, k);
    matrix_d Y(1, 2);
    Y = X * K;
    CHECK(support::close(Y, want, 6));
    matrix_d T(1, 2);
    T.transpose() = X * K;
    CHECK(support::close(T, oracle::transpose(want), 6));
    vector_d v(2);
    v = K * random<vector_d>(15, 1, 21);
    CHECK(v.size() == 6);
    row_vector_d r(2);
    r = K * random<vector_d>(15, 1, 21);
    CHECK(support::exactly_equal(matrix_d(r.transpose()), v));
}

TEST_CASE("a destination that finds no memory is left empty") {
    if constexpr (sizeof(Index) == 8) {
        const auto column = otimes::kron_power(matrix_d::Ones(2, 1), 31);
        const auto huge = column * matrix_d::Ones(1, 1) * column.transpose();  // 2^62 elements
        matrix_d Y = random(2, 3, 1);
        CHECK_THROWS_AS(Y = huge, std::bad_alloc);
        CHECK(Y.size() == 0);
        Y = random(3, 2, 3) * kron(matrix_d::Identity(2, 2));
        CHECK(Y == random(3, 2, 3));
    }
}

TEST_CASE("an mdspan is a matrix, a vector or a view of its elements") {
    field x(4, 6, 3, 13), y(4, 15, 31, 2);
    x.fill(5);
    const span_nd<const double, 2> in{x.memory.data() + 1, {4, 6}, {3, 13}};
    const span_nd<double, 2> out{y.memory.data() + 1, {4, 15}, {31, 2}};
    const auto want = times(matrix_d(x.map()), k);
    otimes::as_matrix<Eigen::RowMajor>(out) = otimes::as_matrix(in) * kron(A, B);
    CHECK(support::close(matrix_d(y.map()), want, 6));
    CHECK(y.numbers() == 60);
    otimes::as_matrix(out).noalias() += otimes::as_matrix<Eigen::RowMajor>(in) * kron(A, B);
    CHECK(support::close(matrix_d(y.map()), scaled(2.0, want), 7));
    const span_nd<const double, 1> row{x.memory.data() + 1 + 3, {6}, {13}};
    CHECK(otimes::as_vector(row) == x.map().row(1).transpose());
    const otimes::strided_view<const double, 3> v =
        otimes::view(span_nd<const double, 3>{x.memory.data() + 1, {2, 2, 6}, {6, 3, 13}});  // rows in pairs
    CHECK(v(1, 1, 4) == x.map()(3, 4));
    CHECK(v.extents() == std::array<std::int64_t, 3>{2, 2, 6});
    static_assert(is_a_matrix<span_nd<double, 2>>);
    static_assert(!is_a_matrix<span_nd<double, 3>>);
    static_assert(!is_a_matrix<span_nd<double, 2, double>>);  // as std::linalg::scaled: what is read is computed
}
