// SPDX-License-Identifier: MIT
// The rungs of the ladder on the GPU. Prints CSV as ladder_cpu.cpp does, after a rung "copy": the time of a device copy of X to Y,
// which is the bound. The first four kernels are written here, plainly, to show what each technique brings; the others are the
// library's (kernels/), with one choice changed from rung to rung. All are timed warm, median of 20 launches between events.
#include <cstdlib>
#include <limits>

#include "fused_trailing.cuh"
#include "ladder_case.hpp"

namespace {

using namespace otimes::kernels;
constexpr int n = ladder::factor_order;
constexpr int K = int(ladder::columns);

void check(cudaError_t status) {
    if (status != cudaSuccess) {
        std::fprintf(stderr, "ladder_gpu: %s\n", cudaGetErrorString(status));
        std::exit(2);
    }
}

// Y[r, j] = sum_i X[r, i] * prod_k F_k[i_k, j_k]: a thread for each entry of Y, 32768 terms each.
__global__ void naive(const float* x, const float* f, float* y) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    const long long row = at / K;
    const int j = int(at % K);
    float sum = 0.0f;
    for (int i = 0; i < K; ++i) {
        float product = x[row * K + i];
        for (int k = ladder::factor_count - 1, p = i, q = j; k >= 0; --k, p /= n, q /= n) {
            product *= f[(k * n + p % n) * n + q % n];
        }
        sum += product;
    }
    y[at] = sum;
}

// Y[a, q, b] = sum_p X[a, p, b] * F[p, q], b < inner: a thread for each entry of Y, eight loads each.
__global__ void one_factor(const float* x, const float* f, float* y, int inner) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    const long long b = at % inner;
    const int q = int(at / inner % n);
    const long long a = at / inner / n;
    float sum = 0.0f;
    for (int p = 0; p < n; ++p) {
        sum += x[(a * n + p) * inner + b] * f[p * n + q];
    }
    y[at] = sum;
}

// The same contract. A block's tile, [8 p][256 b] (or 256 fibres of the last mode), goes through shared memory, so that X is read
// and Y written once, whole lines at a time; a thread keeps its fibre of eight in registers.
__global__ void shared_tile(const float* x, const float* f, float* y, int inner) {
    __shared__ float tile[n * 257];
    __shared__ float factor[n * n];
    if (threadIdx.x < n * n) {
        factor[threadIdx.x] = f[threadIdx.x];
    }
    const long long first = blockIdx.x * 256ll * n;  // of 256 fibres, inner >= 256 or inner a divisor of 256
    const bool long_run = inner >= 256;
    const long long a = long_run ? first / n / inner : 0;
    const long long b0 = long_run ? first / n % inner : 0;
    for (int k = 0; k < n; ++k) {
        const int e = k * 256 + int(threadIdx.x);
        const int p = long_run ? k : e / inner % n;
        const int fibre = long_run ? int(threadIdx.x) : e / inner / n * inner + e % inner;
        tile[p * 257 + fibre] = long_run ? x[(a * n + p) * inner + b0 + fibre] : x[first + e];
    }
    __syncthreads();
    float in[n], out[n];
    for (int p = 0; p < n; ++p) {
        in[p] = tile[p * 257 + threadIdx.x];
    }
#pragma unroll
    for (int q = 0; q < n; ++q) {
        out[q] = 0.0f;
#pragma unroll
        for (int p = 0; p < n; ++p) {
            out[q] += in[p] * factor[p * n + q];
        }
    }
    for (int q = 0; q < n; ++q) {
        tile[q * 257 + threadIdx.x] = out[q];
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        const int e = k * 256 + int(threadIdx.x);
        const int q = long_run ? k : e / inner % n;
        const int fibre = long_run ? int(threadIdx.x) : e / inner / n * inner + e % inner;
        (long_run ? y[(a * n + q) * inner + b0 + fibre] : y[first + e]) = tile[q * 257 + fibre];
    }
}

using eights = extents<8, 8, 8, 8, 8>;
// All five modes in one pass, a row on chip, a barrier after each mode.
using fused_single =
    mode_group<float, 1, 1, 256, 1, 1, 0, 1, 1, eights, eights,
               trips<trip<5, 1, 0, 1>, trip<4, 1, 0, 1>, trip<3, 1, 0, 1>, trip<2, 1, 0, 1>, trip<1, 1, 0, 1>>>;
// Two modes at a time in registers: three barriers.
using fused_pairs = mode_group<float, 1, 1, 256, 1, 1, 0, 1, 1, eights, eights,
                               trips<trip<4, 2, 0, 1>, trip<2, 2, 0, 1>, trip<1, 1, 0, 1>>>;
// And the next row arrives in quarters while this one is worked on.
using fused_ahead = mode_group<float, 1, 1, 256, 1, 4, 2, 1, 1, eights, eights,
                               trips<trip<4, 2, 0, 1>, trip<2, 2, 0, 1>, trip<1, 1, 0, 1>>>;
// A warp for each of the eight slices of a row, in a ring of places: one barrier, after the first mode.
using fused_ring = mode_group<float, 1, 1, 256, 1, 8, 3, 1, 1, eights, eights,
                              trips<trip<1, 1, 0, 1>, trip<4, 2, 0, 1>, trip<2, 2, 0, 1>>>;
// The matrix unit, three-term TF32, a row over four blocks.
using fused_matrix =
    mode_group<float, 1, 1, 256, 2, 1, 0, 4, 1, eights, eights,
               trips<trip<5, 1, 1, 1>, trip<4, 1, 1, 1>, trip<3, 1, 1, 1>, trip<2, 1, 1, 1>, trip<1, 1, 1, 1>>>;

