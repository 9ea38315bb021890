// SPDX-License-Identifier: MIT
// Products in device memory against the oracle: shapes, orders, sides, strides, offsets, scalars, types.
#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "cuda/device_support.hpp"
#include "cuda/operator_checks.hpp"

using otimes::device_map;
using otimes::DeviceMatrix;
using otimes::kron;
using namespace device_test;

TEST_CASE_TEMPLATE("dY = dX * kron(dA, dB, dC), both orders and sides" * needs_gpu(), Scalar, float, double,
                   std::complex<float>, std::complex<double>) {
    for (const shapes& s : test_shapes()) {
        CAPTURE(s.text());
        const auto factors = random_factors<Scalar>(s);
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            using host = matrix<Scalar, Order>;
            const host X = random_matrix<host>(s.rows, s.inputs(), 11);
            std::vector<DeviceMatrix<Scalar, Order>> dF;
            for (const auto& f : factors) {
                dF.emplace_back(host(f));
            }
            const DeviceMatrix<Scalar, Order> dX(X);
            DeviceMatrix<Scalar, Order> dY(X.rows(), s.outputs());
            poison(dY);
            dY = dX * kron(dF);
            CHECK(agrees(dY.to_host(), expected_right(X, factors), s));

            // K^T * X^T is the transpose.
            const host Xt = X.transpose();
            const DeviceMatrix<Scalar, Order> dXt(Xt);
            DeviceMatrix<Scalar, Order> dZ;
            dZ = kron(dF).transpose() * dXt;
            CHECK(agrees(host(dZ.to_host().transpose()), expected_right(X, factors), s));
        });
    }
}

TEST_CASE_TEMPLATE("alpha, +=, -= and mixed orders" * needs_gpu(), Scalar, float, double) {
    shapes s{7, {3, 4, 2}, {5, 2, 3}};
    const auto factors = random_factors<Scalar>(s);
    const matrix<Scalar, 0> X = random_matrix<matrix<Scalar, 0>>(s.rows, s.inputs(), 3);
    const matrix<Scalar, 1> Y0 = random_matrix<matrix<Scalar, 1>>(s.rows, s.outputs(), 4);
    const DeviceMatrix<Scalar> A(factors[0]), B(factors[1]), C(factors[2]), dX(X);
    DeviceMatrix<Scalar, Eigen::RowMajor> dY(Y0);
    dY += 2 * dX * kron(A, B, C);
    matrix<Scalar, 1> want = Y0 + Scalar(2) * expected_right(X, factors);
    CHECK(agrees(dY.to_host(), want, s));
    dY.noalias() -= dX * (0.5 * kron(A, B, C));
    want -= Scalar(0.5) * expected_right(X, factors);
    CHECK(agrees(dY.to_host(), want, s));
    dY = -(dX * kron(A, B, C));
    CHECK(agrees(dY.to_host(), matrix<Scalar, 1>(-expected_right(X, factors)), s));
}

