// SPDX-License-Identifier: MIT
// The forms of form_checks.hpp on a GPU.
#include "cuda/form_checks.hpp"

using namespace device_test;

TEST_CASE_TEMPLATE("diagonal terms and factors" * needs_gpu(), Scalar, float, double, std::complex<float>) {
    check_diagonals<Scalar>();
}

TEST_CASE_TEMPLATE("stacked matrices" * needs_gpu(), Scalar, float, std::complex<double>) { check_stacked<Scalar>(); }

TEST_CASE_TEMPLATE("column norms, without the product" * needs_gpu(), Scalar, float, double, std::complex<float>) {
    check_column_norms<Scalar>();
}

TEST_CASE_TEMPLATE("sparse matrices" * needs_gpu(), Scalar, float, double, std::complex<float>) {
    check_sparse<Scalar>();
}
