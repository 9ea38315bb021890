// SPDX-License-Identifier: MIT
// What is evaluated row by row has the same bits whatever the number of threads that share the rows.
#include <doctest/doctest.h>

#include <otimes/algebra.hpp>
#include <otimes/otimes.hpp>

#include <complex>
#include <limits>
#include <new>
#include <thread>

#include "support/counting_new.hpp"
#include "support/once.hpp"

#ifdef _OPENMP
#include <omp.h>

namespace {

template <class Scalar>
using row_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using column_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

// Evaluated by so many threads.
template <class Evaluate>
auto by_threads(int threads, const Evaluate& evaluate) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    auto result = evaluate();
    omp_set_num_threads(before);
    return result;
}

}  // namespace

TEST_CASE_TEMPLATE("dot products and solves by several threads", Scalar,
                   OTIMES_ONE_OF(double, float, std::complex<double>)) {
    const auto self_adjoint = [](Eigen::Index n) -> column_major<Scalar> {
        const column_major<Scalar> any = column_major<Scalar>::Random(n, n);
        return any * any.adjoint() + Scalar(static_cast<float>(n)) * column_major<Scalar>::Identity(n, n);
    };
    const column_major<Scalar> A = self_adjoint(7), B = self_adjoint(8), C = self_adjoint(9);
    const Eigen::Index order = 7 * 8 * 9;
    for (const Eigen::Index rows : {2, 61, 300}) {
        const row_major<Scalar> X = row_major<Scalar>::Random(rows, order), V = row_major<Scalar>::Random(rows, order);
        const auto K = otimes::kron(A, B, C);
        const auto dot = [&] { return otimes::dot(V, X * K); };
        const Scalar alone = by_threads(1, dot);
        const row_major<Scalar> Y = X * K;
        const Scalar want = V.conjugate().cwiseProduct(Y).sum();
        using real = decltype(std::real(Scalar()));
        CHECK(std::abs(alone - want) <= real(300) * std::numeric_limits<real>::epsilon() * V.norm() * Y.norm());
        CHECK(by_threads(2, dot) == alone);
        CHECK(by_threads(3, dot) == alone);

        const otimes::kron_sum_solver<Scalar> solver(otimes::kron_sum(A, B, C));
        const column_major<Scalar> R = X.transpose();
        const auto solve = [&]() -> column_major<Scalar> { return solver.solve(R); };
        const column_major<Scalar> solution = by_threads(1, solve);
        const column_major<Scalar> back = otimes::kron_sum(A, B, C) * solution;
        CHECK((back - R).norm() <= real(1000) * std::numeric_limits<real>::epsilon() * R.norm());
        CHECK(by_threads(2, solve) == solution);
        CHECK(by_threads(3, solve) == solution);
    }
}

TEST_CASE_TEMPLATE("sums by several threads, also more than there are rows", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double)) {
    const column_major<Scalar> A = column_major<Scalar>::Random(15, 15), B = column_major<Scalar>::Random(16, 16),
                               C = column_major<Scalar>::Random(17, 17);
    const auto K = otimes::kron(A, B, C);
    const row_major<Scalar> X = row_major<Scalar>::Random(61, K.rows());
    const auto both = [&](Eigen::Index rows) {
        row_major<Scalar> Y(2 * rows, K.cols());
        Y.topRows(rows) = X.topRows(rows) * otimes::kron_sum(A, B, C);
        Y.bottomRows(rows) = X.topRows(rows) * (K + otimes::kron(A, B, C.transpose()) - Scalar(2) * K.transpose());
        return Y;
    };
    for (const Eigen::Index rows : {1, 2, 61}) {
        const row_major<Scalar> alone = by_threads(1, [&] { return both(rows); });
        CHECK(by_threads(2, [&] { return both(rows); }) == alone);
        CHECK(by_threads(3, [&] { return both(rows); }) == alone);
    }
}

// An exception that leaves a team of OpenMP would end the program.
TEST_CASE("no memory for rows that several threads share is an exception") {
    const column_major<double> A = column_major<double>::Random(15, 15), B = column_major<double>::Random(16, 16),
                               C = column_major<double>::Random(17, 17);
    const row_major<double> X = row_major<double>::Random(61, 15 * 16 * 17);
    row_major<double> Y(61, 15 * 16 * 17);
    const auto S = otimes::kron(A, B, C) + otimes::kron(A, B, C.transpose());
    bool refused = false;
    std::thread([&] {  // whose memory is all to be taken
        omp_set_num_threads(3);
        try {
            const support::allocation_size_limit limit(20'000);
            Y.noalias() = X * S;
        } catch (const std::bad_alloc&) {
            refused = true;
        }
    })
        .join();
    CHECK(refused == support::allocations_are_counted());
}
#endif