TEST_CASE_TEMPLATE("device_map: offsets 0 to 15 elements, odd strides, guard zones" * needs_gpu(), Scalar, float,
                   double) {
    for (const shapes& s : {shapes{5, {3, 4}, {4, 3}}, shapes{9, {8, 8}, {8, 8}}, shapes{33, {4, 4, 4}, {4, 4, 4}}}) {
        CAPTURE(s.text());
        const auto factors = random_factors<Scalar>(s);
        std::vector<DeviceMatrix<Scalar>> dF;
        for (const auto& f : factors) {
            dF.emplace_back(f);
        }
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            using host = matrix<Scalar, Order>;
            const host X = random_matrix<host>(s.rows, s.inputs(), 5);
            for (int offset = 0; offset < 16; ++offset) {
                const std::int64_t inner_x = Order == 1 ? s.inputs() : s.rows;
                const std::int64_t inner_y = Order == 1 ? s.outputs() : s.rows;
                const std::int64_t outer = Order == 1 ? s.rows : s.inputs();
                const std::int64_t outer_y = Order == 1 ? s.rows : s.outputs();
                const std::int64_t ldx = inner_x + (offset % 3), ldy = inner_y + (offset % 5);
                matrix<Scalar, 0> bufferX = matrix<Scalar, 0>::Constant(offset + ldx * outer + 16, 1, nan<Scalar>());
                const matrix<Scalar, 0> bufferY =
                    matrix<Scalar, 0>::Constant(offset + ldy * outer_y + 16, 1, Scalar(77));
                Eigen::Map<host, 0, Eigen::OuterStride<>>(bufferX.data() + offset, s.rows, s.inputs(),
                                                          Eigen::OuterStride<>(ldx)) = X;
                DeviceMatrix<Scalar> dBufferX(bufferX), dBufferY(bufferY);
                auto vX = device_map<Scalar, Order>(dBufferX.data() + offset, s.rows, s.inputs(), ldx);
                auto vY = device_map<Scalar, Order>(dBufferY.data() + offset, s.rows, s.outputs(), ldy);
                vY.noalias() = vX * kron(dF);
                matrix<Scalar, 0> got = dBufferY.to_host();
                Eigen::Map<host, 0, Eigen::OuterStride<>> inside(got.data() + offset, s.rows, s.outputs(),
                                                                 Eigen::OuterStride<>(ldy));
                CHECK(agrees(host(inside), expected_right(X, factors), s));
                inside.setConstant(Scalar(77));
                CHECK(got == bufferY);
            }
        });
    }
}

TEST_CASE("overlapping destinations" * needs_gpu()) {
    shapes s{6, {3, 2}, {3, 2}};
    const auto factors = random_factors<double>(s);
    const matrix<double, 0> X = random_matrix<matrix<double, 0>>(s.rows, s.inputs(), 8);
    const DeviceMatrix<double> A(factors[0]), B(factors[1]);
    DeviceMatrix<double> dX(X);
    auto map = dX.map();
    CHECK_THROWS_AS(map.noalias() = dX * kron(A, B), otimes::alias_error);
    map = dX * kron(A, B);
    CHECK(agrees(dX.to_host(), expected_right(X, factors), s));
    dX = X;
    dX += dX * kron(A, B);
    CHECK(agrees(dX.to_host(), matrix<double, 0>(X + expected_right(X, factors)), s));
    dX = X;
    dX = dX * kron(A, B);
    CHECK(agrees(dX.to_host(), expected_right(X, factors), s));
}

TEST_CASE("host operands and host factors" * needs_gpu()) {
    shapes s{37, {4, 3, 5}, {2, 6, 5}};
    const auto factors = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), 2);
    Eigen::MatrixXd Y = Eigen::MatrixXd::Constant(s.rows, s.outputs(), nan<double>());
    otimes::on(otimes::gpu(), Y) = X * kron(factors[0], factors[1], factors[2]);
    CHECK(agrees(Y, expected_right(X, factors), s));
    otimes::on(otimes::gpu(), Y) += 2.0 * X * kron(factors[0], factors[1], factors[2]);
    CHECK(agrees(Y, Eigen::MatrixXd(3.0 * expected_right(X, factors)), s));
    Eigen::MatrixXd large = Eigen::MatrixXd::Constant(s.rows + 3, s.outputs() + 2, 5.0);
    otimes::on(otimes::gpu(), large.block(1, 1, s.rows, s.outputs())) = X * kron(factors[0], factors[1], factors[2]);
    CHECK(agrees(Eigen::MatrixXd(large.block(1, 1, s.rows, s.outputs())), expected_right(X, factors), s));
    CHECK(large.col(0) == Eigen::VectorXd::Constant(s.rows + 3, 5.0));

    const DeviceMatrix<double> dX(X), dB(factors[1]);
    DeviceMatrix<double> dY;
    dY = dX * kron(factors[0], factors[1], factors[2]);
    CHECK(agrees(dY.to_host(), expected_right(X, factors), s));
    dY = dX * kron(factors[0], dB, factors[2]);
    CHECK(agrees(dY.to_host(), expected_right(X, factors), s));
    dY = dX * kron(factors[0], otimes::identity(3), factors[2]);
    const std::vector<Eigen::MatrixXd> with_identity{factors[0], Eigen::MatrixXd::Identity(3, 3), factors[2]};
    CHECK(agrees(dY.to_host(), expected_right(X, with_identity), s));
}

