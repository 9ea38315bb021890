// SPDX-License-Identifier: MIT
// DeviceMatrix, device_map and their expressions on an executor whose device memory is host memory and whose kernels are the
// reference's loops: what the front end of otimes::cuda asks for, without a GPU.
#include "cuda/device_support.hpp"
#include "cuda/operator_checks.hpp"
#include "cuda/pretended_gpu.hpp"
#include "support/once.hpp"

#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <algorithm>
#include <complex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace device_test;
using otimes::DeviceMatrix;
using otimes::kron;

template <class Scalar>
using host = matrix<Scalar, 0>;

/// Counts what it is asked to plan.
class planning_gpu : public pretended_gpu {
public:
    otimes::plan make_plan_for(const otimes::program& p, const otimes::options& wishes) const override {
        ++plans;
        return pretended_gpu::make_plan_for(p, wishes);
    }
    mutable int plans = 0;
};

/// Keeps what it is asked to evaluate.
class recording_gpu : public pretended_gpu {
public:
    void evaluate(const otimes::program& p, const otimes::bindings& b) const override {
        asked = p;
        bound = b;
        lowered = &p == &otimes::device::thread_scratch()->program;
        pretended_gpu::evaluate(p, b);
    }
    mutable otimes::program asked;
    mutable otimes::bindings bound;
    mutable bool lowered = false;  // for this evaluation
};

}  // namespace

TEST_CASE_TEMPLATE("sums, differences and multiples of products in device memory", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        const shapes s{5, {3, 2}, {2, 3}};  // square products of rectangular factors
        const auto f = random_factors<Scalar>(s);
        const auto g =
            std::vector<host<Scalar>>{random_matrix<host<Scalar>>(3, 6, 7), random_matrix<host<Scalar>>(2, 1, 8)};
        const host<Scalar> X = random_matrix<host<Scalar>>(5, 6, 1), Z = random_matrix<host<Scalar>>(5, 6, 2);
        const host<Scalar> XF = expected_right(X, f), XG = expected_right(X, g), ZF = expected_right(Z, f);
        const DeviceMatrix<Scalar, 1> dX(X);
        const DeviceMatrix<Scalar> dZ(Z), A(f[0]), B(f[1]), C(g[0]), D(g[1]);
        const auto K = kron(A, B);
        const auto L = kron(C, D);
        DeviceMatrix<Scalar> dY;
        dY = dX * K + dX * L;
        CHECK(agrees(dY.to_host(), host<Scalar>(XF + XG), s));
        gpu.evaluations = 0;
        dY = 2 * dX * K - dX * (L / 4) + dZ / 2 - dZ * -K;
        CHECK(gpu.evaluations == 1);  // no temporary
        const host<Scalar> four = Scalar(2) * XF - XG / Scalar(4) + Z / Scalar(2) + ZF;
        CHECK(agrees(dY.to_host(), four, s));
        dY -= 3 * (dX * K + dZ);
        CHECK(agrees(dY.to_host(), host<Scalar>(four - Scalar(3) * (XF + Z)), s));
        dY += dZ;
        dY -= dX;
        dY.noalias() += dX * K - dZ;
        CHECK(agrees(dY.to_host(), host<Scalar>(four - Scalar(2) * XF - Scalar(3) * Z - X), s));
        dY = -(dX * K + dX * L);
        CHECK(agrees(dY.to_host(), host<Scalar>(-XF - XG), s));
        DeviceMatrix<Scalar, 1> dT;
        dT = (dX * K - dZ).adjoint();
        CHECK(agrees(host<Scalar>(dT.to_host()), host<Scalar>((XF - Z).adjoint()), s));
        CHECK(agrees((dX * K + dZ).template to_host<host<Scalar>>(), host<Scalar>(XF + Z), s));

        // Y among the operands of any term: through a temporary.
        dY = X;
        dY = dZ * K + dY * K;
        CHECK(agrees(dY.to_host(), host<Scalar>(ZF + XF), s));
        dY = X;
        dY -= dZ * K - dY * L;
        CHECK(agrees(dY.to_host(), host<Scalar>(X - ZF + XG), s));
        dY = X;
        auto view = dY.map();
        view = dZ + dY * K;
        CHECK(agrees(dY.to_host(), host<Scalar>(Z + XF), s));
        view += dZ;
        view.noalias() -= dZ + dX;
        CHECK(agrees(dY.to_host(), host<Scalar>(Z + XF - X), s));
        CHECK_THROWS_AS(dY.noalias() = dZ * K + dY * L, otimes::alias_error);

        // Nothing is written by what is refused.
        const host<Scalar> before = dY.to_host();
        const DeviceMatrix<Scalar> narrow(host<Scalar>::Ones(5, 3));
        gpu.evaluations = 0;
        CHECK_THROWS_WITH_AS(static_cast<void>(dX * K + narrow),
                             "otimes: sum of products in device memory: the first term is 5 x 6, term 2 is 5 x 3; they "
                             "must be equal.",
                             otimes::shape_error);
        CHECK_THROWS_AS(dY += narrow * kron(A), otimes::shape_error);
        DeviceMatrix<Scalar> later(X);
        const auto kept = dX * K + later;
        later.resize(5, 7);
        CHECK_THROWS_WITH_AS(dY = kept, doctest::Contains("an operand was resized"), otimes::shape_error);
        CHECK(gpu.evaluations == 0);
        CHECK(dY.to_host() == before);
    }
    CHECK(gpu.in_use() == 0);
}

