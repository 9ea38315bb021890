// SPDX-License-Identifier: MIT
// The forms of form_checks.hpp without a GPU: their programs by the reference's loops, and their launches by loops that do what kernels do.
#include "cuda/form_checks.hpp"
#include "no_cuda/launching_gpu.hpp"

#include <doctest/doctest.h>

namespace {

using namespace device_test;

template <class Use>
void on_both(const Use& use) {
    {
        const pretended_gpu gpu;
        {
            const otimes::scoped_executor here(gpu);
            use();
        }
        CHECK(gpu.in_use() == 0);
    }
    const launching_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        use();
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
