// SPDX-License-Identifier: MIT
// Instantiations for the ahead-of-time compiler, so that check.sh runs both compilers' code.
#include "fused_outer.cuh"
#include "fused_trailing.cuh"
#include "generic_sliced_multiply.cuh"

namespace otimes::kernels {

#define OTIMES_GENERIC(storage, accumulator)                                \
    template __global__ void generic_sliced_multiply<storage, accumulator>( \
        const __grid_constant__ sliced_multiply_arguments<storage, accumulator>)
OTIMES_GENERIC(float, float);
OTIMES_GENERIC(double, double);
OTIMES_GENERIC(complex<float>, complex<float>);
OTIMES_GENERIC(complex<double>, complex<double>);
OTIMES_GENERIC(half, float);
OTIMES_GENERIC(bfloat16, float);

using trailing_group = mode_group<float, 4, 1, 64, 6, 1, 0, 1, 1, extents<32, 32>, extents<32, 32>,
                                  trips<trip<2, 1, 1, 1>, trip<1, 1, 1, 1>>>;
template __global__ void fused_trailing<trailing_group>(const __grid_constant__ group_arguments<float>);
using outer_group = mode_group<double, 1, 64, 128, 4, 1, 0, 1, 1, extents<6, 6>, extents<6, 6>,
                               trips<trip<2, 1, 0, 1>, trip<1, 1, 0, 1>>>;
template __global__ void fused_outer<outer_group>(const __grid_constant__ group_arguments<double>);

}  // namespace otimes::kernels
