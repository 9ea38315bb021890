// SPDX-License-Identifier: MIT
//
// A year of Seattle's weather, an hour a cell: temperatures on a grid of 365 days by 24 hours. A tenth of the cells is
// hidden and recovered by exact Gaussian-process regression.
//
// The kernel is a product of one periodic kernel over the days and one over the hours (MacKay 1998),
//
//     k(t, t') = exp(-2 sin^2(pi (t - t') / period) / l^2),
//
// so that the covariance of all 8760 cells is a Kronecker product, v K_day (x) K_hour. Cells that are missing are no
// obstacle: with S the sparse 0/1 matrix that selects the cells that are known, the recovered field is
//
//     f = v K S^T (S v K S^T + s2 I)^-1 y,                K = K_day (x) K_hour
//
// (Wilson, Gilboa, Nehorai, Cunningham: Fast kernel learning for multidimensional pattern extrapolation. NeurIPS 2014).
// Written out dense, the matrix to invert would take half a gigabyte; here only K_day and K_hour are stored.
//
// Writes seattle_temperature.png: truth, what was left of it, and the reconstruction, from top to bottom.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <Eigen/Dense>
#include <Eigen/IterativeLinearSolvers>
#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>

#include "csv.hpp"
#include "png.hpp"

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;
/// A row for each day, a column for each hour; NaN where nothing is known. Stored by rows, so that the cells as one
/// vector are in the order of K_day (x) K_hour: the hour runs first.
using field = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using selection = Eigen::SparseMatrix<double, Eigen::RowMajor>;

constexpr Index hours_a_day = 24;
constexpr Index dense_days = 40;  // whose sub-grid is solved densely, too
constexpr double day_lengthscale = 0.15;
constexpr double hour_lengthscale = 0.5;
constexpr double signal_variance = 1.0;  // of the standardised temperatures
// Above the tenth of a degree that the file rounds to: it bounds the condition number, and so the number of iterations.
constexpr double noise_variance = 1e-2;
constexpr double dense_tolerance = 1e-6;
constexpr double solve_tolerance = 1e-8;

// ---- Data -----------------------------------------------------------------------------------------------------------

field read_temperatures(const std::string& path) {
    constexpr Index columns = 1 + hours_a_day;  // the number of the day, then its hours
    const std::vector<double> values = csv::read(path, columns, dense_days);
    return Eigen::Map<const field>(values.data(), static_cast<Index>(values.size()) / columns, columns)
        .rightCols(hours_a_day);
}

/// The field without a random tenth of its cells.
field with_holes(const field& truth) {
    field left = truth;
    std::mt19937 random(1);
    for (double& cell : left.reshaped<Eigen::RowMajor>()) {
        if (random() % 10 == 0) {
            cell = std::numeric_limits<double>::quiet_NaN();
        }
    }
    return left;
}

/// Numbers of the cells, counted along the rows, that are known.
std::vector<Index> known_cells(const field& f) {
    std::vector<Index> cells;
    for (Index i = 0; i < f.size(); ++i) {
        if (!std::isnan(f.data()[i])) {
            cells.push_back(i);
        }
    }
    return cells;
}

/// S: picks `cells` from a vector of `size`.
selection select(const std::vector<Index>& cells, Index size) {
    selection s(static_cast<Index>(cells.size()), size);
    s.reserve(Eigen::VectorXi::Constant(s.rows(), 1));
    for (Index i = 0; i < s.rows(); ++i) {
        s.insert(i, cells[i]) = 1.0;
    }
    s.makeCompressed();
    return s;
}

// ---- Gaussian process -----------------------------------------------------------------------------------------------

/// The periodic kernel between the first `count` points of a period.
MatrixXd periodic_kernel(Index count, Index period, double lengthscale) {
    return MatrixXd::NullaryExpr(count, count, [=](Index i, Index j) {
        const double s = std::sin(std::numbers::pi * static_cast<double>(i - j) / static_cast<double>(period));
        return std::exp(-2.0 * s * s / (lengthscale * lengthscale));
    });
}