TEST_CASE_TEMPLATE("sums of Kronecker products in device memory", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        check_operators<Scalar>();
        const DeviceMatrix<Scalar> A(host<Scalar>::Ones(3, 3)), B(host<Scalar>::Ones(2, 2)),
            R(host<Scalar>::Ones(2, 3));
        CHECK_THROWS_WITH_AS(
            static_cast<void>(kron(A, B) + kron(A)),
            "otimes: sum of Kronecker products in device memory: the first term is 6 x 6, term 2 is 3 x "
            "3; they must be equal.",
            otimes::shape_error);
        CHECK_THROWS_WITH_AS(static_cast<void>(kron(R, B) - otimes::identity()),
                             "otimes: operator + s * identity(): the operator is 4 x 6; only a square operator can be "
                             "shifted.",
                             otimes::shape_error);
        CHECK_THROWS_WITH_AS(
            static_cast<void>(kron(A, B) + 2.0 * otimes::identity(5)),
            "otimes: operator + s * identity(5): the operator is 6 x 6, the identity 5 x 5. Their orders "
            "must be equal; identity() takes the order that fits.",
            otimes::shape_error);
        CHECK_THROWS_WITH_AS(static_cast<void>(otimes::kron_sum(A, R)),
                             "otimes: kron_sum in device memory: factor 2 is 2 x 3; the terms of a Kronecker sum are "
                             "square.",
                             otimes::shape_error);
        gpu.evaluations = 0;
        CHECK_THROWS_AS(static_cast<void>(A * (kron(A, B) + kron(B, A))), otimes::shape_error);
        CHECK(gpu.evaluations == 0);
        const DeviceMatrix<Scalar> dX(host<Scalar>::Ones(4, 6));
        DeviceMatrix<Scalar> dY;
        dY = dX * kron(A, B) * (kron(A, B) + kron(B, A) - otimes::identity());
        // The first product once, then the sum.
        CHECK(gpu.evaluations == 2);
    }
    CHECK(gpu.in_use() == 0);
}

TEST_CASE_TEMPLATE("sums of long factors in device memory share products", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        check_shared_sums<Scalar>();
    }
    CHECK(gpu.in_use() == 0);
}

namespace {

// Has no room for what the terms of a sum share.
class short_of_memory final : public pretended_gpu {
public:
    void evaluate(const otimes::program& p, const otimes::bindings& b) const override {
        if (p.rewritten.holds(otimes::rewrite::terms_shared)) {
            ++refused;
            throw otimes::device_memory_error("no room");
        }
        pretended_gpu::evaluate(p, b);
    }
    mutable int refused = 0;
};

}  // namespace

