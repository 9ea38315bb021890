// SPDX-License-Identifier: MIT
// Host operands that pass through a GPU: how close the time comes to the slowest of the kernels alone and the two copies, in and
// out, run at once without kernels.
//
//   streaming [GIB_OF_X [OUTPUT.csv [ORDER [ID]]]]   defaults: 4, standard output, all cases; ORDER: rows or columns; ID: as in the column
//
// Columns: id, dtype, order, memory (pageable or pinned), gib_in, gib_out, ms, ms_kernels, ms_copies, share, relerr.
// ms_copies: for pinned memory plain copies of the same bytes on two streams; for pageable memory the same passage through pinned
// blocks without kernels (a product with an identity). share = max(ms_kernels, ms_copies) / ms. A result of row r needs all of
// that row of X: with few rows (128^4: four of 1 GiB) not even perfect overlap reaches 1, but rows / (rows + 1).
#include <Eigen/Core>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

#include "../arguments.hpp"

namespace {

using otimes::kron;

double seconds_of(const auto& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_seconds(int runs, const auto& work) {
    work();
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) {
        times.push_back(seconds_of(work));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/// The few driver calls that plain copies take.
class plain_copies {
public:
    plain_copies() {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
        };
        find(to_device_, "cuMemcpyHtoDAsync_v2");
        find(to_host_, "cuMemcpyDtoHAsync_v2");
        find(create_, "cuStreamCreate");
        find(wait_, "cuStreamSynchronize");
        find(retain_, "cuDevicePrimaryCtxRetain");
        find(set_, "cuCtxSetCurrent");
        void* context = nullptr;
        retain_(&context, 0);
        set_(context);
        create_(&in_, 1);
        create_(&out_, 1);
    }
    /// Both at once, in pieces, from and to pinned memory.
    void run(const void* from, void* to, void* device, std::int64_t bytes_in, std::int64_t bytes_out) const {
        constexpr std::int64_t piece = 32 << 20;
        for (std::int64_t at = 0; at < std::max(bytes_in, bytes_out); at += piece) {
            if (at < bytes_in) {
                to_device_(reinterpret_cast<std::uintptr_t>(device), static_cast<const char*>(from) + at,
                           static_cast<std::size_t>(std::min(piece, bytes_in - at)), in_);
            }
            if (at < bytes_out) {
                to_host_(static_cast<char*>(to) + at, reinterpret_cast<std::uintptr_t>(device) + piece,
                         static_cast<std::size_t>(std::min(piece, bytes_out - at)), out_);
            }
        }
        wait_(in_);
        wait_(out_);
    }

private:
    int (*to_device_)(std::uintptr_t, const void*, std::size_t, void*) = nullptr;
    int (*to_host_)(void*, std::uintptr_t, std::size_t, void*) = nullptr;
    int (*create_)(void**, unsigned) = nullptr;
    int (*wait_)(void*) = nullptr;
    int (*retain_)(void**, int) = nullptr;
    int (*set_)(void*) = nullptr;
    void* in_ = nullptr;
    void* out_ = nullptr;
};

/// Host memory that every case uses again; touched once, so that no case pays for it.
class host_memory {
public:
    explicit host_memory(std::int64_t bytes)
        : bytes_(bytes), data_(std::aligned_alloc(4096, static_cast<std::size_t>(bytes))) {
        const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        std::vector<std::thread> workers;
        for (int t = 0; t < threads; ++t) {
            workers.emplace_back([this, t, threads] {
                std::mt19937_64 bits(static_cast<std::uint64_t>(t));
                const std::int64_t words = bytes_ / 8;
                auto* const at = static_cast<std::uint64_t*>(data_);
                for (std::int64_t i = words * t / threads; i < words * (t + 1) / threads; ++i) {
                    // floats and doubles between 1 and 2
                    at[i] = (bits() & 0x000fffff007fffffull) | 0x3ff000003f800000ull;
                }
            });
        }
        for (std::thread& w : workers) {
            w.join();
        }
    }
    host_memory(const host_memory&) = delete;
    host_memory& operator=(const host_memory&) = delete;
    ~host_memory() { std::free(data_); }
    void* data() const { return data_; }
    std::int64_t bytes() const { return bytes_; }

private:
    std::int64_t bytes_;
    void* data_;
};

struct bench {
    const plain_copies& copies;
    const host_memory& x;
    const host_memory& y;
    bool pinned;
    std::FILE* out;
    std::string order;  ///< empty: both
    std::string only;   ///< the id of one case; empty: all
    int& cases;         ///< that were run

    template <class Scalar, int Order>
    void run(const char* id, const std::vector<std::pair<int, int>>& shapes) const {
        using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order>;
        if ((!order.empty() && order != (Order == Eigen::RowMajor ? "rows" : "columns")) ||
            (!only.empty() && only != id)) {
            return;
        }
        ++cases;
        std::vector<Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>> factors;
        Eigen::Index inputs = 1;
        Eigen::Index outputs = 1;
        for (const auto& [p, q] : shapes) {
            factors.push_back(Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>::Random(p, q));
            inputs *= p;
            outputs *= q;
        }
        const auto size = static_cast<Eigen::Index>(sizeof(Scalar));
        const Eigen::Index rows = x.bytes() / size / std::max(inputs, outputs);
        const Eigen::Map<const matrix> X(static_cast<const Scalar*>(x.data()), rows, inputs);
        Eigen::Map<matrix> Y(static_cast<Scalar*>(y.data()), rows, outputs);
        const auto K = kron(factors);
        const otimes::scoped_executor scope(otimes::gpu());
        const otimes::options on_gpu{.placement = otimes::placement::gpu};

        double kernels = 0;
        double copied = 0;
        {
            const otimes::DeviceMatrix<Scalar, Order> dX(X);
            otimes::DeviceMatrix<Scalar, Order> dY(rows, outputs);
            std::vector<otimes::DeviceMatrix<Scalar>> d(factors.begin(), factors.end());
            kernels = median_seconds(5, [&] {
                dY.noalias() = dX * kron(d);
                otimes::gpu().synchronize();
            });
            if (pinned) {
                void* const scratch = const_cast<void*>(static_cast<const void*>(dX.data()));
                copied = median_seconds(
                    3, [&] { copies.run(x.data(), y.data(), scratch, rows * inputs * size, rows * outputs * size); });
            }
        }
        if (!pinned) {
            const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> one = Eigen::Matrix<Scalar, 1, 1>(Scalar(1));
            const auto same = X * kron(one, otimes::identity(inputs));
            Eigen::Map<matrix> Z(static_cast<Scalar*>(y.data()), rows, inputs);
            const otimes::plan p = otimes::make_plan(Z, same, on_gpu);
            copied = median_seconds(3, [&] { p.run(Z, same); });
        }
        const auto product = X * K;
        const otimes::plan p = otimes::make_plan(Y, product, on_gpu);
        const double streamed = median_seconds(5, [&] { p.run(Y, product); });

        double error = 0;
        for (const Eigen::Index row : {Eigen::Index{0}, rows / 2 + 1, rows - 1}) {
            const matrix one = X.row(row);
            matrix want(1, outputs);
            otimes::on(otimes::cpu(), want) = one * K;
            error = std::max(error, static_cast<double>((Y.row(row) - want).norm() / want.norm()));
        }
        const double gib = 1.0 / (1 << 30);
        std::fprintf(out, "%s,%s,%s,%s,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.2e\n", id, sizeof(Scalar) == 4 ? "f32" : "f64",
                     Order == Eigen::RowMajor ? "rows" : "columns", pinned ? "pinned" : "pageable",
                     static_cast<double>(rows * inputs * size) * gib, static_cast<double>(rows * outputs * size) * gib,
                     streamed * 1e3, kernels * 1e3, copied * 1e3, std::max(kernels, copied) / streamed, error);
        std::fflush(out);
    }
};

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "streaming [GIB_OF_X [OUTPUT.csv [ORDER [ID]]]]", 4);
    const double gib = words.amount(1, 4.0);
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::printf("no GPU: %s\n", why.c_str());
        return 0;
    }
    std::FILE* const out = words.output(2);
    const auto bytes = static_cast<std::int64_t>(gib * (1 << 30)) / 4096 * 4096;
    const host_memory x(bytes);
    const host_memory y(bytes);
    const plain_copies copies;
    std::fprintf(out, "id,dtype,order,memory,gib_in,gib_out,ms,ms_kernels,ms_copies,share,relerr\n");
    int cases = 0;
    for (const bool pinned : {false, true}) {
        std::optional<otimes::pinned_scope> pin_x;
        std::optional<otimes::pinned_scope> pin_y;
        if (pinned) {
            const double seconds = seconds_of([&] {
                pin_x.emplace(x.data(), x.bytes());
                pin_y.emplace(y.data(), y.bytes());
            });
            std::fprintf(stderr, "pinning %.1f GiB: %.2f s\n", 2 * gib, seconds);
        }
        const bench b{copies, x, y, pinned, out, words.text(3), words.text(4), cases};
        b.run<float, Eigen::RowMajor>("8^5", {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}});
        b.run<float, Eigen::ColMajor>("8^5", {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}});
        b.run<float, Eigen::RowMajor>("64^3", {{64, 64}, {64, 64}, {64, 64}});
        b.run<double, Eigen::RowMajor>("16^4", {{16, 16}, {16, 16}, {16, 16}, {16, 16}});
        b.run<float, Eigen::RowMajor>("52x50_65x20_9x12", {{52, 50}, {65, 20}, {9, 12}});
        b.run<float, Eigen::ColMajor>("64^3", {{64, 64}, {64, 64}, {64, 64}});
        b.run<float, Eigen::RowMajor>("64^4", {{64, 64}, {64, 64}, {64, 64}, {64, 64}});
        b.run<float, Eigen::RowMajor>("128^4", {{128, 128}, {128, 128}, {128, 128}, {128, 128}});
        if (cases == 0) {
            words.refuse();
        }
    }
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
}
