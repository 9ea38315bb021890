// SPDX-License-Identifier: MIT
//
// How far does a car go on a gallon? Gaussian-process regression on the 392 cars of the Auto MPG data, with structured
// kernel interpolation (SKI, "KISS-GP").
//
// The model. A car x has seven features; y is its miles per gallon, standardised:
//
//     y = f(x) + e,   e ~ N(0, s2),   f ~ GP(0, k),   k(x, x') = v * prod_d exp(-(x_d - x'_d)^2 / (2 l_d^2))
//
// SKI lays a grid of 8 points along each feature and interpolates the kernel from the grid. k is a product over the
// features, so the kernel matrix of the whole grid, all 8^7 = 2 097 152 points of it, is a Kronecker product of seven
// 8 x 8 matrices, and the covariance of the n training cars becomes
//
//     A = W (v K_1 (x) ... (x) K_7) W^T + s2 I           W: n x 8^7, sparse, the interpolation weights
//
// which is one line of code (in `predict_interpolated`). A is never formed: everything here needs products A * X only.
//
// Training maximises log p(y | theta) = -1/2 y^T A^-1 y - 1/2 log|A| - n/2 log(2 pi) plus a log prior, over the
// lengthscales l, the signal variance v and the noise variance s2, by gradient steps. Solves, traces and the log
// determinant come from one batch of conjugate gradients a step, with y and 16 random probe vectors as right-hand
// sides.
//
// The check. The same model without the interpolation, by dense linear algebra, must predict as well.
//
//   A. G. Wilson, H. Nickisch: Kernel interpolation for scalable structured Gaussian processes (KISS-GP). ICML 2015.
//   K. Dong, D. Eriksson, H. Nickisch, D. Bindel, A. G. Wilson: Scalable log determinants for Gaussian process kernel
//     learning. NeurIPS 2017.
//   J. R. Gardner, G. Pleiss, D. Bindel, K. Q. Weinberger, A. G. Wilson: GPyTorch: blackbox matrix-matrix Gaussian
//     process inference with GPU acceleration. NeurIPS 2018.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Dense>
#include <Eigen/IterativeLinearSolvers>
#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>

#include "csv.hpp"

#if defined(OTIMES_EXAMPLE_ON_GPU)  // examples/gpu builds this file so, linked with otimes::cuda
#include <otimes/cuda.hpp>
#endif

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::RowVectorXd;
using Eigen::VectorXd;
template <class Scalar>
using dense_matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
template <class Scalar>
using sparse_weights = Eigen::SparseMatrix<Scalar, Eigen::RowMajor>;

// ---- Settings -------------------------------------------------------------------------------------------------------

constexpr int feature_count = 7;
constexpr int grid_points = 8;  // along each feature
constexpr int probe_count = 16;
constexpr int training_steps = 15;
constexpr double learning_rate = 0.1;
constexpr int preconditioner_rank = 40;
constexpr double training_tolerance = 1e-2;  // of a residual, relative; the gradient is a random estimate anyway
constexpr int training_iterations = 50;      // at most, for one batch of conjugate gradients
constexpr double solve_tolerance = 1e-8;
constexpr double rmse_tolerance = 0.02;

// Interpolation is good where the kernel is smooth on the scale of the grid. The prior says so: each lengthscale is
// log-normal around 4 grid steps, so that one of a single grid step lies almost three standard deviations away.
const double prior_log_lengthscale = std::log(4.0);
constexpr double prior_deviation = 0.5;

// Training multiplies in float: half the memory and half the time, and its error is far below the noise of the
// probes. The solve that the predictions rest on multiplies in double.
using training_scalar = float;

// ---- Data -----------------------------------------------------------------------------------------------------------

/// Where the grid of a feature lies. The values of the discrete features fall on grid points (of model_year, every
/// other), so they need no interpolation.
struct axis {
    const char* name;
    double first;
    double step;
};
constexpr std::array<axis, feature_count> axes = {{
    {"cylinders", 1, 1},       // 3, 4, 5, 6, 8
    {"displacement", 60, 60},  // 68 to 455 cubic inches
    {"horsepower", 40, 28},    // 46 to 230
    {"weight", 1600, 520},     // 1613 to 5140 pounds
    {"acceleration", 8, 2.5},  // 8 to 24.8 seconds to 60 mph
    {"model_year", 70, 2},     // 70 to 82
    {"origin", 1, 0.5},        // 1 USA, 2 Europe, 3 Japan
}};

