// SPDX-License-Identifier: MIT
// What the tests of the front end share: matrices of every kind, the oracle's kron of Eigen matrices, and an executor that
// counts what it is asked to run.
#pragma once

#include <atomic>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include "support/compare.hpp"
#include "support/once.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace adapt {

using Eigen::Index;

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
template <class Scalar>
using row_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
template <class Scalar>
using row_vector = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;

template <class Scalar>
using real_of = support::real_t<Scalar>;

using matrix_d = matrix<double>;
using row_major_d = row_major<double>;
using vector_d = vector<double>;
using row_vector_d = row_vector<double>;

// A matrix of signed unequal numbers; every seed gives another one.
template <class Matrix = matrix_d>
Matrix random(Index rows, Index cols, std::uint64_t seed) {
    return support::random_matrix<Matrix>(rows, cols, seed);
}
template <class Matrix = matrix_d>
Matrix poisoned(Index rows, Index cols) {
    return support::poisoned_matrix<Matrix>(rows, cols);
}

// The oracle's copy, in Wide.
template <class Wide, class Matrix>
oracle::dense<Wide> widened(const Matrix& m) {
    auto copy = oracle::from(m);
    if constexpr (std::is_same_v<decltype(copy), oracle::dense<Wide>>) {
        return copy;
    } else {
        return oracle::to_complex(copy);
    }
}

template <class... Matrices>
inline constexpr bool any_complex = (support::is_complex<support::scalar_of<Matrices>> || ...);
template <class... Matrices>
using wide_of = std::conditional_t<any_complex<Matrices...>, std::complex<long double>, long double>;

// kron(factors...) formed entry by entry by the oracle.
template <class... Matrices>
auto dense_kron(const Matrices&... factors) {
    using wide = wide_of<Matrices...>;
    return oracle::kron(std::vector<oracle::dense<wide>>{widened<wide>(factors)...});
}

// The product of oracle matrices and matrices, left to right.
template <class Matrix>
auto as_oracle(const Matrix& m) {
    return oracle::from(m);
}
template <class Wide>
const oracle::dense<Wide>& as_oracle(const oracle::dense<Wide>& m) {
    return m;
}
template <class First, class Second>
auto times(const First& a, const Second& b) {
    return oracle::multiply(as_oracle(a), as_oracle(b));
}
template <class First, class Second>
auto plus(const First& a, const Second& b) {
    return oracle::add(as_oracle(a), as_oracle(b));
}
template <class Factor, class Matrix>
auto scaled(Factor factor, const Matrix& a) {
    return oracle::scale(factor, as_oracle(a));
}

template <class Scalar>
real_of<Scalar> distance_of(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    return (a - b).norm();
}
// |a - b|, of what the expressions a and b are as matrices: every other expression of Eigen's that a check spells out costs the compiler
// up to a second.
template <class First, class Second>
auto distance(const First& a, const Second& b) {
    using scalar = std::conditional_t<support::is_complex<typename First::Scalar>, typename First::Scalar,
                                      typename Second::Scalar>;
    return distance_of<scalar>(matrix<scalar>(a), matrix<scalar>(b));
}

// Forwards to the cpu executor and counts.
class counting_executor final : public otimes::executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "counting"; }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return otimes::placement::cpu; }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view workspace) const override {
        ++runs_;
        otimes::cpu().run(p, b, workspace);
    }
    [[nodiscard]] int runs() const { return runs_.load(); }
    void reset() const { runs_ = 0; }

private:
    mutable std::atomic<int> runs_{0};
};

}  // namespace adapt
