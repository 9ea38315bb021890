// SPDX-License-Identifier: MIT
// The first example of README.md: what stands between the markers is shown there word for word. Here it is compiled and
// run, and what it prints is checked.
#include <doctest/doctest.h>

#include <sstream>
#include <string>

#define main readme_first  // doctest brings the main of this program
// [readme-first]
#include <iostream>

#include <Eigen/Dense>
#include <otimes/otimes.hpp>

int main() {
    const Eigen::MatrixXd A = Eigen::MatrixXd::Random(8, 8);
    const Eigen::MatrixXd B = Eigen::MatrixXd::Random(8, 5);
    const Eigen::MatrixXd C = Eigen::MatrixXd::Random(4, 8);
    const Eigen::MatrixXd X = Eigen::MatrixXd::Random(100, 256);

    const auto K = otimes::kron(A, B, C);             // 256 x 320, an expression: nothing is computed or stored
    Eigen::MatrixXd Y = X * K;                        // factor by factor, in two passes over memory
    Y.noalias() += 2.0 * X * otimes::kron(A, B, -C);  // added in place, without a temporary

    std::cout << "error: " << (Y + X * K.toDenseMatrix()).norm() << '\n';
    std::cout << otimes::explain(X * K);  // how it is done, at what cost, and what was not chosen
    return 0;
}
// [/readme-first]
#undef main

TEST_CASE("the first example of the README") {
    std::ostringstream printed;
    std::streambuf* const screen = std::cout.rdbuf(printed.rdbuf());
    const int code = readme_first();
    std::cout.rdbuf(screen);
    CHECK(code == 0);

    const std::string text = printed.str();
    REQUIRE(text.rfind("error: ", 0) == 0);
    CHECK(std::stod(text.substr(7)) < 1e-9);
    CHECK(text.find("otimes plan: 3 factors") != std::string::npos);
}
