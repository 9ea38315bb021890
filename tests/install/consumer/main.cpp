// SPDX-License-Identifier: MIT
#include <otimes/otimes.hpp>

#include <Eigen/Core>

Eigen::MatrixXd in_second_file(const Eigen::MatrixXd& x, const Eigen::MatrixXd& a, const Eigen::MatrixXd& b);

#if defined(CONSUMER_HAS_COMPILED)
bool with_the_library();
#else
static bool with_the_library() { return true; }
#endif

int main() {
    Eigen::MatrixXd a(2, 2);
    a << 1, 2, 3, -4;
    Eigen::MatrixXd b(1, 2);
    b << 5, 6;
    Eigen::MatrixXd x(1, 2);
    x << 7, -1;
    Eigen::MatrixXd expected(1, 4);  // x * kron(a, b), by hand
    expected << 20, 24, 90, 108;
    const Eigen::MatrixXd y = x * otimes::kron(a, b);
    return y == expected && in_second_file(x, a, b) == expected && with_the_library() ? 0 : 1;
}