struct problem {
    std::vector<float> x, f, y;
    float *dx, *df, *dy, *scratch;
    int multiprocessors;
};

template <class Launch>
bool rung(problem& p, const char* name, const char* remark, int repetitions, Launch launch) {
    check(cudaMemset(p.dy, 0xff, p.y.size() * sizeof(float)));  // NaN
    launch();
    check(cudaGetLastError());
    check(cudaMemcpy(p.y.data(), p.dy, p.y.size() * sizeof(float), cudaMemcpyDeviceToHost));
    const double error = ladder::relative_error(p.x.data(), p.f.data(), p.y.data());
    cudaEvent_t from, to;
    check(cudaEventCreate(&from));
    check(cudaEventCreate(&to));
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) {
        check(cudaEventRecord(from));
        launch();
        check(cudaEventRecord(to));
        check(cudaEventSynchronize(to));
        float ms = 0.0f;
        check(cudaEventElapsedTime(&ms, from, to));
        times.push_back(ms);
    }
    return ladder::report(name, ladder::median(times), error, remark);
}

template <class Group>
void launch_fused(const problem& p) {
    static const bool prepared = [] {
        check(cudaFuncSetAttribute(fused_trailing<Group>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Group::shared_bytes));
        return true;
    }();
    static_cast<void>(prepared);
    group_arguments<float> a{};
    a.x = p.dx;
    a.y = p.dy;
    for (int k = 0; k < ladder::factor_count; ++k) {
        a.factor[k] = p.df + k * n * n;
        a.factor_p_stride[k] = n;
        a.factor_q_stride[k] = 1;
    }
    a.alpha = 1.0f;
    a.lines = ladder::rows;
    a.parts_per_line = 1;
    a.x_line_stride = a.y_line_stride = K;
    a.inner = a.x_inner = a.y_inner = 1;
    const int grid = p.multiprocessors * Group::blocks_per_multiprocessor / Group::cluster * Group::cluster;
    fused_trailing<Group><<<grid, Group::threads, Group::shared_bytes>>>(a);
}

template <class Pass>
void chain(const problem& p, Pass pass) {
    const float* from = p.dx;
    float* to = p.dy;
    float* other = p.scratch;
    int inner = 1;
    for (int k = ladder::factor_count - 1; k >= 0; --k, inner *= n) {
        pass(from, p.df + k * n * n, to, inner);
        from = to;
        std::swap(to, other);
    }
}

}  // namespace

int main() {
    problem p{ladder::make_x(), ladder::make_factors(), std::vector<float>(ladder::rows * ladder::columns)};
    const std::size_t bytes = p.x.size() * sizeof(float);
    check(cudaDeviceGetAttribute(&p.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    check(cudaMalloc(&p.dx, bytes));
    check(cudaMalloc(&p.dy, bytes));
    check(cudaMalloc(&p.scratch, bytes));
    check(cudaMalloc(&p.df, p.f.size() * sizeof(float)));
    check(cudaMemcpy(p.dx, p.x.data(), bytes, cudaMemcpyHostToDevice));
    check(cudaMemcpy(p.df, p.f.data(), p.f.size() * sizeof(float), cudaMemcpyHostToDevice));
    const int entries = int(p.x.size() / 256);
    bool right = true;

    cudaEvent_t from, to;
    check(cudaEventCreate(&from));
    check(cudaEventCreate(&to));
    std::vector<double> copies;
    for (int i = 0; i < 20; ++i) {
        float ms = 0.0f;
        check(cudaEventRecord(from));
        check(cudaMemcpyAsync(p.dy, p.dx, bytes, cudaMemcpyDeviceToDevice));
        check(cudaEventRecord(to));
        check(cudaEventSynchronize(to));
        check(cudaEventElapsedTime(&ms, from, to));
        copies.push_back(ms);
    }
    ladder::report("copy", ladder::median(copies), 0.0, "device copy of X to Y: the bound");

    right &= rung(p, "gpu: naive", "a thread for each entry", 1, [&] { naive<<<entries, 256>>>(p.dx, p.df, p.dy); });
    right &= rung(p, "gpu: one factor a pass", "five passes; eight loads for each entry", 20, [&] {
        chain(p, [&](const float* x, const float* f, float* y, int inner) {
            one_factor<<<entries, 256>>>(x, f, y, inner);
        });
    });
    right &= rung(p, "gpu: shared memory", "five passes; each element loaded once a pass", 20, [&] {
        chain(p, [&](const float* x, const float* f, float* y, int inner) {
            shared_tile<<<entries / n, 256>>>(x, f, y, inner);
        });
    });
    right &= rung(p, "gpu: fused", "one pass; a barrier after each mode", 20, [&] { launch_fused<fused_single>(p); });
    right &= rung(p, "gpu: fused; two modes in registers", "one pass; three barriers", 20,
                  [&] { launch_fused<fused_pairs>(p); });
    right &= rung(p, "gpu: asynchronous", "the next row arrives meanwhile", 20, [&] { launch_fused<fused_ahead>(p); });
    right &= rung(p, "gpu: a warp a slice", "one barrier; slices arrive when a warp has room", 20,
                  [&] { launch_fused<fused_ring>(p); });
    right &=
        rung(p, "gpu: tensor cores", "three-term TF32; four blocks a row", 20, [&] { launch_fused<fused_matrix>(p); });
    return right ? 0 : 1;
}
