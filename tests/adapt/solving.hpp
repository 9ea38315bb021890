// SPDX-License-Identifier: MIT
// What the tests of solving share: matrices of known kinds, and how well a solution solves.
#pragma once

#include <algorithm>
#include <cstdint>

#include <Eigen/Core>

#include "adapt/helpers.hpp"

namespace adapt {

template <class Scalar>
matrix<Scalar> well_conditioned(Index n, std::uint64_t seed) {
    return random<matrix<Scalar>>(n, n, seed) + Scalar(3) * matrix<Scalar>::Identity(n, n);
}
template <class Scalar>
matrix<Scalar> positive(Index n, std::uint64_t seed) {
    const auto a = random<matrix<Scalar>>(n, n, seed);
    matrix<Scalar> spd = a * a.adjoint() + matrix<Scalar>::Identity(n, n);
    return spd;
}
template <class Scalar>
bool near_matrix(const matrix<Scalar>& got, const matrix<Scalar>& want, double tolerance) {
    return got.rows() == want.rows() && got.cols() == want.cols() &&
           distance_of<Scalar>(got, want) <= tolerance * (1 + want.norm());
}
template <class Got, class Want>
bool near(const Got& got, const Want& want, double tolerance = 1e-10) {
    using scalar =
        std::conditional_t<support::is_complex<typename Got::Scalar>, typename Got::Scalar, typename Want::Scalar>;
    return near_matrix<scalar>(evaluated_as<scalar>::of(got), evaluated_as<scalar>::of(want), tolerance);
}

inline matrix_d hilbert(Index n) {
    return matrix_d::NullaryExpr(n, n, [](Index i, Index j) { return 1.0 / static_cast<double>(i + j + 1); });
}

/// max |S x - b| in units of max |S|_inf |x| + |b|, by column.
template <class Scalar>
double backward_error(const matrix<Scalar>& s, const matrix<Scalar>& x, const matrix<Scalar>& b) {
    const double size = static_cast<double>(s.cwiseAbs().rowwise().sum().maxCoeff());
    double most = 0;
    for (Index j = 0; j < b.cols(); ++j) {
        const vector<Scalar> left = s * x.col(j) - b.col(j);
        most = (std::max)(most, static_cast<double>(left.cwiseAbs().maxCoeff()) /
                                    (size * static_cast<double>(x.col(j).cwiseAbs().maxCoeff()) +
                                     static_cast<double>(b.col(j).cwiseAbs().maxCoeff())));
    }
    return most;
}
inline matrix_d nearly_defective(double at) {
    matrix_d m(2, 2);
    m << at, 1, 0, at + 5e-8;
    return m;
}
/// Central differences of a convection: 2 on the diagonal, -1 - p below, -1 + p above.
inline matrix_d convection(Index n, double p) {
    matrix_d a = 2 * matrix_d::Identity(n, n);
    a.diagonal(-1).setConstant(-1 - p);
    a.diagonal(1).setConstant(-1 + p);
    return a;
}

}  // namespace adapt
