// SPDX-License-Identifier: MIT
// Products of random shapes on a device against a chain of dense products by Eigen in double: one to five factors of 1 to 130, square or
// not, both sides and storage orders, `=`, `+=`, `-=`, adjoints, all element types. Each shape compiles kernels of its own, a second or two.
// OTIMES_TEST_SEED (else 1) draws others, for OTIMES_TEST_SECONDS (else 20).
#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/device_support.hpp"

using otimes::DeviceMatrix;
using otimes::kron;
using namespace device_test;

namespace {

// x * kron(factors), x row-major: one product for each factor, last factor first; each moves its mode to the front.
template <class Wide>
matrix<Wide, 1> chain(matrix<Wide, 1> x, const std::vector<matrix<Wide, 0>>& factors) {
    const Eigen::Index rows = x.rows();
    for (std::size_t k = factors.size(); k-- > 0;) {
        const matrix<Wide, 0>& f = factors[k];
        const Eigen::Index others = x.cols() / f.rows();
        matrix<Wide, 1> y(rows, others * f.cols());
        for (Eigen::Index i = 0; i < rows; ++i) {
            const Eigen::Map<const matrix<Wide, 1>> in(x.row(i).data(), others, f.rows());
            Eigen::Map<matrix<Wide, 1>>(y.row(i).data(), f.cols(), others) = (in * f).transpose();
        }
        x = std::move(y);
    }
    return x;
}

template <class Scalar>
constexpr bool is_narrow = std::is_same_v<Scalar, otimes::half> || std::is_same_v<Scalar, otimes::bfloat16>;

// In double, or double's complex type. 16-bit elements have a conversion to float alone.
template <class Wide, int Order, class Matrix>
matrix<Wide, Order> widened(const Matrix& m) {
    if constexpr (is_narrow<typename Matrix::Scalar>) {
        return m.template cast<float>().template cast<Wide>();
    } else {
        return m.template cast<Wide>();
    }
}

template <class Scalar, int Order>
matrix<Scalar, Order> random_elements(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    if constexpr (is_narrow<Scalar>) {
        return random_matrix<matrix<float, Order>>(rows, cols, seed).template cast<Scalar>();
    } else {
        return random_matrix<matrix<Scalar, Order>>(rows, cols, seed);
    }
}

template <class Scalar>
double epsilon_of() {
    if constexpr (is_narrow<Scalar>) {
        return std::is_same_v<Scalar, otimes::half> ? 0x1p-10 : 0x1p-7;
    } else {
        return std::numeric_limits<support::real_t<Scalar>>::epsilon();
    }
}

template <class Scalar, int XOrder, int YOrder>
void run(std::uint64_t seed) {
    static constexpr std::int64_t extents[] = {1,  2,  2,  3,  4,  4,  5,  6,  7,   8,   8,  9,  10,
                                               11, 12, 13, 15, 16, 16, 17, 20, 21,  24,  27, 30, 31,
                                               32, 33, 40, 48, 50, 64, 65, 72, 100, 128, 130};
    using wide = std::conditional_t<support::is_complex<Scalar>, std::complex<double>, double>;
    support::random_stream random(seed);
    const auto pick = [&] { return extents[random.integer(0, std::ssize(extents) - 1)]; };
    shapes s{1, {}, {}};
    const bool square = random.integer(0, 2) == 0;
    std::int64_t largest = 1;
    for (std::int64_t n = random.integer(1, 5); n > 0; --n) {
        const std::int64_t p = pick(), q = square ? p : pick();
        if (largest * std::max(p, q) > 1'000'000) break;
        largest *= std::max(p, q);
        s.p.push_back(p);
        s.q.push_back(q);
    }
    s.rows = std::min(random.integer(1, random.integer(0, 1) == 0 ? 4 : 300),
                      std::max<std::int64_t>(1, 4'000'000 / largest));
    const bool left = random.integer(0, 2) == 0, adjoint = random.integer(0, 3) == 0;
    const auto form = random.integer(0, 2);
    CAPTURE(s.text());
    CAPTURE(left);
    CAPTURE(adjoint);
    CAPTURE(form);

    // K as it is applied to rows of X; the factors as kron() takes them.
    std::vector<matrix<Scalar, 0>> factors;
    std::vector<matrix<wide, 0>> applied;
    for (std::size_t k = 0; k < s.p.size(); ++k) {
        const auto f = random_elements<Scalar, 0>(s.p[k], s.q[k], ++seed);
        const matrix<Scalar, 0> of_k = left ? matrix<Scalar, 0>(f.transpose()) : f;
        applied.push_back(widened<wide, 0>(f));
        factors.push_back(adjoint ? matrix<Scalar, 0>(of_k.adjoint()) : of_k);
    }
    const std::vector<DeviceMatrix<Scalar>> on_device(factors.begin(), factors.end());
    const auto rows = random_elements<Scalar, 1>(s.rows, s.inputs(), ++seed);
    const auto before = random_elements<Scalar, 1>(s.rows, s.outputs(), ++seed);
    const auto turned = [left](const auto& m) {
        return left ? matrix<Scalar, YOrder>(m.transpose()) : matrix<Scalar, YOrder>(m);
    };
    const DeviceMatrix<Scalar, XOrder> dX(left ? matrix<Scalar, XOrder>(rows.transpose())
                                               : matrix<Scalar, XOrder>(rows));
    DeviceMatrix<Scalar, YOrder> dY(turned(before));

    const auto K = kron(std::span<const DeviceMatrix<Scalar>>(on_device));
    const auto evaluate = [&](const auto& product) {
        if (form == 0) dY.noalias() = -product;
        if (form == 1) dY += product;
        if (form == 2) dY -= 2 * product;
    };
    const auto op = adjoint ? K.adjoint() : K;
    left ? evaluate(op * dX) : evaluate(dX * op);
    matrix<wide, 1> want = chain<wide>(widened<wide, 1>(rows), applied);
    want *= form == 1 ? 1.0 : form == 2 ? -2.0 : -1.0;
    if (form > 0) want += widened<wide, 1>(before);
    const matrix<Scalar, YOrder> got = dY.to_host();
    const matrix<wide, YOrder> expected = left ? matrix<wide, YOrder>(want.transpose()) : matrix<wide, YOrder>(want);
    // Roundings of each mode, and of the oracle, grow with the square root of its length.
    double roundings = 4;
    for (const std::int64_t p : s.p) roundings += std::sqrt(static_cast<double>(p));
    const double size = expected.norm() + widened<wide, 1>(before).norm();
    CHECK((widened<wide, YOrder>(got) - expected).norm() <= roundings * epsilon_of<Scalar>() * size);
}

}  // namespace

TEST_CASE("products of random shapes [long]" * needs_gpu()) {
    const auto number = [](const char* name, std::uint64_t otherwise) {
        const char* const text = std::getenv(name);
        return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
    };
    const std::uint64_t first = number("OTIMES_TEST_SEED", 1) * 100'000;
    const auto limit = std::chrono::seconds(number("OTIMES_TEST_SECONDS", 20));
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t seed = first;
    for (; std::chrono::steady_clock::now() - begin < limit; ++seed) {
        CAPTURE(seed);
        switch (seed % 10) {
            case 0: run<float, 0, 0>(seed); break;
            case 1: run<float, 1, 1>(seed); break;
            case 2: run<double, 0, 0>(seed); break;
            case 3: run<double, 1, 1>(seed); break;
            case 4: run<float, 0, 1>(seed); break;
            case 5: run<double, 1, 0>(seed); break;
            case 6: run<std::complex<float>, 1, 1>(seed); break;
            case 7: run<std::complex<double>, 0, 0>(seed); break;
            case 8: run<otimes::half, 0, 0>(seed); break;
            default: run<otimes::bfloat16, 1, 1>(seed);
        }
    }
    MESSAGE("random shapes of seeds " << first << " to " << seed - 1);
    CHECK(seed > first);
}
