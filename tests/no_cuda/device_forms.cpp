// SPDX-License-Identifier: MIT
// The forms of form_checks.hpp without a GPU: their programs by the reference's loops, and their launches by loops that do what kernels do.
#include "cuda/batch_checks.hpp"
#include "cuda/form_checks.hpp"
#include "cuda/selection_checks.hpp"
#include "no_cuda/launching_gpu.hpp"
#include "support/once.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

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

TEST_CASE_TEMPLATE("diagonal terms and factors in device memory", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    on_both([] { check_diagonals<Scalar>(); });
}

TEST_CASE_TEMPLATE("stacked matrices in device memory", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    on_both([] { check_stacked<Scalar>(); });
}

TEST_CASE_TEMPLATE("column norms in device memory, without the product", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    on_both([] { check_column_norms<Scalar>(); });
}

TEST_CASE_TEMPLATE("sparse matrices in device memory", Scalar, OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    on_both([](const otimes::device_executor& gpu) {
        check_sparse<Scalar>();
        if (const auto* const launched = dynamic_cast<const launching_gpu*>(&gpu)) {
            CHECK(launched->from_tiles > 4);
            CHECK(launched->from_tiles_along > 1);
        }
    });
}

TEST_CASE_TEMPLATE("batches in device memory", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    on_both([](const otimes::device_executor& gpu) { check_batches<Scalar>(gpu); });
}

TEST_CASE_TEMPLATE("tkron1, tkron2 and tkron3 in device memory", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    on_both([](const otimes::device_executor& gpu) { check_tkron<Scalar>(gpu); });
}

TEST_CASE_TEMPLATE("contractions in device memory", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    on_both([](const otimes::device_executor& gpu) { check_contractions<Scalar>(gpu); });
}

TEST_CASE_TEMPLATE("row by row products in device memory", Scalar, OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    on_both([] { check_row_products<Scalar>(); });
}

TEST_CASE_TEMPLATE("selected rows and columns in device memory", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    on_both([] { check_selected<Scalar>(); });
}

TEST_CASE_TEMPLATE("norms of sums in device memory, without the sum", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    on_both([] { check_sum_norms<Scalar>(); });
}

TEST_CASE("evenly spaced items by pointers are one program, others one each") {
    const pretended_gpu gpu;
    const otimes::scoped_executor here(gpu);
    item_memory<double> x(60, 1), y(60, 2), a(6, 3);
    const auto evaluations_of = [&](std::int64_t third) {
        const std::vector<double*> from{x.data(0), x.data(7), x.data(third)}, to{y.data(3), y.data(9), y.data(15)};
        const int before = gpu.evaluations;
        otimes::batched(gpu, std::span<double* const>(to), 2, 3) =
            otimes::batched(gpu, std::span<double* const>(from), 2, 2) *
            kron(otimes::batched(gpu, a.data(), 2, 3, 3, 0));
        return gpu.evaluations - before;
    };
    CHECK(evaluations_of(14) == 1);
    CHECK(evaluations_of(15) == 3);
    CHECK(evaluations_of(0) == 3);
}

TEST_CASE("items with long factors of their own go by blocks, each factor with its rows") {
    launching_gpu gpu;
    gpu.all_kernels = true;
    const otimes::scoped_executor here(gpu);
    const std::int64_t rows = 40, p = 60, q = 50, count = 3;
    item_memory<double> x(count * (rows * p + 7), 1), a(count * (p * q + 5), 2), y(count * rows * q, 3);
    otimes::batched(gpu, y.data(), rows, q, count) = otimes::batched(gpu, x.data(), rows, p, count, rows * p + 7) *
                                                     kron(otimes::batched(gpu, a.data(), p, q, count, p * q + 5));
    y.fetch();
    CHECK(gpu.by_blocks == 1);
    for (std::int64_t i = 0; i < count; ++i) {
        const auto want =
            matrix<double, 0>(x.item(i * (rows * p + 7), rows, p, 1, rows) * a.item(i * (p * q + 5), p, q, 1, p));
        CHECK((y.item(i * rows * q, rows, q, 1, rows) - want).norm() <= 1e-12 * want.norm());
    }
}