TEST_CASE("a sum whose shared products have no room is evaluated term by term, and tried once") {
    const short_of_memory gpu;
    {
        const otimes::scoped_executor here(gpu);
        const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
            return random_matrix<host<double>>(rows, cols, seed);
        };
        const host<double> a = random(70, 90, 1), m = random(70, 90, 2), n = random(80, 66, 3), x = random(5, 5600, 4);
        const DeviceMatrix<double> A(a), M(m), N(n);
        const DeviceMatrix<double, 1> X(x);
        const auto sum = X * (kron(A, N) + kron(M, N));
        const host<double> wanted =
            expected_right(x, std::vector<host<double>>{a, n}) + expected_right(x, std::vector<host<double>>{m, n});
        DeviceMatrix<double, 1> Y(host<double>::Ones(5, 5940));
        CHECK_THROWS_AS(Y += sum, otimes::device_memory_error);  // who adds is told: Y is as it was
        CHECK(host<double>(Y.to_host()) == host<double>::Ones(5, 5940));
        CHECK(gpu.refused == 1);
        for (int repeat = 0; repeat < 2; ++repeat) {
            poison(Y);
            Y = sum;
            CHECK(agrees(host<double>(Y.to_host()), wanted, {5, {70, 80}, {90, 66}}));
            CHECK(gpu.refused == 2);
        }
    }
    CHECK(gpu.in_use() == 0);
}

TEST_CASE_TEMPLATE("numbers from products in device memory, without the products", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        check_reductions<Scalar>();
        // No memory of the size of Y: at most that over the rows of the first factor, and a number for each block.
        const DeviceMatrix<Scalar> A(host<Scalar>::Ones(8, 8)), X(host<Scalar>::Ones(64, 64)),
            x(host<Scalar>::Ones(1, 512));
        gpu.most = 0;
        CHECK((X * kron(A, A)).squaredNorm() == 64.0 * 64 * 64 * 64);
        CHECK(gpu.most <= static_cast<std::int64_t>(64 * 64 / 8 * sizeof(Scalar)));
        CHECK((X * kron(A, A) - 2 * X).squaredNorm() == 62.0 * 62 * 64 * 64);
        CHECK(gpu.most <= static_cast<std::int64_t>(64 * 64 / 8 * sizeof(Scalar)));
        CHECK(otimes::dot(X, kron(A, A) * X) == Scalar(64.0 * 64 * 64));
        CHECK((x * kron(A, A, A)).squaredNorm() == 512.0 * 512 * 512);
        CHECK(gpu.most <= static_cast<std::int64_t>(64 * 64 / 8 * sizeof(Scalar)));
    }
    CHECK(gpu.in_use() == 0);
}

TEST_CASE("reductions of single columns go through what stays in the cache; asked for the least, block by block") {
    const planning_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        const shapes s{1, {600, 10}, {600, 10}};  // no tile holds a mode of 600
        const auto f = random_factors<double>(s);
        const auto x = random_matrix<host<double>>(s.inputs(), 1, 1), z = random_matrix<host<double>>(s.inputs(), 1, 2);
        const std::vector<host<double>> transposes{f[0].transpose(), f[1].transpose()};
        const host<double> y = expected_right(host<double>(x.transpose()), transposes).transpose();
        const DeviceMatrix<double> A(f[0]), B(f[1]), dx(x), dz(z);
        const auto K = kron(A, B);
        const auto evaluations_of = [&](const auto& reduce) {
            gpu.evaluations = 0;
            reduce();
            return gpu.evaluations;
        };
        constexpr std::int64_t least = 1;
        double dot = 0, norm = 0, residual = 0;
        CHECK(evaluations_of([&] { dot = otimes::dot(dz, K * dx); }) == 1);
        CHECK(dot == doctest::Approx(z.col(0).dot(y.col(0))));
        CHECK(evaluations_of([&] { dot = otimes::dot(dz, K * dx, least); }) > 1);
        CHECK(dot == doctest::Approx(z.col(0).dot(y.col(0))));
        CHECK(evaluations_of([&] { norm = (K * dx).squaredNorm(); }) == 1);
        CHECK(norm == doctest::Approx(y.squaredNorm()));
        CHECK(evaluations_of([&] { norm = otimes::squared_norm(K * dx, least); }) > 1);
        CHECK(norm == doctest::Approx(y.squaredNorm()));
        CHECK(evaluations_of([&] { residual = (K * dx - dz).squaredNorm(); }) == 1);
        CHECK(residual == doctest::Approx((y - z).squaredNorm()));
        CHECK(evaluations_of([&] { residual = otimes::squared_norm(K * dx - dz, least); }) > 1);
        CHECK(residual == doctest::Approx((y - z).squaredNorm()));
        const host<double> Kz = expected_right(host<double>(z.transpose()), transposes).transpose();
        CHECK(evaluations_of([&] { residual = (K * dx - K * dz).squaredNorm(); }) == 2);  // evaluated and reduced
        CHECK(residual == doctest::Approx((y - Kz).squaredNorm()));
        CHECK(evaluations_of([&] { residual = otimes::squared_norm(K * dx - K * dz, least); }) == 1200);
        CHECK(residual == doctest::Approx((y - Kz).squaredNorm()));
        CHECK(evaluations_of([&] { norm = otimes::column_squared_norms(K * dx).to_host()(0); }) == 1);
        CHECK(norm == doctest::Approx(y.squaredNorm()));
        // Blocks of several sizes are tried, and none is planned again.
        const auto reduce_within_each = [&] {
            for (const std::int64_t bytes : {1, 3'000'000, 2'950'000, 2'920'000}) {
                CHECK(otimes::dot(dz, K * dx, bytes) == doctest::Approx(z.col(0).dot(y.col(0))));
            }
        };
        reduce_within_each();
        const int planned = gpu.plans;
        CHECK(planned > 8);
        reduce_within_each();
        CHECK(gpu.plans == planned);
    }
    CHECK(gpu.in_use() == 0);
}