/// A row of `features` for each car, in grid steps: 0 is the first grid point of the feature, 7 the last.
struct cars {
    MatrixXd features;
    VectorXd mpg;
};

cars read_cars(const std::string& path) {
    const std::vector<double> values = csv::read(path, 1 + feature_count, 2 * preconditioner_rank);
    const Index count = static_cast<Index>(values.size()) / (1 + feature_count);
    const Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, 1 + feature_count, Eigen::RowMajor>> table(
        values.data(), count, 1 + feature_count);
    cars result{table.rightCols(feature_count), table.col(0)};
    for (Index d = 0; d < feature_count; ++d) {
        const axis& a = axes[d];
        result.features.col(d) = (result.features.col(d).array() - a.first) / a.step;
    }
    return result;
}

/// Every fifth car is held out; the file is ordered by model year, so both parts see all years.
struct split {
    std::vector<Index> train;
    std::vector<Index> test;
};

split hold_out(Index count) {
    split s;
    for (Index i = 0; i < count; ++i) {
        (i % 5 == 0 ? s.test : s.train).push_back(i);
    }
    return s;
}

// ---- Interpolation --------------------------------------------------------------------------------------------------

/// One grid point and its weight.
struct weighted_point {
    Index point;
    double weight;
};

/// Cubic interpolation at `t` (in grid steps): the Lagrange polynomials of the four nearest grid points. A `t` on a
/// grid point needs that one only.
std::vector<weighted_point> interpolate(double t) {
    if (!(t >= 0.0 && t <= grid_points - 1)) {
        throw std::runtime_error("a feature lies outside its grid");
    }
    const Index first = std::clamp<Index>(static_cast<Index>(t) - 1, 0, grid_points - 4);
    std::vector<weighted_point> result;
    for (Index i = first; i < first + 4; ++i) {
        double weight = 1.0;
        for (Index j = first; j < first + 4; ++j) {
            if (j != i) {
                weight *= (t - static_cast<double>(j)) / static_cast<double>(i - j);
            }
        }
        if (weight != 0.0) {
            result.push_back({i, weight});
        }
    }
    return result;
}

/// W: row i interpolates at car i, by products of one-dimensional weights. Grid point (p_1, ..., p_7) has the number
/// that Kronecker products give it, the first feature outermost: ((p_1 * 8 + p_2) * 8 + ...) * 8 + p_7.
template <class Scalar>
sparse_weights<Scalar> interpolation_weights(const MatrixXd& features) {
    std::vector<Eigen::Triplet<Scalar>> entries;
    Index grid_size = 1;
    for (Index d = 0; d < feature_count; ++d) {
        grid_size *= grid_points;
    }
    for (Index i = 0; i < features.rows(); ++i) {
        std::vector<weighted_point> row = {{0, 1.0}};
        for (Index d = 0; d < feature_count; ++d) {
            std::vector<weighted_point> extended;
            for (const weighted_point& outer : row) {
                for (const weighted_point& inner : interpolate(features(i, d))) {
                    extended.push_back({outer.point * grid_points + inner.point, outer.weight * inner.weight});
                }
            }
            row = std::move(extended);
        }
        for (const weighted_point& p : row) {
            entries.emplace_back(static_cast<int>(i), static_cast<int>(p.point), static_cast<Scalar>(p.weight));
        }
    }
    sparse_weights<Scalar> w(features.rows(), grid_size);
    w.setFromTriplets(entries.begin(), entries.end());
    return w;
}

// ---- Kernel ---------------------------------------------------------------------------------------------------------

/// The logarithms of what is learned: seven lengthscales (in grid steps), signal variance, noise variance.
struct hyperparameters {
    VectorXd log_values = VectorXd::Zero(feature_count + 2);

    [[nodiscard]] double lengthscale(Index d) const { return std::exp(log_values[d]); }
    [[nodiscard]] double signal() const { return std::exp(log_values[feature_count]); }
    [[nodiscard]] double noise() const { return std::exp(log_values[feature_count + 1]); }
};

hyperparameters initial_hyperparameters() {
    hyperparameters theta;
    theta.log_values.head(feature_count).setConstant(prior_log_lengthscale);
    theta.log_values[feature_count] = std::log(2.0);
    theta.log_values[feature_count + 1] = std::log(0.1);
    return theta;
}