TEST_CASE("transposes of device factors, real factors on complex X, both sides at once" * needs_gpu()) {
    using complex = std::complex<double>;
    shapes s{4, {3, 5}, {2, 4}};
    const auto factors = random_factors<double>(s);
    const matrix<complex, 0> X = random_matrix<matrix<complex, 0>>(s.rows, s.inputs(), 2);
    const DeviceMatrix<complex> dX(X);
    const DeviceMatrix<double> At(Eigen::MatrixXd(factors[0].transpose())), B(factors[1]);
    DeviceMatrix<complex> dY;
    const std::vector<matrix<complex, 0>> wide{factors[0].cast<complex>(), factors[1].cast<complex>()};
    dY = dX * kron(At.transpose(), B);
    CHECK(agrees(dY.to_host(), expected_right(X, wide), s));
    dY = complex(0, 2) * dX * kron(At.transpose(), B);
    CHECK(agrees(dY.to_host(), matrix<complex, 0>(complex(0, 2) * expected_right(X, wide)), s));
    const Eigen::MatrixXd L = random_matrix<Eigen::MatrixXd>(3, 2, 31), M = random_matrix<Eigen::MatrixXd>(4, 2, 32);
    const DeviceMatrix<double> dL(L), dM(M);
    dY = kron(dL, dM) * dX * kron(At.transpose(), B);
    const matrix<complex, 0> want =
        dense_kron<complex>({L.cast<complex>(), M.cast<complex>()}) * expected_right(X, wide);
    CHECK(agrees(dY.to_host(), want, s));
}

TEST_CASE_TEMPLATE("one mode between identities: tiles of several tensors" * needs_gpu(), Scalar, float, double,
                   std::complex<float>) {
    struct between {
        std::int64_t outer, p, q, inner;
    };
    for (const between& b : {between{8, 8, 8, 8}, between{3, 5, 3, 8}, between{4, 16, 16, 16}, between{6, 7, 9, 4}}) {
        CAPTURE(b.p);
        const shapes s{400, {b.outer, b.p, b.inner}, {b.outer, b.q, b.inner}};
        auto factors = random_factors<Scalar>(s);
        factors[0].setIdentity();
        factors[2].setIdentity();
        using host = matrix<Scalar, 1>;
        const host X = random_matrix<host>(s.rows, s.inputs(), 21);
        const DeviceMatrix<Scalar, 1> dF{host(factors[1])}, dX(X);
        DeviceMatrix<Scalar, 1> dY(s.rows, s.outputs());
        poison(dY);
        dY = dX * kron(otimes::identity(b.outer), dF, otimes::identity(b.inner));
        const host want = expected_right(X, factors);
        CHECK(agrees(dY.to_host(), want, s));
        dY -= 3 * dX * kron(otimes::identity(b.outer), dF, otimes::identity(b.inner));
        CHECK(agrees(dY.to_host(), host(Scalar(-2) * want), s));
    }
}