TEST_CASE("lists of factors, powers, and products in place in device memory") {
    const pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        const shapes s{5, {3, 2}, {3, 2}};
        const auto f = random_factors<double>(s);
        const host<double> X = random_matrix<host<double>>(5, 6, 1), XF = expected_right(X, f);
        const DeviceMatrix<double> dX(X);
        std::vector<DeviceMatrix<double>> factors;
        factors.reserve(f.size());
        for (const auto& one : f) factors.emplace_back(one);
        DeviceMatrix<double> dY;
        dY = dX * kron(std::span<const DeviceMatrix<double>>(factors));
        CHECK(agrees(dY.to_host(), XF, s));
        const auto borrowed = kron(factors);
        // An rvalue vector is kept by the product.
        std::vector<DeviceMatrix<double>> copies = factors;
        const auto owned = kron(std::move(copies));
        copies.clear();
        dY = dX * owned;
        CHECK(agrees(dY.to_host(), XF, s));
        const auto kept = kron(static_cast<const std::vector<DeviceMatrix<double>>&&>(
            std::vector<DeviceMatrix<double>>{factors[0], factors[1]}));
        dY = dX * kept;
        CHECK(agrees(dY.to_host(), XF, s));
        factors[0] = host<double>::Zero(3, 3);
        dY = dX * borrowed;
        CHECK(dY.to_host() == host<double>::Zero(5, 6));
        CHECK((dY.to_host<Eigen::Matrix<double, 5, 6>>() == host<double>::Zero(5, 6)));
        CHECK_THROWS_AS(static_cast<void>(dY.to_host<Eigen::Matrix<double, 5, 5>>()), otimes::shape_error);
        CHECK_THROWS_AS(static_cast<void>(dY.to_host<Eigen::RowVectorXd>()), otimes::shape_error);

        const DeviceMatrix<double> A(f[1]), wide(random_matrix<host<double>>(3, 8, 2));
        const auto cube = otimes::kron_power(A, 3);
        static_assert(otimes::is_device_operand<std::remove_const_t<decltype(cube)>>);
        CHECK(cube.homes().size() == 1);
        dY = wide * cube;
        CHECK(agrees(dY.to_host(), expected_right(wide.to_host(), std::vector<host<double>>(3, f[1])),
                     shapes{3, {2, 2, 2}, {2, 2, 2}}));
        dY = dX * otimes::kron_power(DeviceMatrix<double>(host<double>::Identity(6, 6)), 1);
        CHECK(dY.to_host() == X);
        CHECK_THROWS_AS(static_cast<void>(otimes::kron_power(A, -1)), otimes::shape_error);

        dY = X;
        dY *= kron(DeviceMatrix<double>(f[0]), A);
        CHECK(agrees(dY.to_host(), XF, s));
        dY = X;
        dY *= kron(f[0], f[1]);
        CHECK(agrees(dY.to_host(), XF, s));
        dY *= 4;
        dY /= 2.0;
        CHECK(agrees(dY.to_host(), host<double>(2 * XF), s));
        auto view = dY.map();
        view *= 0.5;
        view *= kron(A, DeviceMatrix<double>(f[0])) - otimes::identity();
        DeviceMatrix<double> dZ = dX * kron(DeviceMatrix<double>(f[0]), A);
        const DeviceMatrix<double> dW = (dX + 3 * dX) / 2;
        CHECK(agrees(dZ.to_host(), XF, s));
        CHECK(dW.to_host() == host<double>(2 * X));
        CHECK(dW.size() == 30);
        const DeviceMatrix<double> F(f[0]), dV = dW * ((kron(F, A) + kron(F, A)) / 4);
        CHECK(agrees(dV.to_host(), XF, s));
        // Sums of host krons, beside krons in device memory and alone.
        const auto H = kron(f[0], f[1]);
        dZ.noalias() = dX;
        dZ.noalias() += dX;
        dZ.noalias() -= dW;
        CHECK(dZ.to_host() == host<double>::Zero(5, 6));
        dZ = dX * (kron(F, A) + H) - dX * (2 * H - otimes::identity());
        CHECK(agrees(dZ.to_host(), X, s));
        dZ = ((H + 2 * H) * dX.transpose()).transpose() + dX * (otimes::kron_sum(f[0], f[1]) - (kron(F, A) - H));
        const host<double> I3 = host<double>::Identity(3, 3), I2 = host<double>::Identity(2, 2);
        const host<double> summed =
            3 * expected_right(X, std::vector<host<double>>{f[0].transpose(), f[1].transpose()}) +
            expected_right(X, std::vector<host<double>>{f[0], I2}) +
            expected_right(X, std::vector<host<double>>{I3, f[1]});
        CHECK(agrees(dZ.to_host(), summed, s));
        const host<double> W = wide.to_host(), left = X.leftCols(3), row = W(1, Eigen::seqN(0, 4, 2));
        dZ = DeviceMatrix<double>(left) *
             kron(F, W(1, Eigen::seqN(0, 4, 2)));  // copied: Eigen does not tell its strides
        CHECK(agrees(dZ.to_host(), expected_right(left, std::vector<host<double>>{f[0], row}),
                     shapes{5, {3, 1}, {3, 4}}));
        const host<double> swapped = expected_right(XF, std::vector<host<double>>{f[1], f[0]});
        CHECK(agrees(dY.to_host(), host<double>(swapped - XF), s));
    }
    CHECK(gpu.in_use() == 0);
}

