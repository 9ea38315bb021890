// SPDX-License-Identifier: MIT
// EXPECT: A list of factors, std::vector, std::array or std::span, stands alone
#include <list>
#include <otimes/otimes.hpp>
#include <vector>

Eigen::Index use(const std::list<Eigen::MatrixXd>& factors) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(factors).rows();
#else
    return otimes::kron(std::vector<Eigen::MatrixXd>(factors.begin(), factors.end())).rows();
#endif
}
