// SPDX-License-Identifier: MIT
// What the tests of the host's side share.
#pragma once

#include <doctest/doctest.h>

#include <Eigen/Dense>

#include <cstddef>
#include <cstdint>
#include <string>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "pretended_driver/control.hpp"
#include "support/cuda_driver.hpp"

namespace host_side {

using otimes::DeviceMatrix;
using otimes::kron;
using pretended::driver;
using pretended::failing;

using matrix = Eigen::MatrixXd;
using by_rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Of small whole numbers, on which products are exact.
inline matrix whole(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    matrix m(rows, cols);
    for (double& element : m.reshaped()) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        element = static_cast<double>(seed >> 60) - 8;
    }
    return m;
}

inline matrix dense(const matrix& A, const matrix& B) {
    matrix K(A.rows() * B.rows(), A.cols() * B.cols());
    for (Eigen::Index i = 0; i < A.rows(); ++i)
        for (Eigen::Index j = 0; j < A.cols(); ++j)
            K.block(i * B.rows(), j * B.cols(), B.rows(), B.cols()) = A(i, j) * B;
    return K;
}

/// The text of the device_error that is thrown; empty where there is none.
template <class Run>
std::string refusal(const Run& run) {
    try {
        run();
    } catch (const otimes::device_error& e) {
        return e.what();
    }
    return {};
}

inline bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Counts what is live. Takes memory from the executor of the process, so that it needs the table of executors.
struct counting_resource : otimes::device_memory_resource {
    int live = 0;
    void* allocate(std::size_t bytes, CUstream_st*) override {
        ++live;
        void* const memory = otimes::gpu().allocate(static_cast<std::int64_t>(bytes));
        otimes::gpu().synchronize();  // it is another stream's
        return memory;
    }
    void deallocate(void* memory, std::size_t bytes, CUstream_st* stream) noexcept override {
        --live;
        static const support::driver cuda;
        cuda.stream_synchronize(stream);
        otimes::gpu().release(memory, static_cast<std::int64_t>(bytes));
    }
};

inline const otimes::device_executor& on_new_stream(support::driver& cuda) {
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    return otimes::gpu(stream);
}

}  // namespace host_side
