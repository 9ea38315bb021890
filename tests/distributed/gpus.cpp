// SPDX-License-Identifier: MIT
// Ranks on the GPUs of this process; skipped, visibly, where there is none. Exchanges by copies and by NCCL.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include "support/compare.hpp"
#include "support/random.hpp"

using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

using matrix = Eigen::MatrixXf;

// 1, 2 and 3 GPUs, each way to exchange; empty where there is none.
std::vector<otimes::communicator> gpu_sets() {
    std::vector<otimes::communicator> sets;
    for (int count = 1; count <= 3; ++count) {
        for (const bool copies : {true, false}) {
            try {
                sets.push_back(otimes::gpu_communicator(
                    {.deadline = std::chrono::seconds(30),
                     .gpu_count = count,
                     .exchange_by_copies = copies,
                     .links = {.bytes_per_second = 3e11,
                               .chunks = 2,
                               .least_chunk_bytes = 1,
                               // GPUs of this process: last passes store (two GPUs), or blocks are exchanged (three).
                               .stores = count == 2,
                               .store_bytes_per_second = 1e15}}));
            } catch (const otimes::device_error& failure) {
                MESSAGE(std::string(failure.what()));
                return sets;
            }
            if (count == 1) {
                break;
            }
        }
    }
    return sets;
}

}  // namespace

TEST_CASE("products on GPUs of this process [gpus]") {
    const std::vector<otimes::communicator> sets =
        ranks_test::under_mpi() ? std::vector<otimes::communicator>{} : gpu_sets();
    if (sets.empty()) {
        MESSAGE("tests on several GPUs are skipped: there is no GPU");
        return;
    }
    const std::vector<std::int64_t> extents{8, 6, 16};
    std::vector<matrix> factors;
    std::uint64_t seed = 40;
    for (const std::int64_t e : extents) {
        factors.push_back(support::random_matrix<matrix>(e, e, ++seed));
    }
    for (const int rows : {1, 3, 64}) {
        const matrix X = support::random_matrix<matrix>(rows, 768, ++seed);
        const matrix want = X.cast<double>().eval().cast<float>() * kron(factors);
        matrix of_one_gpu;
        for (const otimes::communicator& ranks : sets) {
            CAPTURE(ranks.name());
            const auto K = otimes::replicate(ranks, kron(factors));
            std::vector<distribution> cuts{otimes::cut_rows(ranks.size()), otimes::cut_columns(ranks.size())};
            for (std::size_t k = 0; k < 3; ++k) {
                cuts.push_back(otimes::cut_mode(1, ranks.size(), extents, k));
            }
            for (const distribution& from : cuts) {
                CAPTURE(to_string(from));
                DistributedMatrix<float> dX(ranks, rows, 768, from);
                dX.from_host(X);
                CHECK((dX.to_host().array() == X.array()).all());
                DistributedMatrix<float> dY(ranks);
                dY = dX * K;
                const matrix free = dY.to_host();
                CHECK(support::close(free, want, 768));
                dY = dX * K;
                CHECK((dY.to_host().array() == free.array()).all());  // repeatable
                if (ranks.size() == 1 && of_one_gpu.size() == 0) {
                    of_one_gpu = free;
                }
                if (from.col_parts == 1 && from.row_parts > 1) {
                    CHECK((free.array() == of_one_gpu.array()).all());  // rows: the bits of one GPU
                }
                DistributedMatrix<float> dZ(ranks, rows, 768, from);  // keeps the cut
                dZ = dX * kron(factors);                              // host factors
                dZ += 2 * dX * K;
                CHECK(support::close(dZ.to_host(), matrix(3 * want), 768));
            }
            ranks.barrier();
        }
    }
}

TEST_CASE("a message that does not come ends in an error in time [gpus]") {
    if (ranks_test::under_mpi()) {
        return;
    }
    std::vector<otimes::communicator> sets;
    try {
        sets.push_back(otimes::gpu_communicator(
            {.deadline = std::chrono::seconds(3), .gpu_count = 2, .exchange_by_copies = false}));
    } catch (const otimes::device_error&) {
        MESSAGE("tests on several GPUs are skipped: there are no two GPUs");
        return;
    }
    const otimes::communicator& ranks = sets.front();
    void* const memory = ranks.over().allocate(0, 1 << 20);
    const otimes::message alone{1, 0, memory, 1 << 20};  // rank 0 receives what rank 1 never sends
    const auto began = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(
        [&] {
            ranks.over().start({}, {&alone, 1}, {}, false);
            ranks.over().finish(0);
            ranks.over().synchronize();
        }(),
        otimes::device_error);
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < 20);
    CHECK_THROWS_WITH_AS(ranks.barrier(), doctest::Contains("is broken since"), otimes::device_error);
}
