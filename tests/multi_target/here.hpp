// SPDX-License-Identifier: MIT
// Included by a.cpp and b.cpp: the same source, compiled for two instruction sets.
#pragma once

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include "run.hpp"

namespace {

// X * kron(A, B, A) with entries that are small integers, so that every instruction set gives the same bits.
inline target_result run_here() {
    Eigen::MatrixXd X(37, 6 * 4 * 6), A(6, 5), B(4, 9);
    const auto fill = [](Eigen::MatrixXd& m, int step) {
        for (Eigen::Index i = 0; i < m.size(); ++i) {
            m.data()[i] = static_cast<double>((i * step) % 11 - 5);
        }
    };
    fill(X, 7);
    fill(A, 3);
    fill(B, 5);
    Eigen::MatrixXd Y;
    for (int i = 0; i < 2; ++i) {
        Y = X * otimes::kron(A, B, A);
    }
    target_result result;
    result.executor = std::string(otimes::cpu().name());
    result.values.assign(Y.data(), Y.data() + Y.size());
    return result;
}

}  // namespace
