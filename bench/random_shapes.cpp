// SPDX-License-Identifier: MIT
// Random products beside a chain of Eigen's products, one GEMM for each factor: finds shapes that the case table does not have and the
// planner does badly. As many threads as OpenMP starts, where it is compiled with it; least of seven.
//
//   random_shapes [SEED [COUNT]]            CSV: order of X and Y, order of the factors, type, factors, rows, threads, milliseconds, GFLOP/s, the chain's
//                                           milliseconds, their ratio, difference of the results relative to the chain's (Frobenius)
//   random_shapes of SHAPE ROWS [ROWS...]   the same of one shape (2048x16, 7>32x33>12), both orders of both, float and double
#include <Eigen/Dense>
#include <otimes/otimes.hpp>

#include "arguments.hpp"
#include "random_shapes.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace {

using Eigen::Index;
using otimes::bench::shape;
using otimes::bench::shapes;

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Work>
double least_seconds(const Work& work) {
    work();
    const double start = seconds_now();
    work();
    const int count = std::max(1, static_cast<int>(0.01 / std::max(seconds_now() - start, 1e-7)));
    double least = std::numeric_limits<double>::infinity();
    for (int repeat = 0; repeat < 7; ++repeat) {
        const double begin = seconds_now();
        for (int i = 0; i < count; ++i) {
            work();
        }
        least = std::min(least, (seconds_now() - begin) / count);
    }
    return least;
}

/// Modes in place, last factor first, without transposes. @return where the result is
template <class Scalar, int Order, int FactorOrder>
const Scalar* chain(const shape& s, const Scalar* x,
                    const std::vector<Eigen::Matrix<Scalar, -1, -1, FactorOrder>>& factors,
                    std::array<std::vector<Scalar>, 2>& buffers) {
    using rows = Eigen::Matrix<Scalar, -1, -1, Eigen::RowMajor>;
    std::vector<Index> extents = s.p;
    int next = 0;
    for (std::size_t i = extents.size(); i-- > 0;) {
        Index outer = Order == Eigen::RowMajor ? s.rows : 1;
        Index inner = Order == Eigen::RowMajor ? 1 : s.rows;
        for (std::size_t k = 0; k < extents.size(); ++k) {
            (k < i ? outer : inner) *= k == i ? 1 : extents[k];
        }
        Scalar* const y = buffers[static_cast<std::size_t>(next)].data();
        const Index p = s.p[i];
        const Index q = s.q[i];
        if (inner == 1) {
            Eigen::Map<rows>(y, outer, q).noalias() = Eigen::Map<const rows>(x, outer, p) * factors[i];
        } else {
            for (Index o = 0; o < outer; ++o) {
                Eigen::Map<rows>(y + o * q * inner, q, inner).noalias() =
                    factors[i].transpose() * Eigen::Map<const rows>(x + o * p * inner, p, inner);
            }
        }
        extents[i] = q;
        x = y;
        next = 1 - next;
    }
    return x;
}

const char* name_of(int order) { return order == Eigen::RowMajor ? "rows" : "columns"; }

template <class Scalar, int Order, int FactorOrder>
void measure(const shape& s) {
    using matrix = Eigen::Matrix<Scalar, -1, -1, Order>;
    std::vector<Eigen::Matrix<Scalar, -1, -1, FactorOrder>> factors;
    double flops = 0;
    Index extent = shape::product(s.p);
    Index most = extent;
    for (std::size_t i = 0; i < s.p.size(); ++i) {
        factors.emplace_back(Eigen::Matrix<Scalar, -1, -1, FactorOrder>::Random(s.p[i], s.q[i]));
    }
    for (std::size_t i = s.p.size(); i-- > 0;) {
        flops += 2.0 * static_cast<double>(s.rows * extent) * static_cast<double>(s.q[i]);
        extent = extent / s.p[i] * s.q[i];
        most = std::max(most, extent);
    }
    const matrix X = matrix::Random(s.rows, shape::product(s.p));
    matrix Y = matrix::Constant(s.rows, shape::product(s.q), std::numeric_limits<Scalar>::quiet_NaN());
    std::array<std::vector<Scalar>, 2> buffers;
    for (std::vector<Scalar>& buffer : buffers) {
        buffer.assign(static_cast<std::size_t>(s.rows * most), Scalar(0));
    }
    const auto K = otimes::kron(factors);
    const Scalar* result = nullptr;
    const double ours = least_seconds([&] { Y.noalias() = X * K; });
    const double peer =
        least_seconds([&] { result = chain<Scalar, Order, FactorOrder>(s, X.data(), factors, buffers); });
    const Eigen::Map<const matrix> want(result, Y.rows(), Y.cols());
    std::printf("%s,%s,%s,%s,%lld,%d,%.5f,%.2f,%.5f,%.3f,%.1e\n", name_of(Order), name_of(FactorOrder),
                std::is_same_v<Scalar, float> ? "f32" : "f64", s.name().c_str(), static_cast<long long>(s.rows),
                static_cast<int>(otimes::host_machine().cpu.threads), ours * 1e3, flops / ours * 1e-9, peer * 1e3,
                peer / ours, static_cast<double>((Y - want).norm() / want.norm()));
    std::fflush(stdout);
}

template <int Order>
void measure_all(const shape& s) {
    measure<float, Order, Eigen::RowMajor>(s);
    measure<float, Order, Eigen::ColMajor>(s);
    measure<double, Order, Eigen::RowMajor>(s);
    measure<double, Order, Eigen::ColMajor>(s);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv,
                                         "random_shapes [SEED [COUNT]] | random_shapes of SHAPE ROWS [ROWS...]", 20);
    const bool of_one = std::string_view(words.text(1)) == "of";
    if (of_one ? argc < 4 : argc > 3) {
        words.refuse();
    }
    std::printf("order,factor_order,dtype,factors,rows,threads,ms,gflops,eigen_chain_ms,ratio,difference\n");
    for (int k = 3; of_one && k < argc; ++k) {
        shape s;
        try {
            s = shape::named(words.text(2), static_cast<Index>(words.number(k, 1)));
        } catch (const std::exception&) {  // std::stoll's, of what is no number
            words.refuse();
        }
        measure_all<Eigen::RowMajor>(s);
        measure_all<Eigen::ColMajor>(s);
    }
    if (of_one) {
        return 0;
    }
    shapes random(static_cast<unsigned>(words.number(1, 1, 0)));
    const std::int64_t count = words.number(2, 140);
    for (std::int64_t i = 0; i < count; ++i) {
        const shape s = random.draw(static_cast<int>(i % 7));
        switch (random.pick(0, 3)) {
            case 0: measure<float, Eigen::RowMajor, Eigen::RowMajor>(s); break;
            case 1: measure<double, Eigen::RowMajor, Eigen::RowMajor>(s); break;
            case 2: measure<float, Eigen::ColMajor, Eigen::RowMajor>(s); break;
            default: measure<double, Eigen::ColMajor, Eigen::RowMajor>(s); break;
        }
    }
    return 0;
}
