// SPDX-License-Identifier: MIT
// Slabs of column-major matrices in pinned host memory pass through a GPU: what their lines cost, and the kernels between the copies in and out.
//
//   nvcc -std=c++20 -O3 -arch=sm_90 -Xcompiler -pthread bench/gpu/host_lines.cu -o host_lines && ./host_lines [GIB] > host_lines.csv
//
// X and Y of GIB GiB each (4), in columns of `distance` bytes; a slab is the same `line` bytes of every column. Columns: distance, line, slabs, copies, kernel,
// ms (the less of two). copies: "whole" the same bytes without gaps; "lines" one cuMemcpy2D a slab and way; "blocks" 16 blocks of one warp a way, each
// line one bulk copy. kernel: reads a slab's X and writes its Y, "none", "usual" or "evict_first". Two buffers on each side, three streams. The lines
// that came back are compared with those that went in.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

namespace {

void check(cudaError_t code, int line) {
    if (code != cudaSuccess) {
        std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(code));
        std::exit(1);
    }
}
#define CHECK(call) check(call, __LINE__)

template <bool EvictFirst>
__global__ void pass_over(const float* x, float* y, long count) {
    for (long i = blockIdx.x * long(blockDim.x) + threadIdx.x; i < count; i += long(gridDim.x) * blockDim.x)
        if constexpr (EvictFirst)
            __stcs(y + i, __ldcs(x + i));
        else
            y[i] = x[i];
}

__device__ unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

constexpr int tile = 32768;  // bytes: lines that a block copies together

// Lines host[l * distance, + line) <-> device[l * line, + line), l < count; count * line a multiple of `tile`.
template <bool In>
__global__ void copy_by_blocks(char* device, char* host, int line, long distance, long count) {
    extern __shared__ __align__(128) char shared[];  // two tiles
    __shared__ __align__(8) unsigned long long arrived[2];
    const int lines = tile / line;
    const long tiles = count / lines;
    if (threadIdx.x == 0) {
        for (auto& one : arrived) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&one)));
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;");
    }
    __syncwarp();
    const auto load = [&](long t, int turn) {
        const unsigned bar = shared_address(arrived + turn);
        if (threadIdx.x == 0) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(tile));
        __syncwarp();
        const auto read = [&](int at, const char* from, int bytes) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(shared + turn * tile + at)),
                "l"(from), "r"(bytes), "r"(bar)
                : "memory");
        };
        if (In)
            for (int l = threadIdx.x; l < lines; l += 32) read(l * line, host + (t * lines + l) * distance, line);
        else if (threadIdx.x == 0)
            read(0, device + t * tile, tile);
    };
    const auto write = [&](char* to, int turn, int at, int bytes) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(shared_address(shared + turn * tile + at)), "r"(bytes)
                     : "memory");
    };
    long t = blockIdx.x;
    if (t < tiles) load(t, 0);
    for (int k = 0; t < tiles; t += gridDim.x, ++k) {
        const int turn = k % 2;
        if (t + gridDim.x < tiles) {
            asm volatile("cp.async.bulk.wait_group.read 0;");
            __syncwarp();
            load(t + gridDim.x, 1 - turn);
        }
        asm volatile(
            "{\n\t.reg .pred open;\n\tagain:\n\tmbarrier.try_wait.parity.shared.b64 open, [%0], %1;\n\t@!open bra "
            "again;\n\t}" ::"r"(shared_address(arrived + turn)),
            "r"(k / 2 % 2)
            : "memory");
        if (In) {
            if (threadIdx.x == 0) write(device + t * tile, turn, 0, tile);
        } else {
            for (int l = threadIdx.x; l < lines; l += 32)
                write(host + (t * lines + l) * distance, turn, l * line, line);
        }
        asm volatile("cp.async.bulk.commit_group;");
    }
    asm volatile("cp.async.bulk.wait_group 0;");
}

struct slabs {
    char *x, *y;              // host
    char *on_x[2], *on_y[2];  // device
    cudaStream_t in, out, compute;
    cudaEvent_t arrived[2], computed[2], drained[2];
    long bytes;  // of X

