// SPDX-License-Identifier: MIT
// The common yardstick: one strided-batched GEMM of cuBLAS per factor, last mode first. The library is looked for at run time; without it
// there is no yardstick.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <cuda.h>

namespace otimes::bench {

class cublas_chain {
public:
    explicit cublas_chain(CUstream stream) {
        for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
            if (!library_) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library_) return;
        const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library_, "cublasCreate_v2"));
        const auto set_stream = reinterpret_cast<int (*)(void*, CUstream)>(dlsym(library_, "cublasSetStream_v2"));
        float_ = reinterpret_cast<gemm<float>>(dlsym(library_, "cublasSgemmStridedBatched"));
        double_ = reinterpret_cast<gemm<double>>(dlsym(library_, "cublasDgemmStridedBatched"));
        if (!create || !set_stream || !float_ || !double_ || create(&handle_) != 0 || set_stream(handle_, stream) != 0)
            handle_ = nullptr;
    }
    bool exists() const { return handle_ != nullptr; }

    // X [rows, P_1 .. P_n] -> Y [rows, Q_1 .. Q_n]; scratch: as large as the largest intermediate; factors row-major.
    template <class T>
    void run(std::int64_t rows, const std::vector<int>& p, const std::vector<int>& q, const T* x, T* y, T* scratch,
             const std::vector<const T*>& factors) const {
        const int n = int(p.size());
        std::int64_t above = rows, below = 1;
        for (int e : p) above *= e;
        const T* from = x;
        for (int i = n - 1; i >= 0; --i) {
            above /= p[i];
            T* to = i % 2 == 0 ? y : scratch;  // the first mode's product ends in Y
            const T one = 1, zero = 0;
            // column-major: C [below, Q] = A [below, P] * F for every index above; alone, C [Q, above] = F^T * A
            const int status = below == 1
                                   ? multiply<T>(0, 0, q[i], int(above), p[i], &one, factors[i], q[i], 0, from, p[i], 0,
                                                 &zero, to, q[i], 0, 1)
                                   : multiply<T>(0, 1, int(below), q[i], p[i], &one, from, int(below), below * p[i],
                                                 factors[i], q[i], 0, &zero, to, int(below), below * q[i], int(above));
            if (status != 0) throw std::runtime_error("cublas: status " + std::to_string(status));
            below *= q[i];
            from = to;
        }
    }

private:
    template <class T>
    using gemm = int (*)(void*, int, int, int, int, int, const T*, const T*, int, long long, const T*, int, long long,
                         const T*, T*, int, long long, int);
    template <class T, class... Rest>
    int multiply(Rest... rest) const {
        if constexpr (sizeof(T) == 4)
            return float_(handle_, rest...);
        else
            return double_(handle_, rest...);
    }
    void* library_ = nullptr;
    void* handle_ = nullptr;
    gemm<float> float_ = nullptr;
    gemm<double> double_ = nullptr;
};

}  // namespace otimes::bench