struct recovered {
    VectorXd cells;  // of the whole grid
    Index iterations = 0;
    double residual = 0.0;  // |y - A a| / |y|
};

/// E[f | y] on the whole grid, for observations y of the cells that `s` selects.
recovered recover(const MatrixXd& k_day, const MatrixXd& k_hour, const selection& s, const VectorXd& y) {
    const auto k = signal_variance * otimes::kron(k_day, k_hour);
    const auto a = s * k * s.transpose() + noise_variance * otimes::identity();

    Eigen::ConjugateGradient<std::remove_const_t<decltype(a)>, Eigen::Lower | Eigen::Upper,
                             Eigen::IdentityPreconditioner>
        cg(a);
    cg.setTolerance(0.5 * solve_tolerance);  // of its own recurrence for the residual; what counts is computed below
    const VectorXd weights = cg.solve(y);
    const VectorXd product = a * weights;
    const VectorXd spread = s.transpose() * weights;
    return {k * spread, cg.iterations(), (y - product).norm() / y.norm()};
}

/// The largest difference between `recover` and the same formula by dense matrices, on the first days of the year.
double difference_from_dense(const field& standardised, Index days) {
    const field part = standardised.topRows(days);
    const std::vector<Index> known = known_cells(part);
    const VectorXd y = part.reshaped<Eigen::RowMajor>()(known);
    const MatrixXd k_day = periodic_kernel(days, standardised.rows(), day_lengthscale);
    const MatrixXd k_hour = periodic_kernel(hours_a_day, hours_a_day, hour_lengthscale);
    const recovered lazy = recover(k_day, k_hour, select(known, part.size()), y);

    MatrixXd k(part.size(), part.size());  // entry by entry, from the definition
    for (Index i = 0; i < k.rows(); ++i) {
        for (Index j = 0; j < k.cols(); ++j) {
            k(i, j) =
                signal_variance * k_day(i / hours_a_day, j / hours_a_day) * k_hour(i % hours_a_day, j % hours_a_day);
        }
    }
    const MatrixXd a = k(known, known) + noise_variance * MatrixXd::Identity(y.size(), y.size());
    const VectorXd weights = a.llt().solve(y);
    const VectorXd dense = k(Eigen::seqN(0, k.rows()), known) * weights;
    std::printf("sub-grid of %td days, %td known cells: residual %.1e with Kronecker products, %.1e dense\n", days,
                y.size(), lazy.residual, (y - a * weights).norm() / y.norm());
    return (lazy.cells - dense).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
}

// ---- Image ----------------------------------------------------------------------------------------------------------