TEST_CASE_TEMPLATE("copies, multiples and sums of matrices of any stride and alignment" * needs_gpu(), Scalar, float,
                   double, std::complex<float>, std::complex<double>) {
    using host = matrix<Scalar, 1>;
    for (const auto& shape : {std::pair{37, 64}, std::pair{5, 1003}, std::pair{1, 70001}, std::pair{300, 1}}) {
        const int rows = shape.first, cols = shape.second;  // clang++ 14 captures no structured binding
        for (const int offset : {0, 1, 4}) {
            CAPTURE(rows);
            CAPTURE(offset);
            const host X = random_matrix<host>(rows, cols + 8, 31), Y = random_matrix<host>(rows, cols + 4, 32);
            DeviceMatrix<Scalar, 1> dX(X), dY(Y);
            const auto x = device_map<Scalar, 1>(dX.data() + offset, rows, cols, cols + 8);
            const auto y = device_map<Scalar, 1>(dY.data() + offset % 4, rows, cols, cols + 4);
            host want = Y;
            want.block(0, offset % 4, rows, cols) = X.block(0, offset, rows, cols);
            y = x;
            CHECK(host(dY.to_host()) == want);  // the padding too
            y -= Scalar(2) * x.conjugate();
            want.block(0, offset % 4, rows, cols) -= Scalar(2) * X.block(0, offset, rows, cols).conjugate();
            CHECK(host(dY.to_host()) == want);
            const DeviceMatrix<Scalar, 0> other(x.expression());  // the other order: not a copy of stretches
            CHECK(host(other.to_host()) == host(X.block(0, offset, rows, cols)));
        }
    }
}

TEST_CASE_TEMPLATE("sums of Kronecker products" * needs_gpu(), Scalar, float, double, std::complex<float>) {
    check_operators<Scalar>();
}

TEST_CASE_TEMPLATE("sums of long factors share products" * needs_gpu(), Scalar, float, double, std::complex<float>) {
    check_shared_sums<Scalar>();
}

TEST_CASE_TEMPLATE("numbers from products, without the products" * needs_gpu(), Scalar, float, double,
                   std::complex<float>, std::complex<double>) {
    check_reductions<Scalar>();
}

