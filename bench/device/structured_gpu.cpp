// SPDX-License-Identifier: MIT
// Sparse and diagonal factors in device memory, against the time that memory takes to deliver X and to take Y.
//
//   structured_gpu [OUTPUT.csv [CASE]]
//
// CASE: only the rows whose name begins so.
//
// Columns: case,dtype,vectors,us,bound_us,ratio,residual. Factors of order 1000 (T: second differences, R: 20 elements a row at random places, W: 3000 x 1000
// with 4), A and B are 16 x 16. `vectors`: X has so many columns, which are neighbours in memory, or so many rows, whose elements are. us: median of
// 9 blocks of calls in a row. bound_us: X and Y once at 3.0e12 bytes a second; what caches hold is faster. residual: from the cpu executor's
// result, Frobenius, relative.
#include <Eigen/Core>
#include <Eigen/SparseCore>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <otimes/algebra.hpp>
#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

#include "milliseconds.hpp"

namespace {

using Eigen::Index;
using otimes::DeviceMatrix;
using otimes::DeviceSparse;
using otimes::identity;
using otimes::kron;
using otimes::kron_sum;

constexpr double bytes_per_second = 3.0e12;

struct output {
    std::FILE* out = stdout;
    std::string only;
};

template <class Scalar>
Eigen::SparseMatrix<Scalar> second_differences(Index n) {
    std::vector<Eigen::Triplet<Scalar>> entries;
    for (Index i = 0; i < n; ++i) {
        for (Index j = std::max<Index>(0, i - 1); j <= std::min(n - 1, i + 1); ++j) {
            entries.emplace_back(i, j, static_cast<Scalar>(i == j ? 2 : -1));
        }
    }
    Eigen::SparseMatrix<Scalar> made(n, n);
    made.setFromTriplets(entries.begin(), entries.end());
    return made;
}

/// `each` elements of every row at places that a linear congruence picks.
template <class Scalar>
Eigen::SparseMatrix<Scalar> scattered(Index rows, Index cols, int each) {
    std::vector<Eigen::Triplet<Scalar>> entries;
    std::uint64_t state = 1;
    for (Index i = 0; i < rows; ++i) {
        for (int k = 0; k < each; ++k) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            entries.emplace_back(i, static_cast<Index>((state >> 33) % static_cast<std::uint64_t>(cols)),
                                 static_cast<Scalar>(0.5) + static_cast<Scalar>(k));
        }
    }
    Eigen::SparseMatrix<Scalar> made(rows, cols);
    made.setFromTriplets(entries.begin(), entries.end());
    return made;
}

template <class Scalar>
class bench {
public:
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using device = DeviceMatrix<Scalar, Eigen::RowMajor>;

    explicit bench(const output& to) : to_(to) {}

    void run() {
        for (const Index vectors : {Index{1}, Index{8}, Index{64}}) {
            by_columns(vectors);
            by_rows(vectors);
        }
        beside_dense(1);
        beside_dense(100);
    }

private:
    static constexpr Index n = 1000;

    void by_columns(Index vectors) {
        const matrix X = matrix::Random(n * n, vectors);
        const device dX(X);
        const auto row = [&](const char* name, const auto& on_device, const auto& on_host) {
            compare(
                name, vectors, X, [&](auto& dY) { dY.noalias() = on_device * dX; },
                [&](auto& Y) { Y.noalias() = on_host * X; }, on_device.rows(), vectors);
        };
        row("columns: kron(I, T)", kron(identity(n), T_), kron(identity(n), t_));
        row("columns: kron(T, I)", kron(T_, identity(n)), kron(t_, identity(n)));
        row("columns: kron(T, T)", kron(T_, T_), kron(t_, t_));
        row("columns: kron_sum(T, T)", kron_sum(T_, T_), kron_sum(t_, t_));
        row("columns: kron(I, R)", kron(identity(n), R_), kron(identity(n), r_));
        row("columns: kron(R, I)", kron(R_, identity(n)), kron(r_, identity(n)));
        row("columns: kron(W, I)", kron(W_, identity(n)), kron(w_, identity(n)));
        row("columns: kron(diagonal, I)", kron(d_.asDiagonal(), identity(n)), kron(d_.asDiagonal(), identity(n)));
        row("columns: kron(I, diagonal)", kron(identity(n), d_.asDiagonal()), kron(identity(n), d_.asDiagonal()));
    }

