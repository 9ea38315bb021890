// SPDX-License-Identifier: MIT
// What the tests on a GPU share: shapes, oracle products, poisoned outputs, and skipping where there is no GPU.
#pragma once

#include <doctest/doctest.h>

#include <Eigen/Core>

#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/cuda.hpp>

#include "support/compare.hpp"
#include "support/random.hpp"

namespace device_test {

// True where a GPU works. OTIMES_TEST_NEEDS_GPU=1 makes a missing one a failure (device machines).
bool gpu_is_there();
inline auto needs_gpu() { return doctest::skip(!gpu_is_there()); }

template <class Scalar, int Order>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order>;

template <class Scalar>
Scalar nan() {
    return Scalar(std::numeric_limits<support::real_t<Scalar>>::quiet_NaN());
}

struct shapes {
    std::int64_t rows;
    std::vector<std::int64_t> p;
    std::vector<std::int64_t> q;
    std::int64_t inputs() const {
        std::int64_t n = 1;
        for (const std::int64_t e : p) n *= e;
        return n;
    }
    std::int64_t outputs() const {
        std::int64_t n = 1;
        for (const std::int64_t e : q) n *= e;
        return n;
    }
    std::string text() const {
        std::string t = std::to_string(rows) + " rows";
        for (std::size_t i = 0; i < p.size(); ++i) t += ", " + std::to_string(p[i]) + " x " + std::to_string(q[i]);
        return t;
    }
};

// Unequal, rectangular, odd, with extents 1 and 0, one factor, many factors, sizes of one and of several passes.
inline std::vector<shapes> test_shapes() {
    return {{3, {2, 3, 4}, {4, 2, 3}},
            {1, {5, 7}, {7, 5}},
            {17, {3, 3, 3}, {3, 3, 3}},
            {5, {1, 6, 1}, {1, 4, 3}},
            {4, {2, 3}, {1, 5}},
            {130, {8, 8, 8}, {8, 8, 8}},
            {65, {16, 16}, {16, 16}},
            {9, {32, 8}, {8, 32}},
            {6, {11}, {13}},
            {2, {2, 2, 2, 2, 2, 2, 2, 2}, {2, 2, 2, 2, 2, 2, 2, 2}},
            {3, {4, 4, 4, 4, 4, 4, 4}, {4, 4, 4, 4, 4, 4, 4}},
            {2, {24, 40, 8}, {16, 24, 8}},
            {2, {65, 52}, {20, 50}},
            {10, {52, 65}, {50, 20}},
            {37, {9, 14}, {11, 13}},
            {2, {64, 64}, {64, 64}},
            {0, {2, 3}, {3, 2}},
            {4, {0, 3}, {3, 2}},
            {4, {2, 3}, {3, 0}}};
}

template <class Matrix>
Matrix random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    Matrix m(rows, cols);
    support::random_stream stream(seed * 1000003 + static_cast<std::uint64_t>(rows * 131 + cols));
    for (Eigen::Index i = 0; i < m.rows(); ++i) {
        for (Eigen::Index j = 0; j < m.cols(); ++j) {
            using scalar = typename Matrix::Scalar;
            if constexpr (support::is_complex<scalar>) {
                using real = support::real_t<scalar>;
                m(i, j) = scalar(static_cast<real>(stream.signed_unit()), static_cast<real>(stream.signed_unit()));
            } else {
                m(i, j) = static_cast<scalar>(stream.signed_unit());
            }
        }
    }
    return m;
}

template <class Scalar>
std::vector<matrix<Scalar, 0>> random_factors(const shapes& s) {
    std::vector<matrix<Scalar, 0>> factors;
    for (std::size_t i = 0; i < s.p.size(); ++i) {
        factors.push_back(random_matrix<matrix<Scalar, 0>>(s.p[i], s.q[i], 100 + i));
    }
    return factors;
}

// The Kronecker product by its definition.
template <class Scalar>
matrix<Scalar, 0> dense_kron(const std::vector<matrix<Scalar, 0>>& factors) {
    matrix<Scalar, 0> k = matrix<Scalar, 0>::Ones(1, 1);
    for (const auto& f : factors) {
        matrix<Scalar, 0> next(k.rows() * f.rows(), k.cols() * f.cols());
        for (Eigen::Index i = 0; i < next.rows(); ++i) {
            for (Eigen::Index j = 0; j < next.cols(); ++j) {
                next(i, j) = k(i / f.rows(), j / f.cols()) * f(i % f.rows(), j % f.cols());
            }
        }
        k = next;
    }
    return k;
}

