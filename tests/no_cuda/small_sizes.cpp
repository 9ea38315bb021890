// SPDX-License-Identifier: MIT
// The products of tests/cuda/small_sizes.hpp go by the kernels that they are there for.
#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <vector>

#include <otimes/otimes.hpp>

#include "cuda/small_sizes.hpp"
#include "no_cuda/launching_gpu.hpp"

using otimes::DeviceMatrix;
using namespace device_test;

namespace {

bool is(long_kernel kernel, const otimes::backend::launch& l, bool in_pieces) {
    if (kernel == long_kernel::few_fibres) {
        return l.sliced.fibres > 1;
    }
    if (l.kind != otimes::backend::launch_kind::sliced || !l.sliced.blocks) {
        return false;
    }
    const bool stays = l.sliced.blocks->staying_steps != 0, of_warpgroups = l.sliced.blocks->together != 0;
    switch (kernel) {
        case long_kernel::blocks: return !of_warpgroups;
        case long_kernel::warpgroup_blocks: return of_warpgroups && !stays;
        case long_kernel::pieces: return in_pieces;
        default: return stays;
    }
}

template <class Scalar, int Order>
void check_sizes(long_kernel kernel) {
    const launching_gpu gpu;
    for (const shapes& s : small_sizes_of(kernel)) {
        CAPTURE(s.text());
        CAPTURE(Order);
        const DeviceMatrix<Scalar, Order> dX(s.rows, s.inputs(), gpu);
        std::vector<DeviceMatrix<Scalar, Order>> dF;
        for (std::size_t k = 0; k < s.p.size(); ++k) {
            dF.emplace_back(s.p[k], s.q[k], gpu);
        }
        const otimes::plan p = otimes::make_plan<Order>(dX * otimes::kron(dF));
        const otimes::backend::launch_list list =
            otimes::backend::lower_to_launches(p, gpu.target().gpus.front(), true);
        const bool in_pieces = p.passes.front().tile.slices > 1;
        CHECK(
            std::ranges::any_of(list.slab, [&](const otimes::backend::launch& l) { return is(kernel, l, in_pieces); }));
    }
}
template <class Scalar>
void check_orders(long_kernel kernel) {
    check_sizes<Scalar, 0>(kernel);
    check_sizes<Scalar, 1>(kernel);
}

}  // namespace

TEST_CASE_TEMPLATE("small sizes of long factors go by the kernels that they are there for", Scalar, float, double) {
    for (const long_kernel kernel :
         {long_kernel::blocks, long_kernel::pieces, long_kernel::staying, long_kernel::few_fibres}) {
        CAPTURE(static_cast<int>(kernel));
        check_orders<Scalar>(kernel);
    }
}

TEST_CASE("small sizes of long factors: floats by warpgroups, complex ones") {
    check_orders<float>(long_kernel::warpgroup_blocks);
    check_orders<std::complex<float>>(long_kernel::blocks);
    check_orders<std::complex<double>>(long_kernel::blocks);
    check_orders<std::complex<float>>(long_kernel::few_fibres);
    check_orders<std::complex<double>>(long_kernel::few_fibres);
}