/// K_d[i, j] = exp(-(i - j)^2 / (2 l^2)), the kernel of one feature on its grid.
template <class Scalar>
dense_matrix<Scalar> grid_kernel(double lengthscale) {
    return dense_matrix<Scalar>::NullaryExpr(grid_points, grid_points, [=](Index i, Index j) {
        const double r = static_cast<double>(i - j) / lengthscale;
        return static_cast<Scalar>(std::exp(-0.5 * r * r));
    });
}

/// dK_d / d(log l) [i, j] = K_d[i, j] * (i - j)^2 / l^2.
template <class Scalar>
dense_matrix<Scalar> grid_kernel_slope(double lengthscale) {
    return dense_matrix<Scalar>::NullaryExpr(grid_points, grid_points, [=](Index i, Index j) {
        const double r = static_cast<double>(i - j) / lengthscale;
        return static_cast<Scalar>(r * r * std::exp(-0.5 * r * r));
    });
}

template <class Scalar>
std::vector<dense_matrix<Scalar>> grid_kernels(const hyperparameters& theta) {
    std::vector<dense_matrix<Scalar>> factors;
    for (Index d = 0; d < feature_count; ++d) {
        factors.push_back(grid_kernel<Scalar>(theta.lengthscale(d)));
    }
    return factors;
}

/// The kernel itself, between all cars of `a` and all of `b`: dense and without interpolation.
MatrixXd exact_kernel(const MatrixXd& a, const MatrixXd& b, const hyperparameters& theta) {
    MatrixXd squared_distance = MatrixXd::Zero(a.rows(), b.rows());
    for (Index d = 0; d < feature_count; ++d) {
        const auto difference = a.col(d).replicate(1, b.rows()) - b.col(d).transpose().replicate(a.rows(), 1);
        squared_distance += (difference / theta.lengthscale(d)).cwiseAbs2();
    }
    return theta.signal() * (-0.5 * squared_distance.array()).exp().matrix();
}

// ---- Preconditioner -------------------------------------------------------------------------------------------------

/// P = L L^T + s2 I, with L the first columns of a pivoted Cholesky decomposition of the kernel matrix (Gardner et
/// al. 2018, section 4.1). P is cheap to solve with and to sample from, and P^-1 A is nearly the identity.
class preconditioner {
public:
    preconditioner(const MatrixXd& features, const hyperparameters& theta)
        : noise_(theta.noise()), l_(MatrixXd::Zero(features.rows(), preconditioner_rank)) {
        VectorXd remaining = VectorXd::Constant(features.rows(), theta.signal());  // the diagonal of k - L L^T
        for (Index j = 0; j < l_.cols(); ++j) {
            Index pivot = 0;
            const double largest = remaining.maxCoeff(&pivot);
            const VectorXd column = exact_kernel(features, features.row(pivot), theta) - l_ * l_.row(pivot).transpose();
            l_.col(j) = column / std::sqrt(largest);
            remaining = (remaining - l_.col(j).cwiseAbs2()).cwiseMax(0.0);
        }
        inner_.compute(noise_ * MatrixXd::Identity(l_.cols(), l_.cols()) + l_.transpose() * l_);
    }

    /// P^-1 X = (X - L (s2 I + L^T L)^-1 L^T X) / s2.
    [[nodiscard]] MatrixXd solve(const MatrixXd& x) const {
        return (x - l_ * inner_.solve(l_.transpose() * x)) / noise_;
    }

    /// log|P| = log|s2 I + L^T L| + (n - rank) log s2.
    [[nodiscard]] double log_determinant() const {
        return 2.0 * inner_.matrixLLT().diagonal().array().log().sum() +
               static_cast<double>(l_.rows() - l_.cols()) * std::log(noise_);
    }

    /// Columns drawn from N(0, P).
    template <class Random>
    [[nodiscard]] MatrixXd sample(Index count, Random& random) const {
        std::normal_distribution<double> normal;
        const auto draw = [&](Index rows) {
            return MatrixXd::NullaryExpr(rows, count, [&]() { return normal(random); }).eval();
        };
        const MatrixXd shared = draw(l_.cols());
        return l_ * shared + std::sqrt(noise_) * draw(l_.rows());
    }

private:
    double noise_;
    MatrixXd l_;
    Eigen::LLT<MatrixXd> inner_;
};