template <class Scalar>
struct wider {
    using type = double;
};
template <class Real>
struct wider<std::complex<Real>> {
    using type = std::complex<double>;
};

// X * kron(factors) in double: mode by mode, the last factor first, by plain loops.
template <class Matrix, class Factor>
auto expected_right(const Matrix& X, const std::vector<Factor>& factors) {
    using scalar = typename Matrix::Scalar;
    using wide = typename wider<scalar>::type;
    std::vector<std::int64_t> extents;
    for (const auto& f : factors) extents.push_back(f.rows());
    matrix<wide, 1> current = X.template cast<wide>();
    for (std::size_t k = factors.size(); k-- > 0;) {
        const auto& f = factors[k];
        std::int64_t before = 1, after = 1;
        for (std::size_t i = 0; i < factors.size(); ++i) (i < k ? before : after) *= i == k ? 1 : extents[i];
        matrix<wide, 1> next = matrix<wide, 1>::Zero(current.rows(), before * f.cols() * after);
        for (Eigen::Index m = 0; m < current.rows(); ++m) {
            for (std::int64_t a = 0; a < before; ++a) {
                for (std::int64_t p = 0; p < f.rows(); ++p) {
                    for (std::int64_t q = 0; q < f.cols(); ++q) {
                        const wide entry = static_cast<wide>(f(p, q));
                        for (std::int64_t c = 0; c < after; ++c) {
                            next(m, (a * f.cols() + q) * after + c) +=
                                current(m, (a * f.rows() + p) * after + c) * entry;
                        }
                    }
                }
            }
        }
        current = next;
        extents[k] = f.cols();
    }
    return matrix<scalar, 0>(current.template cast<scalar>());
}

// Norm-wise agreement; NaN and wrong shapes fail.
template <class Got, class Want>
bool agrees(const Got& got, const Want& want, const shapes& s) {
    if (got.rows() != want.rows() || got.cols() != want.cols()) return false;
    if (got.size() == 0) return true;
    const auto limit = static_cast<double>(
        support::tolerance<typename Got::Scalar>(static_cast<std::size_t>(std::max<std::int64_t>(1, s.inputs()))));
    const double distance = static_cast<double>((got - want).norm());
    const double size = static_cast<double>(want.norm());
    const bool close = distance <= limit * size;
    if (!close) MESSAGE("distance " << distance << " of " << size << ", limit " << limit * size);
    return close;
}

template <class Device>
void poison(Device& y) {
    using scalar = typename Device::Scalar;
    y = matrix < scalar, Device::IsRowMajor ? 1 : 0 > ::Constant(y.rows(), y.cols(), nan<scalar>()).eval();
}

template <class Use>
void for_orders(const Use& use) {
    use(std::integral_constant<int, 0>{});
    use(std::integral_constant<int, 1>{});
}

}  // namespace device_test

namespace otimes_test {

// A column-major host matrix of 16-bit numbers with the few members that a copy needs.
template <class Storage>
class narrow_matrix {
public:
    using Scalar = Storage;
    using PlainObject = narrow_matrix;
    static constexpr int Flags = otimes::device::direct_access_flag;
    narrow_matrix(std::int64_t rows, std::int64_t cols)
        : rows_(rows), cols_(cols), data_(static_cast<std::size_t>(rows * cols)) {}
    explicit narrow_matrix(const Eigen::MatrixXf& m) : narrow_matrix(m.rows(), m.cols()) {
        for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = Storage(m.data()[i]);
    }
    std::int64_t rows() const { return rows_; }
    std::int64_t cols() const { return cols_; }
    std::int64_t innerStride() const { return 1; }
    std::int64_t outerStride() const { return rows_; }
    Storage* data() { return data_.data(); }
    const Storage* data() const { return data_.data(); }
    const narrow_matrix& eval() const { return *this; }
    Eigen::MatrixXf wide() const {
        Eigen::MatrixXf m(rows_, cols_);
        for (std::size_t i = 0; i < data_.size(); ++i) m.data()[i] = static_cast<float>(data_[i]);
        return m;
    }
    template <class Device>
    void copy_to_device(Device& d) const {
        d = *this;
    }

private:
    std::int64_t rows_, cols_;
    std::vector<Storage> data_;
};

}  // namespace otimes_test
