// SPDX-License-Identifier: MIT
// Factors with structure on the CPU: sparse, diagonal, permutation and triangular ones alone between identities, in products with dense
// neighbours by rows and columns, and Laplacians as Kronecker sums, each beside what a user would write with Eigen instead. Least of the runs.
//
//   structured [threads] [OUTPUT.csv]
//
// Columns: case,dtype,threads,ms,other,other_ms,speedup,gbps_min,residual. `other`: "Eigen" (one product with the factor, or with the sparse matrix of the
// whole operator), or "dense" (the same product with dense factors). gbps_min: X and Y once over the time. residual: difference of the two, Frobenius, relative.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <Eigen/Core>
#include <Eigen/SparseCore>

#include <otimes/algebra.hpp>
#include <otimes/otimes.hpp>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "arguments.hpp"

namespace {

using Eigen::Index;
using otimes::identity;
using otimes::kron;

std::FILE* out = stdout;
int threads = 1;

double seconds_of(const std::function<void()>& work) {
    const auto now = [] { return std::chrono::steady_clock::now(); };
    work();
    double least = 1e9;
    double sum = 0;
    for (int run = 0; run < 9 || (sum < 0.2 && run < 2000); ++run) {
        const auto begin = now();
        work();
        const double seconds = std::chrono::duration<double>(now() - begin).count();
        least = std::min(least, seconds);
        sum += seconds;
    }
    return least;
}

template <class Scalar>
struct cases {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
    using sparse = Eigen::SparseMatrix<Scalar>;
    using permutation = Eigen::PermutationMatrix<Eigen::Dynamic>;
    static constexpr const char* type = sizeof(Scalar) == 4 ? "f32" : "f64";