// ---- Conjugate gradients for many right-hand sides ------------------------------------------------------------------

struct batch_solution {
    MatrixXd x;
    std::vector<RowVectorXd> step_lengths;  // alpha and beta of each iteration, one entry for each right-hand side
    std::vector<RowVectorXd> directions;
    double residual = 0.0;  // the largest of |b - A x| / |b|
};

RowVectorXd column_dots(const MatrixXd& a, const MatrixXd& b) { return a.cwiseProduct(b).colwise().sum(); }

/// Preconditioned conjugate gradients, each column for itself, with one product A * D an iteration for all of them.
template <class Operator>
batch_solution solve_batch(const Operator& a, const MatrixXd& b, const preconditioner& p) {
    using scalar = typename Operator::Scalar;
    batch_solution s;
    s.x = MatrixXd::Zero(b.rows(), b.cols());
    MatrixXd r = b;
    MatrixXd z = p.solve(r);
    MatrixXd d = z;
    RowVectorXd rz = column_dots(r, z);
    do {
        const dense_matrix<scalar> product = a * d.cast<scalar>();
        const MatrixXd ad = product.template cast<double>();
        const RowVectorXd alpha = rz.cwiseQuotient(column_dots(d, ad));
        s.x += d * alpha.asDiagonal();
        r -= ad * alpha.asDiagonal();
        z = p.solve(r);
        const RowVectorXd rz_before = std::exchange(rz, column_dots(r, z));
        const RowVectorXd beta = rz.cwiseQuotient(rz_before);
        d = z + d * beta.asDiagonal();
        s.step_lengths.push_back(alpha);
        s.directions.push_back(beta);
        s.residual = r.colwise().norm().cwiseQuotient(b.colwise().norm()).maxCoeff();
    } while (s.residual > training_tolerance && s.step_lengths.size() < training_iterations);
    return s;
}

/// e1^T log(T) e1 for the tridiagonal matrix T that the Lanczos process, hidden in conjugate gradients, has built for
/// one column (Dong et al. 2017; the coefficients as in Gardner et al. 2018, appendix A).
double lanczos_log(const batch_solution& s, Index column) {
    const Index n = static_cast<Index>(s.step_lengths.size());
    VectorXd diagonal(n);
    VectorXd off_diagonal(n - 1);
    double carried = 0.0;  // beta / alpha of the iteration before
    for (Index k = 0; k < n; ++k) {
        const double alpha = s.step_lengths[k][column];
        const double beta = s.directions[k][column];
        diagonal[k] = 1.0 / alpha + carried;
        carried = beta / alpha;
        if (k + 1 < n) {
            off_diagonal[k] = std::sqrt(beta) / alpha;
        }
    }
    Eigen::SelfAdjointEigenSolver<MatrixXd> eigen;
    eigen.computeFromTridiagonal(diagonal, off_diagonal);
    return eigen.eigenvectors().row(0).cwiseAbs2().dot(eigen.eigenvalues().array().log().matrix().transpose());
}

// ---- Log marginal likelihood ----------------------------------------------------------------------------------------

struct likelihood {
    double value = 0.0;
    VectorXd gradient;  // with respect to hyperparameters::log_values
    int iterations = 0;
    double residual = 0.0;
};

