// SPDX-License-Identifier: MIT
//
// An image, blurred by a lens out of focus and noisy, is sharpened again.
//
// Where the blur is separable, the image X (rows by columns) is seen as B = A_v X A_h^T + noise, that is
//
//     vec_r(B) = (A_v (x) A_h) vec_r(X) + noise,
//
// with banded Toeplitz matrices for the Gaussian blur along columns and rows. Tikhonov regularisation with parameter l
//
//     min |K x - b|^2 + l^2 |x|^2,     x = V diag(s / (s^2 + l^2)) U^T b,     K = U diag(s) V^T,
//
// takes nothing but the singular values of the two factors (Hansen, Nagy, O'Leary: Deblurring Images, SIAM 2006). The same
// normal equations, (K^T K + l^2 I) x = K^T b, are solved a second time by conjugate gradients, and both must agree.
//
// Writes image_deblurring.png: the image, what the lens saw, and what was made of it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <type_traits>

#include <Eigen/Dense>
#include <Eigen/IterativeLinearSolvers>

#include <otimes/algebra.hpp>

#include "png.hpp"

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using picture = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;  // brightness in [0, 1]

constexpr Index height = 135;
constexpr Index width = 180;
constexpr double blur_vertical = 2.0;  // standard deviations, pixels
constexpr double blur_horizontal = 2.5;
constexpr double noise = 1e-3;
constexpr double regularisation = 6e-3;  // l
constexpr double agreement = 1e-6;
constexpr double least_gain = 4.0;  // decibels

/// A test image: a disc, a ring, bars that become finer, a ramp, and letters of blocks.
picture draw_scene() {
    picture x = picture::Constant(height, width, 0.1);
    for (Index i = 0; i < height; ++i) {
        for (Index j = 0; j < width; ++j) {
            const double disc = std::hypot(double(i) - 40.0, double(j) - 45.0);
            const double ring = std::hypot(double(i) - 92.0, double(j) - 48.0);
            if (disc < 25.0) {
                x(i, j) = 0.9;
            }
            if (ring > 18.0 && ring < 28.0) {
                x(i, j) = 0.65;
            }
            if (i > 15 && i < 60 && j > 90) {
                const Index period = 14 - 2 * ((j - 90) / 18);  // 14, 12, .. pixels
                x(i, j) = (j - 90) % period < period / 2 ? 0.95 : 0.2;
            }
            if (i >= 75 && i < 90 && j > 95 && j < 170) {
                x(i, j) = double(j - 95) / 75.0;
            }
            if (i >= 100 && i < 122 && j > 95 && j < 170 && ((i / 6) + (j / 9)) % 2 == 0) {
                x(i, j) = 0.8;
            }
        }
    }
    return x;
}

/// First column of the n x n matrix of a Gaussian blur; beyond the border the image is black.
VectorXd blur_column(Index n, double deviation) {
    VectorXd c = VectorXd::NullaryExpr(
        n, [=](Index i) { return std::exp(-0.5 * std::pow(static_cast<double>(i) / deviation, 2)); });
    return c / (2.0 * c.sum() - c(0));
}

/// Peak signal-to-noise ratio, decibels.
double psnr(const picture& x, const picture& truth) {
    return -10.0 * std::log10((x - truth).squaredNorm() / static_cast<double>(x.size()));
}

png::image to_image(std::initializer_list<const picture*> pictures) {
    constexpr Index margin = 6;
    png::image result(static_cast<Index>(pictures.size()) * (width + margin) + margin, height + 2 * margin,
                      {255, 255, 255});
    Index left = margin;
    for (const picture* p : pictures) {
        for (Index i = 0; i < height; ++i) {
            for (Index j = 0; j < width; ++j) {
                const auto grey = static_cast<std::uint8_t>(std::lround(255.0 * std::clamp((*p)(i, j), 0.0, 1.0)));
                result.at(left + j, margin + i) = {grey, grey, grey};
            }
        }
        left += width + margin;
    }
    return result;
}

int run(const std::string& path) {
    const picture truth = draw_scene();
    const VectorXd vertical = blur_column(height, blur_vertical);
    const VectorXd horizontal = blur_column(width, blur_horizontal);
    const auto k = otimes::kron(otimes::toeplitz(vertical, vertical), otimes::toeplitz(horizontal, horizontal));

    picture seen(height, width);
    otimes::vec_r(seen) = k * otimes::vec_r(truth);
    std::mt19937 random(7);
    std::normal_distribution<double> normal(0.0, noise);
    seen = seen.unaryExpr([&](double v) { return v + normal(random); });
    const VectorXd b = otimes::vec_r(seen).toVector();

    // By singular values.
    const otimes::kron_svd<double> svd(k);
    const VectorXd s = svd.singularValues();
    const VectorXd filter = s.array() / (s.array().square() + regularisation * regularisation);
    VectorXd coefficients = svd.matrixU().transpose() * b;
    coefficients.array() *= filter.array();
    const VectorXd x = svd.matrixV() * coefficients;
    const picture sharp = otimes::unvec_r(x, height, width);

    // By conjugate gradients on the normal equations.
    const auto normal_equations = k.transpose() * k + regularisation * regularisation * otimes::identity();
    const VectorXd right = k.transpose() * b;
    Eigen::ConjugateGradient<std::remove_const_t<decltype(normal_equations)>, Eigen::Lower | Eigen::Upper,
                             Eigen::IdentityPreconditioner>
        cg(normal_equations);
    cg.setTolerance(1e-10);
    cg.setMaxIterations(5000);
    const VectorXd iterated = cg.solve(right);
    const VectorXd residual = right - normal_equations * x;

    const double difference = (iterated - x).norm() / x.norm();
    const double gain = psnr(sharp, truth) - psnr(seen, truth);
    std::printf("%td x %td pixels; K is %td x %td, stored in %td numbers\n", height, width, k.rows(), k.cols(),
                2 * (height + width) - 2);
    std::printf("condition number of K: %.1e\n", s.maxCoeff() / s.minCoeff());
    std::printf("PSNR: %.2f dB as seen, %.2f dB sharpened\n", psnr(seen, truth), psnr(sharp, truth));
    std::printf("normal equations: residual %.1e; conjugate gradients (%td iterations) differ by %.1e\n",
                residual.norm() / right.norm(), cg.iterations(), difference);
    png::write(path, to_image({&truth, &seen, &sharp}));
    std::printf("truth, blurred and sharpened are in %s\n", path.c_str());

    if (!(residual.norm() <= 1e-10 * right.norm()) || !(difference <= agreement)) {
        std::printf("FAILED: the two solutions do not agree, or a residual exceeds its tolerance\n");
        return 1;
    }
    if (!(gain >= least_gain)) {
        std::printf("FAILED: the image has gained %.2f dB, less than %.1f\n", gain, least_gain);
        return 1;
    }
    std::printf("OK\n");
    return 0;
}

}  // namespace

/// Usage: image_deblurring [file.png]
int main(int argc, char** argv) {
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        std::fprintf(stderr, "usage: image_deblurring [file.png]\n");
        return 2;
    }
    try {
        return run(argc > 1 ? argv[1] : "image_deblurring.png");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "image_deblurring: %s\n", e.what());
        return 1;
    }
}
