// SPDX-License-Identifier: MIT
// Batches, tkron and contractions on pointers to device memory against plain loops: on a GPU, and on executors that pretend to be one.
#pragma once

#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/batched.hpp>
#include <otimes/einsum.hpp>
#include <otimes/otimes.hpp>
#include <otimes/tkron.hpp>

#include "cuda/device_support.hpp"

namespace device_test {

// Items somewhere in one column of device memory, with gaps between them: item i at offset + i * stride.
template <class Scalar>
struct item_memory {
    matrix<Scalar, 0> host;
    otimes::DeviceMatrix<Scalar> device;
    item_memory(std::int64_t size, std::uint64_t seed)
        : host(random_matrix<matrix<Scalar, 0>>(size, 1, seed)), device(host) {}
    Scalar* data(std::int64_t offset = 0) { return device.data() + offset; }
    matrix<Scalar, 0> item(std::int64_t at, std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
                           std::int64_t col_stride) const {
        matrix<Scalar, 0> m(rows, cols);
        for (Eigen::Index i = 0; i < rows; ++i)
            for (Eigen::Index j = 0; j < cols; ++j) m(i, j) = host(at + i * row_stride + j * col_stride, 0);
        return m;
    }
    void fetch() { host = device.to_host(); }
};

// Items at any address of device memory; Y's poisoned, with NaN between them that must stay.
template <class Scalar>
void check_pointer_batches(const otimes::device_executor& gpu) {
    using host = matrix<Scalar, 0>;
    using otimes::batched;
    using otimes::DeviceMatrix;
    using otimes::kron;
    const shapes size{3, {60}, {30}};
    const std::int64_t count = 5;
    item_memory<Scalar> x(200, 21), a(100, 22), b(100, 23), y(400, 24);
    const host shared = random_matrix<host>(4, 3, 25);
    const DeviceMatrix<Scalar> S(shared);
    const std::vector<std::int64_t> scattered[4] = {
        {100, 0, 61, 30, 140}, {60, 0, 31, 17, 80}, {11, 50, 0, 22, 70}, {300, 0, 121, 60, 202}};
    const std::vector<std::int64_t> even[4] = {
        {7, 33, 59, 85, 111}, {0, 12, 24, 36, 48}, {3, 3, 3, 3, 3}, {1, 61, 121, 181, 241}};
    for (const auto& offsets : {scattered, even}) {
        const auto at = [&offsets](item_memory<Scalar>& m, int which) {
            std::vector<Scalar*> pointers;
            for (const std::int64_t o : offsets[which]) pointers.push_back(m.data(o));
            return pointers;
        };
        const std::vector<Scalar*> x_at = at(x, 0), a_at = at(a, 1), b_at = at(b, 2), y_at = at(y, 3);
        // [batched-device-pointers]
        const auto X = batched<Eigen::RowMajor>(gpu, std::span<Scalar* const>(x_at), 3, 8);  // addresses on the device,
        const auto A = batched(gpu, std::span<Scalar* const>(a_at), 4, 3);                   // listed on the host
        const auto B = batched(gpu, std::span<Scalar* const>(b_at), 2, 5);
        const auto Y = batched(gpu, std::span<Scalar* const>(y_at), 3, 15, 4);  // columns 4 elements apart
        Y = X * kron(A, B);
        // [/batched-device-pointers]
        const auto item_x = [&](std::int64_t i) { return x.item(offsets[0][i], 3, 8, 8, 1); };
        const auto item_a = [&](std::int64_t i) { return a.item(offsets[1][i], 4, 3, 1, 4); };
        const auto item_b = [&](std::int64_t i) { return b.item(offsets[2][i], 2, 5, 1, 2); };
        const auto check = [&](const auto& want) {
            const host before = y.host;
            y.fetch();
            std::vector<bool> written(400, false);
            for (std::int64_t i = 0; i < count; ++i) {
                CHECK(agrees(y.item(offsets[3][i], 3, 15, 1, 4), host(want(i)), size));
                for (int j = 0; j < 60; ++j) written[offsets[3][i] + j] = j % 4 < 3;
            }
            for (int j = 0; j < 400; ++j)
                if (!written[j]) CHECK(y.host(j, 0) == before(j, 0));
        };
        const auto own = [&](std::int64_t i) { return host(item_x(i) * dense_kron<Scalar>({item_a(i), item_b(i)})); };
        check(own);
        Y -= Scalar(3) * (X * kron(A, B));
        check([&](std::int64_t i) { return host(Scalar(-2) * own(i)); });
        Y = X * kron(S, B);  // one factor for all
        check([&](std::int64_t i) { return host(item_x(i) * dense_kron<Scalar>({shared, item_b(i)})); });
        // From the left and conjugated, into items that lie evenly.
        item_memory<Scalar> v(count * 60, 26);
        const auto V = batched(gpu, v.data(), 20, 3, count);
        V = kron(A, B.transpose()).conjugate() * batched(gpu, std::span<Scalar* const>(x_at), 6, 3);
        v.fetch();
        for (std::int64_t i = 0; i < count; ++i)
            CHECK(agrees(v.item(i * 60, 20, 3, 1, 20),
                         host(dense_kron<Scalar>({item_a(i), host(item_b(i).transpose())}).conjugate() *
                              x.item(offsets[0][i], 6, 3, 1, 6)),
                         size));
    }
    const std::vector<Scalar*> none, overlapping{y.data(), y.data(40)};
    batched(gpu, std::span<Scalar* const>(none), 3, 15) =
        batched(gpu, std::span<Scalar* const>(none), 3, 8) * kron(S, DeviceMatrix<Scalar>(host::Ones(2, 5)));
    CHECK_THROWS_AS(batched(gpu, std::span<Scalar* const>(overlapping), 3, 15) =
                        batched(gpu, x.data(), 3, 8, 2) * kron(S, batched(gpu, b.data(), 2, 5, 2)),
                    otimes::alias_error);
}

template <class Scalar>
void check_batches(const otimes::device_executor& gpu) {
    using host = matrix<Scalar, 0>;
    using otimes::batched;
    using otimes::DeviceMatrix;
    using otimes::kron;
    const shapes size{3, {60}, {30}};
    const std::int64_t count = 5;
    // X_i 3 x 8 by rows, A_i 4 x 3, B_i 2 x 5; gaps between items.
    item_memory<Scalar> x(count * 26, 1), a(count * 14, 2), b(count * 10, 3), y(count * 50, 4);
    const host before = y.host;
    const auto X = batched<Eigen::RowMajor>(gpu, x.data(), 3, 8, count, 26);
    const auto A = batched(gpu, a.data(), 4, 3, count, 14);
    const auto B = batched(gpu, b.data(), 2, 5, count);
    const auto Y = batched(gpu, y.data(), 3, 15, count, 50);
    const auto item_x = [&](std::int64_t i) { return x.item(i * 26, 3, 8, 8, 1); };
    const auto item_a = [&](std::int64_t i) { return a.item(i * 14, 4, 3, 1, 4); };
    const auto item_b = [&](std::int64_t i) { return b.item(i * 10, 2, 5, 1, 2); };
    const auto item_y = [&](std::int64_t i) { return y.item(i * 50, 3, 15, 1, 3); };
    const auto check = [&](const auto& want) {
        y.fetch();
        for (std::int64_t i = 0; i < count; ++i) {
            CHECK(agrees(item_y(i), host(want(i)), size));
            for (int gap = 45; gap < 50; ++gap) CHECK(y.host(i * 50 + gap, 0) == before(i * 50 + gap, 0));
        }
    };
    const auto own = [&](std::int64_t i) { return host(item_x(i) * dense_kron<Scalar>({item_a(i), item_b(i)})); };
    Y = X * kron(A, B);  // factors of their own
    check(own);
    Y += Scalar(2) * (X * kron(A, B));
    check([&](std::int64_t i) { return host(Scalar(3) * own(i)); });
    const host c = random_matrix<host>(4, 3, 5), d = random_matrix<host>(2, 5, 6);
    const DeviceMatrix<Scalar> dC(c), dD(d);
    Y = X * kron(dC, B);  // one for all, one of their own
    check([&](std::int64_t i) { return host(item_x(i) * dense_kron<Scalar>({c, item_b(i)})); });
    Y = X * kron(c, B);  // for all, in host memory
    check([&](std::int64_t i) { return host(item_x(i) * dense_kron<Scalar>({c, item_b(i)})); });
    Y = X * kron(dC, dD);  // all shared
    check([&](std::int64_t i) { return host(item_x(i) * dense_kron<Scalar>({c, d})); });
    Y -= X * kron(batched(gpu, a.data(14), 4, 3, count, 0), B);  // one matrix for all by its stride
    check([&](std::int64_t i) {
        return host(item_x(i) * (dense_kron<Scalar>({c, d}) - dense_kron<Scalar>({item_a(1), item_b(i)})));
    });
    // From the left, adjoints, an identity, one X for all.
    item_memory<Scalar> z(count * 32, 7), v(count * 60, 8);
    const auto Z = batched(gpu, z.data(), 8, 4, count);
    const auto V = batched(gpu, v.data(), 15, 4, count);
    V = kron(A, B).adjoint() * Z;
    v.fetch();
    for (std::int64_t i = 0; i < count; ++i)
        CHECK(agrees(v.item(i * 60, 15, 4, 1, 15),
                     host(dense_kron<Scalar>({item_a(i), item_b(i)}).adjoint() * z.item(i * 32, 8, 4, 1, 8)), size));
    const auto W = batched(gpu, v.data(), 6, 4, count);
    W = kron(A.transpose(), otimes::identity(2)) * Z;
    v.fetch();
    const host two = host::Identity(2, 2);
    for (std::int64_t i = 0; i < count; ++i)
        CHECK(agrees(v.item(i * 24, 6, 4, 1, 6),
                     host(dense_kron<Scalar>({host(item_a(i).transpose()), two}) * z.item(i * 32, 8, 4, 1, 8)), size));
    const host one = random_matrix<host>(3, 8, 9);
    const DeviceMatrix<Scalar> dOne(one);
    Y = dOne * kron(A, B);
    check([&](std::int64_t i) { return host(one * dense_kron<Scalar>({item_a(i), item_b(i)})); });
    // Items by pointers, anywhere: one by one; evenly spaced: as the strided batch.
    check_pointer_batches<Scalar>(gpu);
    // A DeviceMatrix cut into items.
    DeviceMatrix<Scalar, 1> dX(host(random_matrix<host>(6, 8, 10)), gpu), dY(6, 15, gpu);
    poison(dY);
    batched(dY, 2) = batched(dX, 2) * kron(batched(gpu, a.data(), 4, 3, 2, 14), batched(gpu, b.data(), 2, 5, 2));
    const auto hX = dX.to_host(), hY = dY.to_host();
    for (std::int64_t i = 0; i < 2; ++i)
        CHECK(agrees(host(hY.middleRows(3 * i, 3)),
                     host(hX.middleRows(3 * i, 3) * dense_kron<Scalar>({item_a(i), item_b(i)})), size));
    // Long sums of few items are added in pieces.
    item_memory<Scalar> p(2 * 5003, 11), q(2 * 5003 * 3, 12), r(6, 13);
    batched(gpu, r.data(), 1, 3, 2) =
        batched(gpu, p.data(), 1, 5003, 2) * kron(batched<Eigen::RowMajor>(gpu, q.data(), 5003, 3, 2));
    r.fetch();
    for (std::int64_t i = 0; i < 2; ++i)
        CHECK(agrees(r.item(i * 3, 1, 3, 1, 1),
                     host(p.item(i * 5003, 1, 5003, 1, 1) * q.item(i * 15009, 5003, 3, 3, 1)), shapes{1, {5003}, {3}}));
    // What is refused, before anything is written.
    std::vector<host> on_host(5, host::Zero(3, 8)), pointers(5, host::Zero(3, 15));
    CHECK_THROWS_WITH_AS(
        Y = batched(on_host) * kron(A, B),
        "otimes: batched: X and Y are not in one memory space. Give all batches of an expression in host memory, "
        "or all in device memory: otimes::batched(otimes::gpu(), pointer, rows, cols, count).",
        otimes::unsupported_error);
    CHECK_THROWS_AS(batched(pointers) = X * kron(A, B), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>((X * kron(A, B)).eval()), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>(batched(otimes::cpu(), x.data(), 3, 8, count)), otimes::unsupported_error);
    CHECK_THROWS_AS(Y = X * kron(A, A), otimes::shape_error);
    CHECK_THROWS_AS(X = X * kron(batched(gpu, a.data(), 4, 4, 5, 0), batched(gpu, b.data(), 2, 2, 5, 0)),
                    otimes::alias_error);
    CHECK_THROWS_AS(static_cast<void>(batched(dX, 4)), otimes::shape_error);
}

template <class Scalar>
void check_tkron(const otimes::device_executor& gpu) {
    using host = matrix<Scalar, 0>;
    using otimes::op;
    const std::int64_t count = 3;
    const shapes size{3, {60}, {30}};
    const auto taken = [](op how, const host& m) {
        return host(how == op::none ? m : how == op::transpose ? host(m.transpose()) : host(m.adjoint()));
    };
    // op(A) 4 x 3, op(B) 2 x 5, op(X) 3 x 5, Y 4 x 2; strides with gaps.
    for (const op of_a : {op::none, op::transpose, op::adjoint})
        for (const op of_x : {op::none, op::adjoint})
            for (const std::int64_t a_stride : {0, 25})
                for (const double beta : {0.0, 1.0, -0.5}) {
                    item_memory<Scalar> a(3 * 25, 1), b(3 * 12, 2), x(3 * 40, 3), y(3 * 15, 4);
                    const host first = y.host;
                    const std::int64_t a_rows = of_a == op::none ? 4 : 3, a_cols = of_a == op::none ? 3 : 4;
                    const std::int64_t x_rows = of_x == op::none ? 3 : 5, x_cols = of_x == op::none ? 5 : 3;
                    otimes::tkron2<Scalar>(gpu,
                                           {.how = of_a,
                                            .rows = 4,
                                            .cols = 3,
                                            .data = a.data(),
                                            .leading_stride = 5,
                                            .batch_stride = a_stride},
                                           {.rows = 2, .cols = 5, .data = b.data(), .batch_stride = 12},
                                           {.how = of_x, .data = x.data(), .leading_stride = 6, .batch_stride = 40},
                                           {.data = y.data(), .leading_stride = 5, .batch_stride = 15}, count,
                                           Scalar(2), Scalar(static_cast<float>(beta)));
                    y.fetch();
                    for (std::int64_t i = 0; i < count; ++i) {
                        const host A = taken(of_a, a.item(i * a_stride, a_rows, a_cols, 1, 5)),
                                   B = b.item(i * 12, 2, 5, 1, 2),
                                   X = taken(of_x, x.item(i * 40, x_rows, x_cols, 1, 6));
                        item_memory<Scalar> old(1, 1);
                        old.host = first;
                        const host Y = Scalar(2) * A * X * B.transpose() +
                                       Scalar(static_cast<float>(beta)) * old.item(i * 15, 4, 2, 1, 5);
                        CHECK(agrees(y.item(i * 15, 4, 2, 1, 5), Y, size));
                    }
                }
    // tkron3 and tkron1: against the product with what they mean.
    item_memory<Scalar> a(6, 5), b(12, 6), c(4, 7), x(3 * 2 * 3 * 2, 8), y(3 * 3 * 4 * 2, 9), u(3 * 3, 10);
    otimes::tkron3<Scalar>(gpu, {.rows = 3, .cols = 2, .data = a.data()}, {.rows = 4, .cols = 3, .data = b.data()},
                           {.how = op::adjoint, .rows = 2, .cols = 2, .data = c.data()},
                           {.data = x.data(), .batch_stride = 12}, {.data = y.data(), .batch_stride = 24}, 3);
    otimes::tkron1<Scalar>(gpu, {.rows = 3, .cols = 2, .data = a.data()}, {.data = x.data(), .batch_stride = 12},
                           {.data = u.data(), .batch_stride = 3}, 3);
    y.fetch();
    u.fetch();
    const host A = a.item(0, 3, 2, 1, 3),
               K = dense_kron<Scalar>({host(c.item(0, 2, 2, 1, 2).adjoint()), b.item(0, 4, 3, 1, 4), A});
    for (std::int64_t i = 0; i < 3; ++i) {
        CHECK(agrees(y.item(i * 24, 24, 1, 1, 24), host(K * x.item(i * 12, 12, 1, 1, 12)), size));
        CHECK(agrees(u.item(i * 3, 3, 1, 1, 3), host(A * x.item(i * 12, 2, 1, 1, 2)), size));
    }
    CHECK_THROWS_AS(otimes::tkron1<Scalar>(otimes::cpu(), {.rows = 3, .cols = 2, .data = a.data()}, {.data = x.data()},
                                           {.data = u.data()}),
                    otimes::unsupported_error);
}

// Contractions of a matrix with a tensor of order 3, every place of the letters that einsum takes.
template <class Scalar>
void check_contractions(const otimes::device_executor& gpu) {
    using host = matrix<Scalar, 0>;
    using otimes::einsum;
    using view2 = otimes::strided_view<Scalar, 2>;
    using view3 = otimes::strided_view<Scalar, 3>;
    const std::int64_t m = 3, n = 4, p = 5, k = 2;
    item_memory<Scalar> a(m * k * 2, 1), b(k * n * p + 9, 2), c(m * n * p, 3), e(m * n * p, 4);
    const auto A = view2(a.data(), {m, k}, {1, m + 1}).in(gpu);
    const auto B = view3::by_rows(b.data(), {p, k, n}).in(gpu);
    const auto C = view3::by_columns(c.data(), {m, n, p}).in(gpu);
    const auto at_a = [&](std::int64_t i, std::int64_t j) { return a.host(i + j * (m + 1), 0); };
    const auto at_b = [&](std::int64_t l, std::int64_t i, std::int64_t j) { return b.host((l * k + i) * n + j, 0); };
    const auto check = [&](const auto& want, std::int64_t first, std::int64_t second, std::int64_t third) {
        c.fetch();
        for (std::int64_t i = 0; i < first; ++i)
            for (std::int64_t j = 0; j < second; ++j)
                for (std::int64_t l = 0; l < third; ++l)
                    CHECK(std::abs(c.host(i + first * (j + second * l), 0) - want(i, j, l)) <= 1e-5);
    };
    C = einsum<"mk,pkn->mnp">(A, B);
    const auto plain = [&](std::int64_t i, std::int64_t j, std::int64_t l) {
        Scalar sum(0);
        for (std::int64_t s = 0; s < k; ++s) sum += at_a(i, s) * at_b(l, s, j);
        return sum;
    };
    check(plain, m, n, p);
    C -= einsum<"mk,pkn->mnp">(A, B);
    C -= einsum<"mk,pkn->mnp">(A, B);
    check([&](auto i, auto j, auto l) { return -plain(i, j, l); }, m, n, p);
    const auto D = view3::by_columns(c.data(), {p, m, n}).in(gpu);
    D = einsum<"pkn,mk->pmn">(B, A);
    check([&](auto l, auto i, auto j) { return plain(i, j, l); }, p, m, n);
    // An index that both have and the result keeps: per-item factors; a matrix product; a long sum.
    const auto E = view3::by_rows(e.data(), {p, k, 2}).in(gpu);
    const auto F = view3::by_columns(c.data(), {n, 2, p}).in(gpu);
    F = einsum<"pkn,pkm->nmp">(B, E);
    c.fetch();
    for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t i = 0; i < 2; ++i)
            for (std::int64_t l = 0; l < p; ++l) {
                Scalar sum(0);
                for (std::int64_t s = 0; s < k; ++s) sum += at_b(l, s, j) * e.host((l * k + s) * 2 + i, 0);
                CHECK(std::abs(c.host(j + n * (i + 2 * l), 0) - sum) <= 1e-5);
            }
    item_memory<Scalar> u(3000 * 2, 5), w(3000 * 3, 6), g(6, 7);
    view2::by_rows(g.data(), {2, 3}).in(gpu) =
        einsum<"km,kn->mn">(view2::by_rows(u.data(), {3000, 2}).in(gpu), view2::by_rows(w.data(), {3000, 3}).in(gpu));
    g.fetch();
    CHECK(agrees(g.item(0, 2, 3, 3, 1), host(u.item(0, 3000, 2, 2, 1).transpose() * w.item(0, 3000, 3, 3, 1)),
                 shapes{2, {3000}, {3}}));
    std::vector<Scalar> memory(static_cast<std::size_t>(m * n * p));
    const view3 on_host = view3::by_columns(memory.data(), {m, n, p});
    CHECK_THROWS_AS(on_host = (einsum<"mk,pkn->mnp">(A, B)), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>(einsum<"mk,pkn->mnp">(A, B).eval()), otimes::unsupported_error);
}

}  // namespace device_test