/// log p(y | theta) and its gradient,
///
///     d/dt log p = 1/2 a^T (dA/dt) a - 1/2 tr(A^-1 dA/dt),   a = A^-1 y,
///
/// where probes z ~ N(0, P) estimate the trace, tr(A^-1 D) = E[(A^-1 z)^T D (P^-1 z)], and the log determinant.
/// `interpolated` is W kron(factors) W^T. It borrows the factors, so it follows what is assigned to them here.
template <class Operator, class Scalar, class Random>
likelihood marginal_likelihood(const Operator& interpolated, std::vector<dense_matrix<Scalar>>& factors,
                               const MatrixXd& features, const VectorXd& y, const hyperparameters& theta,
                               Random& random) {
    for (Index d = 0; d < feature_count; ++d) {
        factors[d] = grid_kernel<Scalar>(theta.lengthscale(d));
    }
    const preconditioner p(features, theta);
    const Index n = y.size();
    MatrixXd b(n, probe_count + 1);
    b << p.sample(probe_count, random), y;
    const auto a =
        static_cast<Scalar>(theta.signal()) * interpolated + static_cast<Scalar>(theta.noise()) * otimes::identity();
    const batch_solution solution = solve_batch(a, b, p);

    const MatrixXd& left = solution.x;  // A^-1 z for each probe, then a
    MatrixXd right = p.solve(b);        // P^-1 z for each probe, then a
    right.col(probe_count) = left.col(probe_count);

    likelihood result;
    result.iterations = static_cast<int>(solution.step_lengths.size());
    result.residual = solution.residual;

    double log_determinant = p.log_determinant();
    for (Index i = 0; i < probe_count; ++i) {
        log_determinant += b.col(i).dot(right.col(i)) * lanczos_log(solution, i) / probe_count;
    }
    result.value = -0.5 * (y.dot(left.col(probe_count)) + log_determinant +
                           static_cast<double>(n) * std::log(2.0 * std::numbers::pi));

    // left^T (dA/dt) right, column by column, gives both terms of the gradient.
    const auto slope = [](const RowVectorXd& forms) {
        return 0.5 * forms[probe_count] - 0.5 * forms.head(probe_count).mean();
    };
    result.gradient.resize(theta.log_values.size());
    // dA/d(log l_d) is A without the noise and with the slope of K_d in the place of K_d.
    const dense_matrix<Scalar> columns = (theta.signal() * right).cast<Scalar>();
    for (Index d = 0; d < feature_count; ++d) {
        factors[d] = grid_kernel_slope<Scalar>(theta.lengthscale(d));
        const dense_matrix<Scalar> product = interpolated * columns;
        factors[d] = grid_kernel<Scalar>(theta.lengthscale(d));
        result.gradient[d] = slope(column_dots(left, product.template cast<double>()));
    }
    // dA/d(log s2) = s2 I, and dA/d(log v) = A - s2 I with left^T A = b^T: these two need no product.
    const RowVectorXd noise_forms = theta.noise() * column_dots(left, right);
    result.gradient[feature_count] = slope(column_dots(b, right) - noise_forms);
    result.gradient[feature_count + 1] = slope(noise_forms);
    return result;
}

/// The gradient of the log prior of the lengthscales.
VectorXd prior_gradient(const hyperparameters& theta) {
    VectorXd gradient = VectorXd::Zero(theta.log_values.size());
    gradient.head(feature_count) =
        (prior_log_lengthscale - theta.log_values.head(feature_count).array()) / (prior_deviation * prior_deviation);
    return gradient;
}

// ---- Training -------------------------------------------------------------------------------------------------------