/// Blue over white-ish yellow to red, for t in [0, 1] (the eleven colours of ColorBrewer's RdYlBu, reversed).
png::color color_of(double t) {
    constexpr std::array<png::color, 11> stops = {{{49, 54, 149},
                                                   {69, 117, 180},
                                                   {116, 173, 209},
                                                   {171, 217, 233},
                                                   {224, 243, 248},
                                                   {255, 255, 191},
                                                   {254, 224, 144},
                                                   {253, 174, 97},
                                                   {244, 109, 67},
                                                   {215, 48, 39},
                                                   {165, 0, 38}}};
    const double position = std::clamp(t, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
    const auto below = std::min(static_cast<std::size_t>(position), stops.size() - 2);
    const double part = position - static_cast<double>(below);
    png::color result{};
    for (std::size_t c = 0; c < result.size(); ++c) {
        result[c] = static_cast<std::uint8_t>(std::lround((1.0 - part) * stops[below][c] + part * stops[below + 1][c]));
    }
    return result;
}

/// The fields below one another, the year from left to right, the day from top (midnight) to bottom; holes are black.
png::image draw(const std::vector<field>& fields, double coldest, double warmest) {
    constexpr Index cell_width = 3;
    constexpr Index cell_height = 10;
    constexpr Index margin = 12;
    const Index panel_height = hours_a_day * cell_height;
    const Index count = static_cast<Index>(fields.size());
    png::image picture(fields[0].rows() * cell_width + 2 * margin, count * (panel_height + margin) + margin,
                       {255, 255, 255});
    for (Index f = 0; f < count; ++f) {
        const Index top = margin + f * (panel_height + margin);
        for (Index y = 0; y < panel_height; ++y) {
            for (Index x = 0; x < fields[f].rows() * cell_width; ++x) {
                const double value = fields[f](x / cell_width, y / cell_height);
                picture.at(margin + x, top + y) =
                    std::isnan(value) ? png::color{0, 0, 0} : color_of((value - coldest) / (warmest - coldest));
            }
        }
    }
    return picture;
}

// ---------------------------------------------------------------------------------------------------------------------

double root_mean_square(const VectorXd& v) { return std::sqrt(v.squaredNorm() / static_cast<double>(v.size())); }

int run(const std::string& picture_path) {
    const auto start = std::chrono::steady_clock::now();
    const field truth = read_temperatures(OTIMES_EXAMPLE_DATA_DIR "/seattle_hourly_temperature.csv");
    const field left = with_holes(truth);
    const std::vector<Index> known = known_cells(left);
    const VectorXd seen = left.reshaped<Eigen::RowMajor>()(known);
    const double mean = seen.mean();
    const double deviation = root_mean_square(seen.array() - mean);
    const field standardised = (left.array() - mean) / deviation;
    const VectorXd y = standardised.reshaped<Eigen::RowMajor>()(known);

    const MatrixXd k_day = periodic_kernel(truth.rows(), truth.rows(), day_lengthscale);
    const MatrixXd k_hour = periodic_kernel(hours_a_day, hours_a_day, hour_lengthscale);
    const recovered result = recover(k_day, k_hour, select(known, truth.size()), y);
    const field reconstruction =
        (Eigen::Map<const field>(result.cells.data(), truth.rows(), truth.cols()) * deviation).array() + mean;
    std::printf("%td of %td cells known; %td CG iterations, relative residual %.1e\n", y.size(), truth.size(),
                result.iterations, result.residual);

    std::vector<double> errors;
    for (Index i = 0; i < truth.size(); ++i) {
        if (std::isnan(left.data()[i]) && !std::isnan(truth.data()[i])) {
            errors.push_back(reconstruction.data()[i] - truth.data()[i]);
        }
    }
    const double rmse = root_mean_square(Eigen::Map<const VectorXd>(errors.data(), static_cast<Index>(errors.size())));
    std::printf("RMSE on the %zu hidden cells: %.3f degrees Celsius (standard deviation of the temperatures: %.2f)\n",
                errors.size(), rmse, deviation);
    const double difference = difference_from_dense(standardised, dense_days);
    std::printf("largest difference from the dense solution there: %.1e standard deviations\n", difference);

    png::write(picture_path, draw({truth, left, reconstruction}, seen.minCoeff(), seen.maxCoeff()));
    std::printf("truth, holes and reconstruction are in %s\n", picture_path.c_str());
    std::printf("Time: %.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());

    if (!(result.residual <= solve_tolerance)) {
        std::printf("FAILED: the residual of the solve exceeds %.1e\n", solve_tolerance);
        return 1;
    }
    if (!(difference <= dense_tolerance)) {
        std::printf("FAILED: the dense solution differs by more than %.1e\n", dense_tolerance);
        return 1;
    }
    if (!(rmse <= 0.1 * deviation)) {
        std::printf("FAILED: the hidden cells are not recovered to a tenth of the standard deviation\n");
        return 1;
    }
    std::printf("OK\n");
    return 0;
}

}  // namespace

/// Usage: seattle_temperature [file.png]
int main(int argc, char** argv) {
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        std::fprintf(stderr, "usage: seattle_temperature [file.png]\n");
        return 2;
    }
    try {
        return run(argc > 1 ? argv[1] : "seattle_temperature.png");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "seattle_temperature: %s\n", e.what());
        return 1;
    }
}
