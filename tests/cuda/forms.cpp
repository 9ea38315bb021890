// SPDX-License-Identifier: MIT
// The forms of form_checks.hpp on a GPU.
#include "cuda/batch_checks.hpp"
#include "cuda/form_checks.hpp"
#include "cuda/selection_checks.hpp"

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

TEST_CASE_TEMPLATE("batches" * needs_gpu(), Scalar, float, std::complex<double>) {
    check_batches<Scalar>(otimes::gpu());
}

TEST_CASE_TEMPLATE("tkron1, tkron2 and tkron3" * needs_gpu(), Scalar, float, std::complex<double>) {
    check_tkron<Scalar>(otimes::gpu());
}

TEST_CASE_TEMPLATE("contractions" * needs_gpu(), Scalar, float, std::complex<double>) {
    check_contractions<Scalar>(otimes::gpu());
}

TEST_CASE_TEMPLATE("row by row products" * needs_gpu(), Scalar, float, std::complex<double>) {
    check_row_products<Scalar>();
}

TEST_CASE_TEMPLATE("selected rows and columns" * needs_gpu(), Scalar, float, std::complex<double>) {
    check_selected<Scalar>();
}

TEST_CASE_TEMPLATE("norms of sums, without the sum" * needs_gpu(), Scalar, float, double, std::complex<float>) {
    check_sum_norms<Scalar>();
}