    void copy(bool inwards, const std::string& how, long slab, int turn, long line, long distance) const {
        const long count = bytes / distance;
        const cudaStream_t stream = inwards ? in : out;
        const cudaMemcpyKind way = inwards ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
        char* const device = inwards ? on_x[turn] : on_y[turn];
        char* const host = (inwards ? x : y) + slab * (how == "whole" ? count * line : line);
        if (how == "whole") {
            CHECK(cudaMemcpyAsync(inwards ? device : host, inwards ? host : device, count * line, way, stream));
        } else if (how == "lines") {
            CHECK(cudaMemcpy2DAsync(inwards ? device : host, inwards ? line : distance, inwards ? host : device,
                                    inwards ? distance : line, line, count, way, stream));
        } else if (inwards) {
            copy_by_blocks<true><<<16, 32, 2 * tile, stream>>>(device, host, int(line), distance, count);
        } else {
            copy_by_blocks<false><<<16, 32, 2 * tile, stream>>>(device, host, int(line), distance, count);
        }
    }
    double milliseconds(const std::string& how, const std::string& kernel, long line, long distance) const {
        const long count = bytes / distance, number = distance / line;
        double best = 1e9;
        for (int run = 0; run < 2; ++run) {
            CHECK(cudaDeviceSynchronize());
            const auto begin = std::chrono::steady_clock::now();
            for (long s = 0; s < number; ++s) {
                const int turn = int(s % 2);
                if (s >= 2) CHECK(cudaStreamWaitEvent(in, computed[turn]));
                copy(true, how, s, turn, line, distance);
                CHECK(cudaEventRecord(arrived[turn], in));
                CHECK(cudaStreamWaitEvent(compute, arrived[turn]));
                if (s >= 2) CHECK(cudaStreamWaitEvent(compute, drained[turn]));
                const auto* const from = reinterpret_cast<const float*>(on_x[turn]);
                auto* const to = reinterpret_cast<float*>(on_y[turn]);
                if (kernel == "usual") pass_over<false><<<264, 512, 0, compute>>>(from, to, count * line / 4);
                if (kernel == "evict_first") pass_over<true><<<264, 512, 0, compute>>>(from, to, count * line / 4);
                CHECK(cudaEventRecord(computed[turn], compute));
                CHECK(cudaStreamWaitEvent(out, computed[turn]));
                copy(false, how, s, turn, line, distance);
                CHECK(cudaEventRecord(drained[turn], out));
            }
            CHECK(cudaDeviceSynchronize());
            best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
        return best * 1e3;
    }
};

void on_all_cores(long bytes, const auto& work) {
    std::vector<std::thread> threads;
    for (long t = 0; t < 16; ++t) threads.emplace_back([=] { work(bytes / 16 * t, bytes / 16 * (t + 1)); });
    for (std::thread& t : threads) t.join();
}

}  // namespace

int main(int argc, char** argv) {
    slabs s{};
    s.bytes = (argc > 1 ? std::atol(argv[1]) : 4) << 30;
    s.x = static_cast<char*>(std::aligned_alloc(4096, s.bytes));
    s.y = static_cast<char*>(std::aligned_alloc(4096, s.bytes));
    on_all_cores(s.bytes, [&](long from, long to) {
        for (long i = from; i < to; i += 4)
            *reinterpret_cast<std::uint32_t*>(s.x + i) = std::uint32_t(i / 4 * 2654435761u) >> 9;
        std::memset(s.y + from, 255, to - from);
    });
    CHECK(cudaHostRegister(s.x, s.bytes, cudaHostRegisterPortable));
    CHECK(cudaHostRegister(s.y, s.bytes, cudaHostRegisterPortable));
    for (cudaStream_t* const one : {&s.in, &s.out, &s.compute})
        CHECK(cudaStreamCreateWithFlags(one, cudaStreamNonBlocking));
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaMalloc(&s.on_x[i], s.bytes / 4));
        CHECK(cudaMalloc(&s.on_y[i], s.bytes / 4));
        for (cudaEvent_t* const one : {s.arrived + i, s.computed + i, s.drained + i})
            CHECK(cudaEventCreateWithFlags(one, cudaEventDisableTiming));
    }
    CHECK(cudaFuncSetAttribute(copy_by_blocks<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, 2 * tile));
    CHECK(cudaFuncSetAttribute(copy_by_blocks<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, 2 * tile));
    std::printf("distance,line,slabs,copies,kernel,ms\n");
    for (const long distance : {16384l, 131072l})
        for (const long line : {1024l, 2048l, 4096l, 8192l, 32768l}) {
            if (line * 4 > distance) continue;  // four slabs or more
            for (const char* const how : {"whole", "lines", "blocks"})
                for (const char* const kernel : {"none", "usual", "evict_first"}) {
                    const bool copies_back = std::string(kernel) != "none";
                    if (!copies_back && std::string(how) != "lines") continue;
                    const double ms = s.milliseconds(how, kernel, line, distance);
                    std::printf("%ld,%ld,%ld,%s,%s,%.2f\n", distance, line, distance / line, how, kernel, ms);
                    std::fflush(stdout);
                    std::atomic<bool> differs{false};
                    on_all_cores(s.bytes, [&](long from, long to) {
                        if (std::memcmp(s.x + from, s.y + from, to - from) != 0) differs = true;
                    });
                    if (copies_back && differs) {
                        std::fprintf(stderr, "what came back differs\n");
                        return 1;
                    }
                }
        }
}