    void by_rows(Index vectors) {
        const matrix X = matrix::Random(vectors, n * n);
        const device dX(X);
        const auto row = [&](const char* name, const auto& on_device, const auto& on_host) {
            compare(
                name, vectors, X, [&](auto& dY) { dY.noalias() = dX * on_device; },
                [&](auto& Y) { Y.noalias() = X * on_host; }, vectors, on_device.cols());
        };
        row("rows: kron(I, T)", kron(identity(n), T_), kron(identity(n), t_));
        row("rows: kron(T, I)", kron(T_, identity(n)), kron(t_, identity(n)));
        row("rows: kron_sum(T, T)", kron_sum(T_, T_), kron_sum(t_, t_));
        row("rows: kron(I, R)", kron(identity(n), R_), kron(identity(n), r_));
    }

    void beside_dense(Index vectors) {
        const matrix A = matrix::Random(16, 16) / 4;
        const matrix B = matrix::Random(16, 16) / 4;
        const device dA(A);
        const device dB(B);
        const matrix X = matrix::Random(vectors, 16 * n * 16);
        const device dX(X);
        const auto row = [&](const char* name, const auto& on_device, const auto& on_host) {
            compare(
                name, vectors, X, [&](auto& dY) { dY.noalias() = dX * on_device; },
                [&](auto& Y) { Y.noalias() = X * on_host; }, vectors, on_device.cols());
        };
        row("rows: kron(A, T, B)", kron(dA, T_, dB), kron(A, t_, B));
        row("rows: kron(A, diagonal, B)", kron(dA, d_.asDiagonal(), dB), kron(A, d_.asDiagonal(), B));
        row("rows: kron(A, I, B)", kron(dA, identity(n), dB), kron(A, identity(n), B));
    }

    void compare(const char* name, Index vectors, const matrix& X, const std::function<void(device&)>& on_device,
                 const std::function<void(matrix&)>& on_host, Index rows, Index cols) const {
        if (std::string_view(name).substr(0, to_.only.size()) != to_.only) {
            return;
        }
        device dY(rows, cols);
        matrix Y(rows, cols);
        const auto work = [&] { on_device(dY); };
        const double once = otimes::bench::milliseconds_of(work, 3);
        const int count = std::clamp(static_cast<int>(4 / once), 2, 200);
        std::vector<double> times;
        for (int repeat = 0; repeat < 9; ++repeat) {
            times.push_back(1e3 * otimes::bench::milliseconds_of(work, count));
        }
        std::sort(times.begin(), times.end());
        on_host(Y);
        const double residual = static_cast<double>((dY.to_host() - Y).norm() / Y.norm());
        const double bound = 1e6 * static_cast<double>(X.size() + rows * cols) * sizeof(Scalar) / bytes_per_second;
        std::fprintf(to_.out, "%s,%s,%lld,%.2f,%.2f,%.2f,%.1e\n", name, sizeof(Scalar) == 4 ? "f32" : "f64",
                     static_cast<long long>(vectors), times[4], bound, times[4] / bound, residual);
        std::fflush(to_.out);
    }

    const output& to_;
    const Eigen::SparseMatrix<Scalar> t_ = second_differences<Scalar>(n);
    const Eigen::SparseMatrix<Scalar> r_ = scattered<Scalar>(n, n, 20);
    const Eigen::SparseMatrix<Scalar> w_ = scattered<Scalar>(3 * n, n, 4);
    const Eigen::Matrix<Scalar, Eigen::Dynamic, 1> d_ = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>::Random(n);
    const DeviceSparse<Scalar> T_{t_};
    const DeviceSparse<Scalar> R_{r_};
    const DeviceSparse<Scalar> W_{w_};
};

}  // namespace

int main(int argc, char** argv) try {
    output to;
    to.only = argc > 2 ? argv[2] : "";
    if (argc > 1) {
        to.out = std::fopen(argv[1], "w");
        if (to.out == nullptr) {
            std::perror(argv[1]);
            return 1;
        }
    }
    std::fprintf(to.out, "case,dtype,vectors,us,bound_us,ratio,residual\n");
    bench<float>(to).run();
    bench<double>(to).run();
    if (to.out != stdout) {
        std::fclose(to.out);
    }
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