/// Steps of Adam (Kingma and Ba 2015) uphill: each coordinate moves by about `learning_rate` at most.
class ascent {
public:
    [[nodiscard]] VectorXd step(const VectorXd& gradient) {
        constexpr double keep_first = 0.9;
        constexpr double keep_second = 0.99;
        if (count_++ == 0) {
            first_ = VectorXd::Zero(gradient.size());
            second_ = first_;
        }
        first_ = keep_first * first_ + (1.0 - keep_first) * gradient;
        second_ = keep_second * second_ + (1.0 - keep_second) * gradient.cwiseAbs2();
        const VectorXd mean = first_ / (1.0 - std::pow(keep_first, count_));
        const VectorXd spread = (second_ / (1.0 - std::pow(keep_second, count_))).cwiseSqrt();
        return learning_rate * mean.cwiseQuotient((spread.array() + 1e-8).matrix());
    }

private:
    int count_ = 0;
    VectorXd first_;
    VectorXd second_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

hyperparameters train(const MatrixXd& features, const VectorXd& y) {
    const auto start = std::chrono::steady_clock::now();
    const auto w = interpolation_weights<training_scalar>(features);
    std::printf("W is %td x %td with %.0f nonzeros a row\n\n", w.rows(), w.cols(),
                static_cast<double>(w.nonZeros()) / static_cast<double>(w.rows()));
    std::mt19937_64 random(1);
    hyperparameters theta = initial_hyperparameters();
    std::vector<dense_matrix<training_scalar>> factors = grid_kernels<training_scalar>(theta);
    const auto interpolated = w * otimes::kron(factors) * w.transpose();
    ascent adam;
    for (int step = 1; step <= training_steps; ++step) {
        const likelihood l = marginal_likelihood(interpolated, factors, features, y, theta, random);
        std::printf("step %2d of %d: log p(y) %8.2f, signal %.3f, noise %.4f, %2d CG iterations to %.1e, %5.1f s\n",
                    step, training_steps, l.value, theta.signal(), theta.noise(), l.iterations, l.residual,
                    seconds_since(start));
        std::fflush(stdout);
        if (l.residual > training_tolerance) {
            throw std::runtime_error("conjugate gradients did not reach their tolerance in training");
        }
        theta.log_values += adam.step(l.gradient + prior_gradient(theta));
    }
    std::printf("\nlengthscales in grid steps:");
    for (Index d = 0; d < feature_count; ++d) {
        std::printf(" %s %.2f", axes[d].name, theta.lengthscale(d));
    }
    std::printf("\n\n");
    return theta;
}

// ---- Prediction -----------------------------------------------------------------------------------------------------

struct prediction {
    VectorXd mean;
    double residual = 0.0;  // |y - A a| / |y|
};

/// E[f(test) | y] = W_test K W^T A^-1 y, by Eigen's conjugate gradients on the otimes operator.
prediction predict_interpolated(const MatrixXd& train, const VectorXd& y, const MatrixXd& test,
                                const hyperparameters& theta) {
    const auto w = interpolation_weights<double>(train);
    const auto w_test = interpolation_weights<double>(test);
    const auto factors = grid_kernels<double>(theta);
    const auto k = theta.signal() * otimes::kron(factors);
    const auto a = w * k * w.transpose() + theta.noise() * otimes::identity();

    Eigen::ConjugateGradient<std::remove_const_t<decltype(a)>, Eigen::Lower | Eigen::Upper,
                             Eigen::IdentityPreconditioner>
        cg(a);
    cg.setTolerance(0.5 * solve_tolerance);  // of its own recurrence for the residual; what counts is computed below
    const VectorXd weights = cg.solve(y);
    const VectorXd product = a * weights;
    const double residual = (y - product).norm() / y.norm();
    std::printf("Eigen's conjugate gradients: %td iterations, relative residual %.1e\n", cg.iterations(), residual);
    return {w_test * k * w.transpose() * weights, residual};
}

/// The same model without the grid: the dense kernel of all cars, and a Cholesky decomposition of its training block.
prediction predict_exactly(const MatrixXd& features, const split& s, const VectorXd& y, const hyperparameters& theta) {
    const MatrixXd kernel = exact_kernel(features, features, theta);
    const Index n = y.size();
    const MatrixXd a = kernel(s.train, s.train) + theta.noise() * MatrixXd::Identity(n, n);
    const Eigen::LLT<MatrixXd> cholesky(a);
    const VectorXd weights = cholesky.solve(y);
    const double log_p = -0.5 * y.dot(weights) - cholesky.matrixLLT().diagonal().array().log().sum() -
                         0.5 * static_cast<double>(n) * std::log(2.0 * std::numbers::pi);
    std::printf("Dense Cholesky decomposition: log p(y) %.2f\n", log_p);
    const MatrixXd test_by_train = kernel(s.test, s.train);
    return {test_by_train * weights, (y - a * weights).norm() / y.norm()};
}

double root_mean_square(const VectorXd& v) { return std::sqrt(v.squaredNorm() / static_cast<double>(v.size())); }

// ---- How long the Kronecker products take, and how they are done ----------------------------------------------------

/// Where the Kronecker products run: the one line that differs on a GPU. The matrices stay Eigen's, in host memory.
const otimes::executor& engine() {
#if defined(OTIMES_EXAMPLE_ON_GPU)
    return otimes::gpu();
#else
    return otimes::cpu();
#endif
}

/// An executor with a stopwatch.
class stopwatch_executor final : public otimes::executor {
public:
    explicit stopwatch_executor(const otimes::executor& timed) : timed_(timed) {}
    [[nodiscard]] std::string_view name() const noexcept override { return timed_.name(); }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return timed_.target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return timed_.where(); }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override { return timed_.plan_for(p); }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view workspace) const override {
        const auto start = std::chrono::steady_clock::now();
        timed_.run(p, b, workspace);
        seconds_ += seconds_since(start);
        flops_ += static_cast<double>(p.flops);
        ++runs_;
    }
    [[nodiscard]] double seconds() const { return seconds_; }
    [[nodiscard]] double flops() const { return flops_; }
    [[nodiscard]] int runs() const { return runs_; }

