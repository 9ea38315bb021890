// SPDX-License-Identifier: MIT
//
// Two quantum circuits whose outcomes are known, gate by gate as Kronecker products with identities.
//
// A register of n qubits is a vector of 2^n amplitudes; a gate G on neighbouring qubits k, k + 1, .. is the matrix
// I (x) .. (x) G (x) .. (x) I. An identity factor costs nothing, so a gate on one qubit is one pass over the amplitudes.
//
// * GHZ: a Hadamard gate on the first qubit, then controlled-nots down the line. The outcomes 00..0 and 11..1 have
//   probability 1/2 each, all others 0.
// * Grover's search (1996): of 2^n entries one is marked. After k rounds of marking and diffusion
//   the marked one is found with probability sin^2((2 k + 1) asin(2^(-n/2))).

#include <chrono>
#include <cmath>
#include <complex>
#include <cstdio>
#include <exception>
#include <numbers>

#include <Eigen/Dense>

#include <otimes/otimes.hpp>

namespace {

using Eigen::Index;
using gate = Eigen::MatrixXcd;
using state = Eigen::VectorXcd;

constexpr Index ghz_qubits = 18;
constexpr Index search_qubits = 14;
constexpr Index marked = 0x1234;
constexpr double tolerance = 1e-12;

gate hadamard() {
    gate h(2, 2);
    h << 1, 1, 1, -1;
    return h * std::numbers::sqrt2 / 2.0;
}

/// Swaps the amplitudes of 10 and 11: flips the second qubit where the first one is set. No flops, no storage but 4 indices.
Eigen::PermutationMatrix<Eigen::Dynamic> controlled_not() {
    Eigen::PermutationMatrix<Eigen::Dynamic> p(4);
    p.indices() << 0, 1, 3, 2;
    return p;
}

/// `g` on qubits first, first + 1, .. of n; qubit 0 is the outermost factor.
template <class Gate>
auto on_qubits(const Gate& g, Index first, Index n) {
    const Index after = (Index{1} << n) / ((Index{1} << first) * g.rows());
    return otimes::kron(otimes::identity(Index{1} << first), g, otimes::identity(after));
}

state ground_state(Index n) { return state::Unit(Index{1} << n, 0); }

/// Largest deviation of the probabilities from those of a GHZ state.
double ghz() {
    state psi = ground_state(ghz_qubits);
    psi = on_qubits(hadamard(), 0, ghz_qubits) * psi;
    for (Index k = 0; k + 1 < ghz_qubits; ++k) {
        psi = on_qubits(controlled_not(), k, ghz_qubits) * psi;
    }
    Eigen::VectorXd expected = Eigen::VectorXd::Zero(psi.size());
    expected(0) = expected(psi.size() - 1) = 0.5;
    return (psi.cwiseAbs2() - expected).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
}

/// Largest deviation of the marked entry's probability, over the rounds, from the formula; and the norm's from 1.
double grover() {
    const auto all_hadamard = otimes::kron_power(hadamard(), search_qubits);
    const double angle = std::asin(std::pow(2.0, -0.5 * static_cast<double>(search_qubits)));
    const auto rounds = static_cast<Index>(std::numbers::pi / 4.0 / angle);

    state psi = all_hadamard * ground_state(search_qubits);
    double worst = 0.0;
    for (Index k = 1; k <= rounds; ++k) {
        psi(marked) = -psi(marked);
        psi = all_hadamard * psi;  // the diffusion, H (2 |0><0| - I) H
        psi = -psi;
        psi(0) = -psi(0);
        psi = all_hadamard * psi;
        const double expected = std::pow(std::sin(static_cast<double>(2 * k + 1) * angle), 2);
        for (const double deviation : {std::norm(psi(marked)) - expected, psi.norm() - 1.0}) {
            const double size = std::abs(deviation);
            worst = std::isnan(size) || size > worst ? size : worst;  // NaN is the worst, and stays
        }
    }
    std::printf("Grover, %td qubits: entry %td of %td found with probability %.6f after %td rounds\n", search_qubits,
                marked, psi.size(), std::norm(psi(marked)), rounds);
    return worst;
}

int run() {
    const auto start = std::chrono::steady_clock::now();
    const double of_ghz = ghz();
    std::printf("GHZ, %td qubits: largest deviation of a probability %.1e\n", ghz_qubits, of_ghz);
    const double of_grover = grover();
    std::printf("largest deviation from sin^2((2 k + 1) asin(2^(-n/2))) over all rounds: %.1e\n", of_grover);
    std::printf("Time: %.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (!(of_ghz <= tolerance) || !(of_grover <= tolerance)) {
        std::printf("FAILED: a probability deviates by more than %.1e\n", tolerance);
        return 1;
    }
    std::printf("OK\n");
    return 0;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        std::fprintf(stderr, "usage: quantum_circuit, without arguments\n");
        return 2;
    }
    try {
        return run();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "quantum_circuit: %s\n", e.what());
        return 1;
    }
}