TEST_CASE("real terms beside complex ones, and the plan of a product as text") {
    const pretended_gpu gpu;
    const otimes::scoped_executor here(gpu);
    using complex = std::complex<double>;
    const shapes s{4, {3, 5}, {2, 4}};
    const auto f = random_factors<double>(s);
    const host<complex> X = random_matrix<host<complex>>(4, 15, 1);
    const host<double> R = random_matrix<host<double>>(4, 15, 2);
    const DeviceMatrix<complex> dX(X);
    const DeviceMatrix<double, 1> dR(R);
    const DeviceMatrix<double> A(f[0]), B(f[1]);
    DeviceMatrix<complex, 1> dY;
    dY = dX * kron(A, B) - dR * kron(A, B) / 2;
    const std::vector<host<complex>> wide{f[0].cast<complex>(), f[1].cast<complex>()};
    CHECK(agrees(host<complex>(dY.to_host()), expected_right(host<complex>(X - R.cast<complex>() / 2.0), wide), s));
    const otimes::spreading_executor several("several", otimes::gpu_machine(otimes::h200(), 2),
                                             [](std::size_t) -> const otimes::executor& { return otimes::cpu(); });
    CHECK_THROWS_WITH_AS(otimes::on(several, dY) = dX * kron(A, B),
                         "otimes::on(): executor 'several' cuts matrices in host memory; name one GPU, or use "
                         "DistributedMatrix (otimes/distributed.hpp).",
                         otimes::unsupported_error);
    CHECK(otimes::explain(dX * kron(A, B)).find("pass") != std::string::npos);
}