private:
    const otimes::executor& timed_;
    mutable double seconds_ = 0.0;  // this program multiplies in one thread at a time
    mutable double flops_ = 0.0;
    mutable int runs_ = 0;
};

/// The plan of the product that training spends its time in: the whole grid times 17 columns.
void print_plan(const hyperparameters& theta) {
    const auto factors = grid_kernels<training_scalar>(theta);
    const auto k = otimes::kron(factors);
    const dense_matrix<training_scalar> columns(k.cols(), probe_count + 1);  // a plan needs its shape, not its values
    std::printf("\nThe plan of K * X with %d columns:\n%s\n", probe_count + 1, otimes::explain(k * columns).c_str());
}

int run() {
    const auto start = std::chrono::steady_clock::now();
    Eigen::setNbThreads(1);  // what is worth a second thread are the Kronecker products, and those thread themselves
    const stopwatch_executor stopwatch(engine());
    const otimes::scoped_executor timed(stopwatch);

    const cars data = read_cars(OTIMES_EXAMPLE_DATA_DIR "/auto_mpg.csv");
    const split s = hold_out(data.mpg.size());
    const MatrixXd train_features = data.features(s.train, Eigen::seqN(0, feature_count));
    const MatrixXd test_features = data.features(s.test, Eigen::seqN(0, feature_count));
    const VectorXd train_mpg = data.mpg(s.train);
    const VectorXd test_mpg = data.mpg(s.test);
    const double mean = train_mpg.mean();
    const double deviation = root_mean_square(train_mpg.array() - mean);
    const VectorXd y = (train_mpg.array() - mean) / deviation;
    std::printf("%zu cars to learn from, %zu held out; %d features on %d grid points each\n", s.train.size(),
                s.test.size(), feature_count, grid_points);

    const hyperparameters theta = train(train_features, y);
    const prediction interpolated = predict_interpolated(train_features, y, test_features, theta);
    const prediction exact = predict_exactly(data.features, s, y, theta);
    print_plan(theta);

    const auto rmse = [&](const VectorXd& predicted) -> double {
        return root_mean_square((predicted * deviation).array() + mean - test_mpg.array());
    };
    const double rmse_interpolated = rmse(interpolated.mean);
    const double rmse_exact = rmse(exact.mean);
    const double difference = std::abs(rmse_interpolated / rmse_exact - 1.0);
    std::printf("Test RMSE in miles per gallon:\n");
    std::printf("  %.4f  interpolated kernel, Kronecker products\n", rmse_interpolated);
    std::printf("  %.4f  exact kernel, dense (differs by %.2f %%; %.0f %% are allowed)\n", rmse_exact,
                100.0 * difference, 100.0 * rmse_tolerance);
    std::printf("  %.4f  the mean of the training cars\n", root_mean_square(test_mpg.array() - mean));
    std::printf("Time: %.1f s, of which %.1f s in %d Kronecker products (%.0f GFLOP/s)\n", seconds_since(start),
                stopwatch.seconds(), stopwatch.runs(), stopwatch.flops() / stopwatch.seconds() * 1e-9);
    std::printf("Executor: %s\n", std::string(stopwatch.name()).c_str());

    if (!(interpolated.residual <= solve_tolerance)) {
        std::printf("FAILED: the residual of the solve, %.1e, exceeds %.1e\n", interpolated.residual, solve_tolerance);
        return 1;
    }
    if (!(difference <= rmse_tolerance)) {
        std::printf("FAILED: the test errors differ by more than %.0f %%\n", 100.0 * rmse_tolerance);
        return 1;
    }
    std::printf("OK\n");
    return 0;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        std::fprintf(stderr,
                     "usage: gp_auto_mpg, without arguments; it reads " OTIMES_EXAMPLE_DATA_DIR "/auto_mpg.csv\n");
        return 2;
    }
    try {
#if defined(OTIMES_EXAMPLE_ON_GPU)
        if (std::string why; otimes::find_gpu(&why) == nullptr) {
            std::printf("gp_auto_mpg on a GPU: skipped, %s\n", why.c_str());
            return 0;
        }
#endif
        return run();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "gp_auto_mpg: %s\n", e.what());
        return 1;
    }
}
