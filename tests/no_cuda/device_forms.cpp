// SPDX-License-Identifier: MIT
// The forms of form_checks.hpp without a GPU: their programs by the reference's loops, and their launches by loops that do what kernels do.
#include "cuda/batch_checks.hpp"
#include "cuda/form_checks.hpp"
#include "no_cuda/launching_gpu.hpp"

#include <doctest/doctest.h>

namespace {

using namespace device_test;

template <class Use>
void run(const Use& use, const otimes::device_executor& gpu) {
    if constexpr (requires { use(gpu); }) {
        use(gpu);
    } else {
        use();
    }
}

template <class Use>
void on_both(const Use& use) {
    {
        const pretended_gpu gpu;
        {
            const otimes::scoped_executor here(gpu);
            run(use, gpu);
        }
        CHECK(gpu.in_use() == 0);
    }
    const launching_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        run(use, gpu);
    }
    CHECK(gpu.launches > 0);
    CHECK(gpu.in_use() == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("diagonal terms and factors in device memory", Scalar, double, std::complex<double>) {
    on_both([] { check_diagonals<Scalar>(); });
}

TEST_CASE_TEMPLATE("stacked matrices in device memory", Scalar, double, std::complex<double>) {
    on_both([] { check_stacked<Scalar>(); });
}

TEST_CASE_TEMPLATE("column norms in device memory, without the product", Scalar, double, std::complex<double>) {
    on_both([] { check_column_norms<Scalar>(); });
}

TEST_CASE_TEMPLATE("sparse matrices in device memory", Scalar, double, std::complex<double>) {
    on_both([] { check_sparse<Scalar>(); });
}

TEST_CASE_TEMPLATE("batches in device memory", Scalar, double, std::complex<double>) {
    on_both([](const otimes::device_executor& gpu) { check_batches<Scalar>(gpu); });
}

TEST_CASE_TEMPLATE("tkron1, tkron2 and tkron3 in device memory", Scalar, double, std::complex<double>) {
    on_both([](const otimes::device_executor& gpu) { check_tkron<Scalar>(gpu); });
}

TEST_CASE_TEMPLATE("contractions in device memory", Scalar, double, std::complex<double>) {
    on_both([](const otimes::device_executor& gpu) { check_contractions<Scalar>(gpu); });
}

TEST_CASE_TEMPLATE("row by row products in device memory", Scalar, double, std::complex<double>) {
    on_both([] { check_row_products<Scalar>(); });
}