    // Both results are looked at after the last run.
    template <class Result>
    static void compare(const std::string& name, const char* other, const Result& y, const Result& z,
                        const std::function<void()>& ours, const std::function<void()>& theirs) {
        const double seconds = seconds_of(ours);
        const double other_seconds = seconds_of(theirs);
        const double residual = static_cast<double>((y - z).norm() / z.norm());
        std::fprintf(out, "%s,%s,%d,%.4f,%s,%.4f,%.2f,%.1f,%.1e\n", name.c_str(), type, threads, seconds * 1e3, other,
                     other_seconds * 1e3, other_seconds / seconds,
                     2e-9 * static_cast<double>(y.size()) * sizeof(Scalar) / seconds, residual);
        std::fflush(out);
    }
    static sparse second_difference(Index n) {
        std::vector<Eigen::Triplet<Scalar>> entries;
        for (Index i = 0; i < n; ++i) {
            const auto at = static_cast<int>(i);
            entries.emplace_back(at, at, Scalar(2));
            if (i > 0) {
                entries.emplace_back(at, at - 1, Scalar(-1));
                entries.emplace_back(at - 1, at, Scalar(-1));
            }
        }
        sparse t(n, n);
        t.setFromTriplets(entries.begin(), entries.end());
        return t;
    }
    static permutation shuffled(Index n) {
        permutation p(n);
        p.setIdentity();
        std::shuffle(p.indices().data(), p.indices().data() + n, std::mt19937(5));
        return p;
    }
    // The sum over k of (1 kron t kron 1), `dimensions` of them, as one sparse matrix.
    static Eigen::SparseMatrix<Scalar, Eigen::RowMajor> laplacian(const sparse& t, int dimensions) {
        const Index n = t.rows();
        Index all = 1;
        for (int k = 0; k < dimensions; ++k) {
            all *= n;
        }
        std::vector<Eigen::Triplet<Scalar>> entries;
        for (Index inner = 1; inner < all; inner *= n) {
            for (Index i = 0; i < all; ++i) {
                const Index p = i / inner % n;
                for (typename sparse::InnerIterator e(t, p); e; ++e) {
                    entries.emplace_back(static_cast<int>(i + (e.index() - p) * inner), static_cast<int>(i), e.value());
                }
            }
        }
        Eigen::SparseMatrix<Scalar, Eigen::RowMajor> sum(all, all);
        sum.setFromTriplets(entries.begin(), entries.end());
        return sum;
    }
    static void operators() {
        for (const auto& [n, dimensions] : {std::pair<Index, int>{1000, 2}, {100, 3}}) {
            const sparse t = second_difference(n);
            const auto whole = laplacian(t, dimensions);
            const vector v = vector::Random(whole.rows());
            vector y(v.size()), z(v.size());
            const auto theirs = [&] { z.noalias() = whole * v; };
            const std::string name =
                "kron_sum of " + std::to_string(dimensions) + " second differences of " + std::to_string(n);
            if (dimensions == 2) {
                compare(
                    name, "Eigen", y, z, [&] { y = otimes::kron_sum(t, t) * v; }, theirs);
            } else {
                compare(
                    name, "Eigen", y, z, [&] { y = otimes::kron_sum(t, t, t) * v; }, theirs);
            }
        }
    }
    static void alone() {
        for (const Index n : {Index{100}, Index{1000}}) {
            const Index m = 1000000 / n;
            const vector v = vector::Random(n * m);
            vector y(n * m), z(n * m);
            const Eigen::Map<const matrix> X(v.data(), n, m), X2(v.data(), m, n);
            Eigen::Map<matrix> Z(z.data(), n, m), Z2(z.data(), m, n);
            const auto both = [&](const char* what, const auto& F, const auto& inner, const auto& outer) {
                const std::string of = std::string(what) + " of " + std::to_string(n);
                compare(
                    "kron(I; " + of + ") v", "Eigen", y, z, [&] { y = kron(identity(m), F) * v; }, inner);
                compare(
                    "kron(" + of + "; I) v", "Eigen", y, z, [&] { y = kron(F, identity(m)) * v; }, outer);
            };
            const sparse t = second_difference(n);
            both(
                "sparse", t, [&] { Z.noalias() = t * X; }, [&] { Z2.noalias() = X2 * t; });
            const vector d = vector::Random(n);
            both(
                "diagonal", d.asDiagonal(), [&] { Z.noalias() = d.asDiagonal() * X; },
                [&] { Z2.noalias() = X2 * d.asDiagonal(); });
            const permutation p = shuffled(n);
            both(
                "permutation", p, [&] { Z.noalias() = p * X; }, [&] { Z2.noalias() = X2 * p.transpose(); });
            const matrix a = matrix::Random(n, n);
            both(
                "triangular", a.template triangularView<Eigen::Lower>(),
                [&] { Z.noalias() = a.template triangularView<Eigen::Lower>() * X; },
                [&] { Z2.noalias() = X2 * a.transpose().template triangularView<Eigen::Upper>(); });
        }
    }
    template <int Order>
    static void products(const std::string& order) {
        using operand = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order>;
        const operand X = operand::Random(1000, 4096);
        operand Y(1000, 4096), Z(1000, 4096);
        const auto compare_with_dense = [&](const char* name, const auto& K, const auto& dense) {
            compare(
                "X * " + std::string(name) + " by " + order, "dense", Y, Z, [&] { Y = X * K; }, [&] { Z = X * dense; });
        };
        const matrix a = matrix::Random(16, 16), b = matrix::Random(16, 16);
        const vector d = vector::Random(16);
        const matrix of_d = d.asDiagonal();
        const sparse t = second_difference(16);
        const matrix of_t = t;
        const permutation p = shuffled(16);
        const matrix of_p = p.toDenseMatrix().template cast<Scalar>();
        compare_with_dense("kron(A; diagonal; B)", kron(a, d.asDiagonal(), b), kron(a, of_d, b));
        compare_with_dense("kron(A; sparse; B)", kron(a, t, b), kron(a, of_t, b));
        compare_with_dense("kron(sparse; A; B)", kron(t, a, b), kron(of_t, a, b));
        compare_with_dense("kron(A; B; sparse)", kron(a, b, t), kron(a, b, of_t));
        compare_with_dense("kron(sparse; sparse; sparse)", kron(t, t, t), kron(of_t, of_t, of_t));
        compare_with_dense("kron(A; permutation; B)", kron(a, p, b), kron(a, of_p, b));
        const matrix c = matrix::Random(64, 64), l = matrix::Random(64, 64);
        const matrix of_l = l.template triangularView<Eigen::Lower>();
        compare_with_dense("kron(C; triangular 64)", kron(c, l.template triangularView<Eigen::Lower>()), kron(c, of_l));
        compare_with_dense("kron(triangular 64; C)", kron(l.template triangularView<Eigen::Lower>(), c), kron(of_l, c));
    }
    static void all() {
        operators();
        alone();
        products<Eigen::RowMajor>("rows");
        products<Eigen::ColMajor>("columns");
    }
};

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "structured [threads] [OUTPUT.csv]", 2);
    threads = static_cast<int>(words.number(1, 1));
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    out = words.output(2);
    std::fprintf(out, "case,dtype,threads,ms,other,other_ms,speedup,gbps_min,residual\n");
    cases<float>::all();
    cases<double>::all();
    return 0;
}