TEST_CASE("a product that this thread has lowered is bound to other operands without lowering it again") {
    using complex = std::complex<double>;
    const recording_gpu gpu;
    const otimes::scoped_executor here(gpu);
    struct operands {
        DeviceMatrix<complex> X, A, B;
        DeviceMatrix<complex, 1> rows;
        DeviceMatrix<double> R, S;
        complex alpha;
        explicit operands(unsigned seed)
            : X(random_matrix<host<complex>>(6, 6, seed)),
              A(random_matrix<host<complex>>(2, 2, seed + 1)),
              B(random_matrix<host<complex>>(3, 3, seed + 2)),
              rows(random_matrix<host<complex>>(6, 6, seed + 3)),
              R(random_matrix<host<double>>(2, 2, seed + 4)),
              S(random_matrix<host<double>>(3, 3, seed + 5)),
              alpha(seed, -2) {}
    };
    const operands first(1);
    const operands second(11);
    // Each form is another program: what stands in its key tells it from all others, which come between its two evaluations.
    const auto each_form = [](const operands& o, const auto& use) {
        const auto K = kron(o.A, o.B);
        const auto real = kron(o.R, o.S);
        use(o.X * K);
        use(o.X * kron(o.B, o.A));
        use(o.X * kron(o.A.transpose(), o.B));
        use(o.X.conjugate() * K);
        use(o.rows * K);
        use(K * o.X);
        use(K * o.X * K);
        use(o.alpha * (o.X * kron(o.A, otimes::identity(3))));
        use(o.X * real);              // as a real problem
        use(o.alpha * (o.X * real));  // not so
    };
    DeviceMatrix<complex> Y(6, 6);
    DeviceMatrix<complex, 1> Z(6, 6);
    int known = 0;
    const auto evaluate = [&](const auto& value) {
        const auto as_lowered = [&](const otimes::matrix_view& y, bool add) {
            otimes::program p;
            otimes::bindings b;
            otimes::lowering<complex> low(p, b);
            low.add_product(value.node(), y, add);
            otimes::device::mark_result_on_device(p);
            CHECK((gpu.asked == p));
            CHECK(
                std::equal(gpu.bound.pointers.begin(), gpu.bound.pointers.end(), b.pointers.begin(), b.pointers.end()));
            CHECK(std::equal(gpu.bound.scalars.begin(), gpu.bound.scalars.end(), b.scalars.begin(), b.scalars.end()));
            known += gpu.lowered ? 0 : 1;
        };
        if (value.cols() == 6) {
            Y.noalias() = value;
            as_lowered(Y.view(), false);
            Y.noalias() += value;
            as_lowered(Y.view(), true);
            Z.noalias() = value;
            as_lowered(Z.view(), false);
        }
    };
    for (int times = 0; times < 2; ++times) {
        each_form(first, evaluate);
        each_form(second, evaluate);
    }
    // One at a time, every program is known from its second evaluation on.
    known = 0;
    each_form(first, [&](const auto& value) {
        Y.noalias() = value;
        Y.noalias() = value;
        known += gpu.lowered ? 0 : 1;
    });
    CHECK(known == 10);

    // The same through a plan, which refuses what it was not made for.
    const otimes::plan plan = otimes::make_plan(first.X * kron(first.A, first.B));
    for (const operands* const o : {&first, &second, &first}) {
        plan.run(Y, o->X * kron(o->A, o->B));
        CHECK(gpu.asked == plan.source);
        CHECK(gpu.bound.pointers[0] == o->X.data());
    }
    CHECK_THROWS_AS(plan.run(Y, first.rows * kron(first.A, first.B)), otimes::unsupported_error);
    CHECK_THROWS_AS(plan.run(Z, first.X * kron(first.A, first.B)), otimes::unsupported_error);
}

namespace {
class captured_gpu : public pretended_gpu {
public:
    void require_no_capture(const char* what) const override {
        if (captured) throw otimes::device_error(what);
    }
    bool captured = false;
};
}  // namespace

TEST_CASE("in a capture no matrix gets other memory") {
    captured_gpu gpu;
    const otimes::scoped_executor here(gpu);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(4, 6, 1);
    const DeviceMatrix<double> dA(random_matrix<Eigen::MatrixXd>(2, 2, 2)), dB(random_matrix<Eigen::MatrixXd>(3, 3, 3));
    const auto K = kron(dA, dB);
    DeviceMatrix<double> dX(X), dY(4, 6), dZ(3, 6);
    const double* const before = dX.data();
    gpu.captured = true;
    CHECK_THROWS_AS(dX = dX * K, otimes::device_error);
    CHECK_THROWS_AS(dX *= K, otimes::device_error);
    CHECK_THROWS_AS(dX = dX * K - dX, otimes::device_error);
    CHECK_THROWS_AS(dZ = dX * K, otimes::device_error);
    CHECK(dX.data() == before);
    CHECK(dZ.rows() == 3);
    CHECK(gpu.evaluations == 0);
    dY = dX * K;
    dX += dX * K;  // the temporary begins and ends in the graph
    CHECK(dX.data() == before);
    gpu.captured = false;
    CHECK((dX.to_host() - X - dY.to_host()).norm() <= 1e-12);
    dX = dX * K;
    CHECK(dX.data() != before);
}
