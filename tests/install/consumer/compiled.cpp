// SPDX-License-Identifier: MIT
// A file that uses the compiled library: every scalar that it holds, factors with structure, sums, plans and texts.
#include <otimes/algebra.hpp>
#include <otimes/otimes.hpp>

#include <complex>
#include <string>

#include <Eigen/Core>

#if !OTIMES_PLANNER_IN_LIBRARY || !OTIMES_EXECUTOR_IN_LIBRARY
#error "The target otimes::compiled must turn the library on."
#endif

namespace {

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

template <class Scalar>
bool products_agree() {
    using otimes::kron;
    const matrix<Scalar> a = matrix<Scalar>::Random(2, 3);
    const matrix<Scalar> b = matrix<Scalar>::Random(5, 4);
    const matrix<Scalar> x = matrix<Scalar>::Random(7, 10);
    const matrix<Scalar> d = matrix<Scalar>::Random(5, 1);
    const auto k = kron(a, b);
    const auto near = [](const matrix<Scalar>& got, const matrix<Scalar>& want) {
        return (got - want).norm() <= 1e-5 * want.norm();
    };
    matrix<Scalar> y = x * k;
    bool good = near(y, x * k.toDenseMatrix());
    y.noalias() -= x * k * Scalar(2);
    good = good && near(y, -(x * k.toDenseMatrix()));
    const auto s = kron(a, b) + kron(Scalar(3) * a, b.cwiseAbs().template cast<Scalar>().eval());
    good = good && near(x * s, x * s.toDenseMatrix());
    const auto structured = kron(a, d.col(0).asDiagonal());
    good = good && near(x * structured, x * structured.toDenseMatrix());
    const otimes::plan p = otimes::make_plan(x * k);
    p.run(y, x * k);
    good = good && near(y, x * k.toDenseMatrix()) && otimes::plan_from_text(otimes::to_text(p)) == p;
    otimes::on(otimes::reference(), y) = x * k;
    return good && near(y, x * k.toDenseMatrix()) && otimes::explain(x * k).find("pass") != std::string::npos;
}

/// Decompositions of Eigen that the library holds, general and self-adjoint ones.
bool solves_agree() {
    matrix<double> a(2, 2);
    a << 3, -2, 2, 3;  // conjugate eigenvalues
    const matrix<double> b = matrix<double>::Identity(3, 3) + matrix<double>::Constant(3, 3, 0.5);
    const matrix<double> x = matrix<double>::Random(6, 2);
    const auto sum = otimes::kron_sum(a, b);
    const auto k = otimes::kron(a, b);
    return matrix<double>(sum * sum.solve(x) - x).norm() < 1e-12 && matrix<double>(k * k.solve(x) - x).norm() < 1e-12;
}

}  // namespace

bool with_the_library();
bool with_the_library() {
    return solves_agree() && products_agree<float>() && products_agree<double>() &&
           products_agree<std::complex<float>>() && products_agree<std::complex<double>>();
}