TEST_CASE_TEMPLATE("sums on chip: by the matrix unit, over a cluster, X kept for all terms, shared products once" *
                       needs_gpu(),
                   Scalar, float, double) {
    using host = matrix<Scalar, 1>;
    std::vector<std::pair<Eigen::Index, std::vector<Eigen::Index>>> cases{
        {37, {8, 8, 8}}, {5, {16, 16, 16}}, {20, {32, 32, 32}}, {3, {3, 64, 64}}, {2, {64, 64, 64}}};
    if (sizeof(Scalar) == 4) {
        cases.push_back({37, {5, 7, 9}});
    } else {
        cases.push_back({6, {8, 9, 24}});
    }
    for (const auto& one : cases) {
        const Eigen::Index rows = one.first;
        const std::vector<Eigen::Index>& p = one.second;
        const shapes size{rows, {p[0], p[1], p[2]}, {p[0], p[1], p[2]}};
        CAPTURE(size.text());
        std::vector<host> f;  // A, B, C, M, N, O
        std::vector<host> eye;
        for (std::size_t k = 0; k < 6; ++k) {
            f.push_back(random_matrix<host>(p[k % 3], p[k % 3], k + 1));
        }
        for (const Eigen::Index n : p) {
            eye.push_back(host::Identity(n, n));
        }
        const DeviceMatrix<Scalar, 1> A(f[0]), B(f[1]), C(f[2]), M(f[3]), N(f[4]), O(f[5]);
        const host X = random_matrix<host>(rows, size.inputs(), 7), Z = random_matrix<host>(rows, size.inputs(), 8);
        const auto product = [&](const host& a, const host& b, const host& c) {
            return host(expected_right(X, std::vector<host>{a, b, c}));
        };
        const host laplacian =
            product(f[0], eye[1], eye[2]) + product(eye[0], f[1], eye[2]) / Scalar(2) + product(eye[0], eye[1], f[2]);
        const host sum = product(f[0], f[4], f[5]) - Scalar(3) * product(f[3], f[1], f[5]) + product(f[3], f[4], f[2]);
        for (const Eigen::Index pad : {0, 3}) {
            CAPTURE(pad);
            // Whole rows, or rows with a gap that begin at an odd address.
            const Eigen::Index n = X.cols(), ld = n + pad;
            const auto spread = [&](const host& m) {
                host wide = host::Constant(rows + 1, ld, nan<Scalar>());
                wide.block(0, pad, rows, n) = m;
                return wide;
            };
            const DeviceMatrix<Scalar, 1> x(spread(X)), z(spread(Z));
            DeviceMatrix<Scalar, 1> y(spread(Z));
            const auto dX = device_map<Scalar, 1>(x.data() + pad, rows, n, ld);
            const auto dZ = device_map<Scalar, 1>(z.data() + pad, rows, n, ld);
            const auto dY = device_map<Scalar, 1>(y.data() + pad, rows, n, ld);
            const auto got = [&] { return host(host(y.to_host()).block(0, pad, rows, n)); };
            const auto check = [&](const auto& S, const host& want) {
                poison(y);
                dY = dX * S;
                const host first = got();
                CHECK(agrees(first, want, size));
                dY -= 3 * dX * S;
                CHECK(agrees(got(), host(Scalar(-2) * want), size));
                dY = dX * S;
                CHECK(got() == first);
                dY = dX * S - 2 * dZ;
                CHECK(agrees(got(), host(want - Scalar(2) * Z), size));
            };
            if (p[0] == 64) {  // its kernels take seconds to compile: those that only it has
                poison(y);
                dY = dX * (kron(A, N, O) - 3 * kron(M, B, O) + kron(M, N, C));
                CHECK(agrees(got(), sum, size));
                break;
            }
            check(otimes::kron_sum(A, 0.5 * B, C), laplacian);
            check(kron(A, N, O) - 3 * kron(M, B, O) + kron(M, N, C), sum);
            if (p[0] == 32) {  // one inner product for both, one outer factor
                const host alike = product(f[3], f[4], f[2]) + Scalar(2) * product(f[3], f[4], f[5]);
                dY = dX * (kron(M, N, C) + 2 * kron(M, N, O));
                CHECK(agrees(got(), alike, size));
                // Infinities and NaN as multiply-adds give them: in one row alone.
                host odd = X;
                odd(0, 5) = std::numeric_limits<Scalar>::infinity();
                const DeviceMatrix<Scalar, 1> dOdd(odd);
                DeviceMatrix<Scalar, 1> of_odd(rows, n);
                of_odd = dOdd * (kron(A, N, O) - 3 * kron(M, B, O) + kron(M, N, C));
                const host result = of_odd.to_host();
                CHECK(!result.row(0).allFinite());
                CHECK(agrees(host(result.bottomRows(rows - 1)), host(sum.bottomRows(rows - 1)), size));
            }
        }
    }
}

