// SPDX-License-Identifier: MIT
// What the measuring program needs on the device beside the kernels that it measures: random data and an independent check
// in double. Shares no code with kernels/.
typedef unsigned long long u64;
struct chain {
    int modes;
    int p[16];
    int q[16];
};

__device__ u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
template <class T>
__device__ void fill(T* x, long long n, u64 seed, double scale) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        x[i] = T(scale * (double(mix(seed + i) >> 11) * 0x1p-52 - 1.0));
}
extern "C" __global__ void fill_f32(float* x, long long n, u64 seed, double scale) { fill(x, n, seed, scale); }
extern "C" __global__ void fill_f64(double* x, long long n, u64 seed, double scale) { fill(x, n, seed, scale); }

// sums[m] += sum_k X[m, k] * prod_i table_i[k_i] over this block's k; table: vectors of the modes one after another.
template <class T>
__device__ void project(const T* x, long long count, chain c, int use_q, const double* table, double* sums) {
    const long long m = blockIdx.y;
    double sum = 0, lost = 0;  // compensated: a thread adds up to 10^5 terms
    for (long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x; k < count;
         k += (long long)gridDim.x * blockDim.x) {
        double w = 1;
        long long rest = k;
        int at = 0;
        for (int i = 0; i < c.modes; ++i) at += use_q ? c.q[i] : c.p[i];
        for (int i = c.modes - 1; i >= 0; --i) {
            const int e = use_q ? c.q[i] : c.p[i];
            at -= e;
            w *= table[at + int(rest % e)];
            rest /= e;
        }
        const double term = w * double(x[m * count + k]) - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    for (int o = 16; o; o /= 2) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) atomicAdd(sums + m, sum);
}
extern "C" __global__ void project_f32(const float* x, long long n, chain c, int use_q, const double* t, double* s) {
    project(x, n, c, use_q, t, s);
}
extern "C" __global__ void project_f64(const double* x, long long n, chain c, int use_q, const double* t, double* s) {
    project(x, n, c, use_q, t, s);
}

// out[2 b] = Y[m, l], out[2 b + 1] = sum_k X[m, k] prod F_i[k_i, l_i] for the b-th sample (m, l).
template <class T>
__device__ void entry(const T* x, const T* y, const T* factors, long long rows, long long k_count, long long l_count,
                      chain c, u64 seed, double* out) {
    __shared__ double sums[32];
    const long long m = mix(seed + 2 * blockIdx.x) % rows, l = mix(seed + 2 * blockIdx.x + 1) % l_count;
    int digit[16];
    long long rest = l, total = 0;
    for (int i = c.modes - 1; i >= 0; --i) {
        digit[i] = int(rest % c.q[i]);
        rest /= c.q[i];
    }
    for (int i = 0; i < c.modes; ++i) total += (long long)c.p[i] * c.q[i];
    double sum = 0, lost = 0;
    for (long long k = threadIdx.x; k < k_count; k += blockDim.x) {
        double w = double(x[m * k_count + k]);
        long long r = k, at = total;
        for (int i = c.modes - 1; i >= 0; --i) {
            at -= (long long)c.p[i] * c.q[i];
            w *= double(factors[at + (r % c.p[i]) * c.q[i] + digit[i]]);
            r /= c.p[i];
        }
        w -= lost;
        const double next = sum + w;
        lost = (next - sum) - w;
        sum = next;
    }
    for (int o = 16; o; o /= 2) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < int(blockDim.x) / 32; ++w) sum += sums[w];
        out[2 * blockIdx.x] = double(y[m * l_count + l]);
        out[2 * blockIdx.x + 1] = sum;
    }
}
extern "C" __global__ void entry_f32(const float* x, const float* y, const float* f, long long r, long long k,
                                     long long l, chain c, u64 s, double* o) {
    entry(x, y, f, r, k, l, c, s, o);
}
extern "C" __global__ void entry_f64(const double* x, const double* y, const double* f, long long r, long long k,
                                     long long l, chain c, u64 s, double* o) {
    entry(x, y, f, r, k, l, c, s, o);
}