TEST_CASE_TEMPLATE("complex modes by the matrix unit: gaps, +=, values that are infinite or too large to split" *
                       needs_gpu(),
                   Scalar, std::complex<float>, std::complex<double>) {
    using real = typename Scalar::value_type;
    const std::vector<shapes> sizes{
        {37, {12, 20}, {20, 12}}, {5, {16, 8, 12}, {16, 8, 12}}, {3, {40, 16}, {24, 16}}, {70, {64}, {64}}};
    for (const shapes& s : sizes) {
        CAPTURE(s.text());
        std::vector<matrix<Scalar, 0>> factors = random_factors<Scalar>(s);
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            using host = matrix<Scalar, Order>;
            host X = random_matrix<host>(s.rows, s.inputs(), 5);
            std::vector<DeviceMatrix<Scalar, Order>> dF;
            for (const auto& f : factors) {
                dF.emplace_back(host(f));
            }
            // X and Y between NaNs, at an odd address.
            const auto spread = [](const host& m) {
                host wide = host::Constant(m.rows() + 3, m.cols() + 3, nan<Scalar>());
                wide.block(1, 1, m.rows(), m.cols()) = m;
                return wide;
            };
            const auto inside = [](DeviceMatrix<Scalar, Order>& wide, Eigen::Index rows, Eigen::Index cols) {
                const Eigen::Index ld = Order == 1 ? cols + 3 : rows + 3;
                return device_map<Scalar, Order>(wide.data() + ld + 1, rows, cols, ld);
            };
            host want = expected_right(X, factors);
            DeviceMatrix<Scalar, Order> y(spread(host::Constant(s.rows, s.outputs(), nan<Scalar>())));
            auto dY = inside(y, s.rows, s.outputs());
            const auto got = [&] { return host(y.to_host().block(1, 1, s.rows, s.outputs())); };
            const auto multiply = [&](const auto& by) {
                DeviceMatrix<Scalar, Order> x(spread(X));
                dY = inside(x, s.rows, s.inputs()) * kron(by);
                return got();
            };
            CHECK(agrees(multiply(dF), want, s));
            const Scalar alpha(real(0.5), 2);
            DeviceMatrix<Scalar, Order> x(spread(X));
            dY -= alpha * inside(x, s.rows, s.inputs()) * kron(dF);
            CHECK(agrees(got(), host(want - alpha * want), s));
            host all = y.to_host();
            all.block(1, 1, s.rows, s.outputs()).setConstant(nan<Scalar>());
            CHECK(all.array().isNaN().all());

            X(1, 3) = Scalar(std::numeric_limits<real>::infinity(), 0);
            host result = multiply(dF);
            CHECK(!result.row(1).allFinite());
            CHECK(agrees(host(result.row(0)), host(want.row(0)), s));
            CHECK(agrees(host(result.bottomRows(s.rows - 2)), host(want.bottomRows(s.rows - 2)), s));

            // Almost the largest number: its rounding to the unit's digits is infinite.
            const host row = host::Constant(1, s.inputs(), Scalar(std::numeric_limits<real>::max(), 0));
            const auto small = [&](const auto& f) { return host(f * real(0x1p-20)); };
            std::vector<DeviceMatrix<Scalar, Order>> dSmall;
            std::vector<host> smaller;
            for (const auto& f : factors) {
                smaller.push_back(small(f));
                dSmall.emplace_back(smaller.back());
            }
            X.row(1) = row;
            result = multiply(dSmall);
            CHECK(result.allFinite());
            const real scale = std::ldexp(real(1), 30 - std::numeric_limits<real>::max_exponent);
            CHECK(agrees(host(scale * result), host(scale * expected_right(X, smaller)), s));
        });
    }
}

TEST_CASE_TEMPLATE("16-bit storage is computed with in float" * needs_gpu(), Storage, otimes::half, otimes::bfloat16) {
    using host = otimes_test::narrow_matrix<Storage>;
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(9, 12, 1), A = random_matrix<Eigen::MatrixXf>(3, 4, 2),
                          B = random_matrix<Eigen::MatrixXf>(4, 2, 3);
    const host hX(X), hA(A), hB(B);
    DeviceMatrix<Storage> dX(9, 12), dA(3, 4), dB(4, 2), dY;
    hX.copy_to_device(dX);
    hA.copy_to_device(dA);
    hB.copy_to_device(dB);
    dY = dX * kron(dA, dB);
    const host got = dY.template to_host<host>();
    const Eigen::MatrixXf want = hX.wide() * dense_kron<float>({hA.wide(), hB.wide()});
    const float unit = std::is_same_v<Storage, otimes::half> ? 0x1p-10f : 0x1p-7f;
    CHECK((got.wide() - want).cwiseAbs().maxCoeff() <= 4 * unit * want.cwiseAbs().maxCoeff());
}
