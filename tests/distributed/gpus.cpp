// SPDX-License-Identifier: MIT
// Ranks on the GPUs of this process; skipped, visibly, where there is none. Exchanges by copies and by NCCL.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <Eigen/QR>

#include "support/compare.hpp"
#include "support/random.hpp"

using otimes::DeviceMatrix;
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

TEST_CASE("sums and dot products on GPUs of this process [gpus]") {
    const std::vector<otimes::communicator> sets =
        ranks_test::under_mpi() ? std::vector<otimes::communicator>{} : gpu_sets();
    const std::vector<std::int64_t> extents{8, 6, 16};
    const matrix A = support::random_matrix<matrix>(8, 8, 70), B = support::random_matrix<matrix>(6, 6, 71),
                 C = support::random_matrix<matrix>(16, 16, 72);
    const matrix A2 = support::random_matrix<matrix>(8, 8, 73);
    for (const int rows : {1, 5}) {
        const matrix X = support::random_matrix<matrix>(rows, 768, 74);
        const Eigen::VectorXf d = support::random_matrix<matrix>(768, 1, 77);
        const matrix once = X * kron(A, B, C), other = X * kron(A2, B, C), summed = X * otimes::kron_sum(A, B, C);
        for (const otimes::communicator& ranks : sets) {
            CAPTURE(ranks.name());
            const auto K = replicate(ranks, kron(A, B, C) - 2.0F * kron(A2, B, C));
            const auto S = replicate(ranks, otimes::kron_sum(A, B, C) + 3.0F * otimes::identity(768));
            std::vector<distribution> cuts{otimes::cut_rows(ranks.size()), otimes::cut_columns(ranks.size())};
            for (std::size_t k = 0; k < 3; ++k) {
                cuts.push_back(otimes::cut_mode(1, ranks.size(), extents, k));
            }
            for (const distribution& from : cuts) {
                CAPTURE(to_string(from));
                DistributedMatrix<float> dX(ranks, rows, 768, from), dY(ranks);
                dX.from_host(X);
                for (int again = 0; again < 2; ++again) {
                    dY = dX * K + 3 * dX;
                    CHECK(support::close(dY.to_host(), matrix(once - 2 * other + 3 * X), 3 * 768));
                }
                dY = dX * S;
                CHECK(support::close(dY.to_host(), matrix(summed + 3 * X), 3 * 768));
                dY -= dX * (kron(A, B, C) + kron(A2, B, C));  // host factors
                CHECK(support::close(dY.to_host(), matrix(summed + 3 * X - once - other), 4 * 768));
                DistributedMatrix<float> dZ(dX);
                dZ = dZ * S - dZ;
                CHECK(support::close(dZ.to_host(), matrix(summed + 2 * X), 3 * 768));
                dZ = (dX * K + 2 * dX) * kron(A, B, C);  // the sum first
                CHECK(support::close(dZ.to_host(), matrix((once - 2 * other + 2 * X) * kron(A, B, C)), 3 * 768));
                // A diagonal that is too long to be written out, from host memory and from copies.
                const auto KD = kron(A, B, C) - d.asDiagonal();
                dZ = dX * KD;
                CHECK(support::close(dZ.to_host(), matrix(once - X * d.asDiagonal()), 2 * 768));
                dZ += dX * replicate(ranks, KD);
                CHECK(support::close(dZ.to_host(), matrix(2 * (once - X * d.asDiagonal())), 3 * 768));
                const float product = dot(dZ, dX);
                CHECK(product == dot(dZ, dX));
                const Eigen::MatrixXd z = dZ.to_host().cast<double>(), x = X.cast<double>();
                CHECK(std::abs(product - z.cwiseProduct(x).sum()) < 1e-6 * z.norm() * x.norm());
            }
            // Blocks of which some are empty; complex numbers, the first conjugated.
            using complex = Eigen::MatrixXcd;
            const complex V = support::random_matrix<complex>(2, 7, 75), W = support::random_matrix<complex>(2, 7, 76);
            DistributedMatrix<std::complex<double>> dV(ranks, 2, 7), dW(ranks, 2, 7);
            dV.from_host(V);
            dW.from_host(W);
            const std::complex<double> want = V.conjugate().cwiseProduct(W).sum();
            CHECK(std::abs(dot(dV, dW) - want) < 1e-13);
            // Complex matrices beside real and complex factors and numbers.
            const complex H = support::random_matrix<complex>(7, 7, 78);
            const Eigen::MatrixXd R = support::random_matrix<Eigen::MatrixXd>(7, 7, 79);
            const std::complex<double> i(0, 1);
            dW = dV * (kron(H) + 2.0 * kron(R)) - i * dV + dV * kron(R) / 3.0;
            CHECK(support::close(dW.to_host<complex>(),
                                 complex(V * H + (2 + 1.0 / 3) * V * R.cast<std::complex<double>>() - i * V), 30));
            ranks.barrier();
        }
    }
}

TEST_CASE("diagonals that are too long to be written out, on GPUs of this process [gpus]") {
    const std::vector<otimes::communicator> sets =
        ranks_test::under_mpi() ? std::vector<otimes::communicator>{} : gpu_sets();
    if (sets.empty()) {
        MESSAGE("tests on several GPUs are skipped: there is no GPU");
        return;
    }
    const matrix A = support::random_matrix<matrix>(6, 6, 71), B = support::random_matrix<matrix>(4, 4, 72);
    const Eigen::VectorXf d = support::random_matrix<Eigen::VectorXf>(300, 1, 73);
    const std::vector<std::int64_t> extents{6, 300, 4};
    for (const int rows : {1, 5}) {
        const matrix X = support::random_matrix<matrix>(rows, 7200, 74);
        const Eigen::MatrixXd want =
            X.cast<double>() * kron(A.cast<double>(), d.cast<double>().asDiagonal(), B.cast<double>());
        for (const otimes::communicator& ranks : sets) {
            CAPTURE(ranks.name());
            std::vector<distribution> cuts{otimes::cut_rows(ranks.size())};
            for (std::size_t k = 0; k < 3; ++k) {
                cuts.push_back(otimes::cut_mode(1, ranks.size(), extents, k));
            }
            for (const distribution& from : cuts) {
                CAPTURE(to_string(from));
                DistributedMatrix<float> dX(ranks, rows, 7200, from), dY(ranks), dZ(ranks);
                dX.from_host(X);
                dY = dX * otimes::replicate(ranks, kron(A, d.asDiagonal(), B));
                CHECK(support::close(dY.to_host(), want, 24));
                dZ = dX * kron(otimes::identity(6), d.asDiagonal(), otimes::identity(4));
                matrix scaled = X;
                for (Eigen::Index j = 0; j < X.cols(); ++j) {
                    scaled.col(j) *= d(j / 4 % 300);
                }
                CHECK((dZ.to_host().array() == scaled.array()).all());
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

namespace {

// The columns of a tensor [extents..] whose index of `mode` is in a range: a rank's block, in its order.
std::vector<Eigen::Index> columns_of(const std::vector<std::int64_t>& extents, std::size_t mode,
                                     const otimes::index_range& range) {
    std::int64_t inner = 1;
    for (std::size_t k = mode + 1; k < extents.size(); ++k) {
        inner *= extents[k];
    }
    std::vector<Eigen::Index> columns;
    const std::int64_t all = otimes::planning::product_of(extents);
    for (std::int64_t c = 0; c < all; ++c) {
        const std::int64_t index = c / inner % extents[mode];
        if (index >= range.begin && index < range.end) {
            columns.push_back(c);
        }
    }
    return columns;
}

struct scattered_case {
    std::int64_t rows;
    std::vector<std::int64_t> before;
    std::vector<std::int64_t> after;
    std::int32_t parts;
    std::int32_t cut;
    std::int32_t taken;
};

// Every rank's pass on one GPU, into all receivers' matrices there.
template <class Scalar>
void check_scattered(const scattered_case& c) {
    using otimes::planning::product_of;
    using row_major = Eigen::Matrix<Scalar, -1, -1, Eigen::RowMajor>;
    const otimes::device_executor& gpu = otimes::gpu();
    otimes::distributed_problem problem;
    problem.type = otimes::dtype_of<Scalar>();
    problem.space = otimes::memory_space::device;
    problem.ranks = c.parts;
    problem.rows = c.rows;
    otimes::distributed_stage stage;
    stage.kind = otimes::stage_kind::store;
    stage.mode = c.cut;
    stage.receiver_mode = c.taken;
    stage.extents = c.before;
    stage.where = otimes::cut_mode(1, c.parts, c.before, static_cast<std::size_t>(c.cut));
    std::vector<row_major> factors;
    row_major product = row_major::Identity(1, 1);
    for (std::size_t k = 0; k < c.before.size(); ++k) {
        otimes::distributed_factor f;
        f.type = problem.type;
        f.p_extent = c.before[k];
        f.q_extent = c.after[k];
        f.row_stride = c.after[k];
        f.space = problem.space;
        problem.factors.push_back(f);
        const bool applied = static_cast<std::int32_t>(k) > std::max(c.cut, c.taken);
        factors.push_back(applied ? support::random_matrix<row_major>(c.before[k], c.after[k], 70 + k)
                                  : row_major(row_major::Identity(c.before[k], c.after[k])));
        if (applied) {
            stage.factors.push_back(static_cast<std::int32_t>(k));
        }
    }
    const row_major X = support::random_matrix<row_major>(c.rows, product_of(c.before), 69);
    const row_major Y = X * kron(factors);
    std::vector<DeviceMatrix<Scalar, Eigen::RowMajor>> dF;
    for (const std::int32_t k : stage.factors) {
        dF.emplace_back(factors[static_cast<std::size_t>(k)], gpu);
    }
    const auto range = [&](std::int32_t mode, std::int32_t part) {
        return otimes::part_of(c.after[static_cast<std::size_t>(mode)], c.parts, part);
    };
    std::vector<DeviceMatrix<Scalar, Eigen::RowMajor>> results;
    std::vector<void*> receivers;
    for (std::int32_t k = 0; k < c.parts; ++k) {
        const auto columns = columns_of(c.after, static_cast<std::size_t>(c.taken), range(c.taken, k));
        const auto cols = static_cast<Eigen::Index>(columns.size());
        results.emplace_back(row_major(row_major::Constant(c.rows, cols, std::numeric_limits<Scalar>::quiet_NaN())),
                             gpu);
        receivers.push_back(results.back().data());
    }
    otimes::options wishes;
    wishes.placement = otimes::placement::gpu;
    for (std::int32_t rank = 0; rank < c.parts; ++rank) {
        const auto own = otimes::planning::local_extents(c.before, stage.where, c.cut, rank);
        if (product_of(own) == 0) {
            continue;
        }
        const row_major block =
            X(Eigen::indexing::all, columns_of(c.before, static_cast<std::size_t>(c.cut), range(c.cut, rank)));
        const DeviceMatrix<Scalar, Eigen::RowMajor> dX(block, gpu);
        const otimes::plan pass = otimes::make_plan(
            otimes::planning::local_program(problem, stage.factors, c.rows, own, false, false, {}, {}), gpu.target(),
            wishes);
        const otimes::scatter_shape to = otimes::planning::scatter_of(stage, problem, rank);
        REQUIRE(otimes::planning::scatters(pass, to, gpu.target()));
        otimes::bindings b;
        b.pointers.push_back(const_cast<Scalar*>(dX.data()));
        for (const auto& f : dF) {
            b.pointers.push_back(const_cast<Scalar*>(f.data()));
        }
        b.pointers.push_back(nullptr);
        REQUIRE(gpu.stores_for_peers()->run_scattered(pass, b, to, receivers));
        gpu.synchronize();
    }
    for (std::int32_t k = 0; k < c.parts; ++k) {
        const row_major want =
            Y(Eigen::indexing::all, columns_of(c.after, static_cast<std::size_t>(c.taken), range(c.taken, k)));
        CHECK(support::close(row_major(results[static_cast<std::size_t>(k)].to_host()), want, product_of(c.before)));
    }
}

}  // namespace

TEST_CASE("a pass leaves its output in several matrices [gpus]") {
    if (ranks_test::under_mpi() || otimes::find_gpu() == nullptr) {
        MESSAGE("tests on several GPUs are skipped: there is no GPU");
        return;
    }
    for (const scattered_case& c : {scattered_case{3, {5, 7, 4, 3}, {5, 7, 3, 4}, 2, 0, 1},
                                    {2, {5, 7, 4, 3}, {5, 7, 3, 4}, 3, 1, 0},
                                    {2, {5, 3, 4, 6}, {5, 3, 4, 7}, 2, 0, 1},
                                    {3, {4, 3, 5, 8}, {4, 3, 5, 8}, 4, 2, 0},
                                    {1, {3, 2, 6, 5}, {3, 2, 6, 5}, 4, 0, 2}}) {
        CAPTURE(c.cut);
        CAPTURE(c.taken);
        CAPTURE(c.parts);
        check_scattered<float>(c);
        check_scattered<double>(c);
    }
    check_scattered<float>({2, {8, 16, 64, 64}, {8, 16, 64, 64}, 4, 0, 1});
    // Fewer fibres of 128 go by a kernel that stores into one matrix (plan/gpu_blocks.hpp).
    check_scattered<float>({4, {64, 128, 128}, {64, 128, 128}, 2, 0, 1});
    check_scattered<double>({1, {4, 8, 32, 32}, {4, 8, 32, 32}, 2, 1, 0});
}

TEST_CASE("products in a row: what peers store is there when it is read [gpus]") {
    if (ranks_test::under_mpi()) {
        return;
    }
    // Orthogonal factors: forty products, each of the one before, lose nothing, and one element that is read too early stays.
    const std::vector<std::int64_t> extents{8, 12, 64, 64};
    std::vector<matrix> factors;
    for (const std::int64_t e : extents) {
        factors.push_back(Eigen::HouseholderQR<matrix>(support::random_matrix<matrix>(e, e, 70 + static_cast<int>(e)))
                              .householderQ());
    }
    const std::int64_t cols = otimes::planning::product_of(extents);
    for (int count = 2; count <= 4; ++count) {
        std::vector<otimes::communicator> sets;
        try {
            sets.push_back(otimes::gpu_communicator(
                {.deadline = std::chrono::seconds(30),
                 .gpu_count = count,
                 .links = {.bytes_per_second = 3e11, .stores = true, .store_bytes_per_second = 1e15}}));
        } catch (const otimes::device_error& failure) {
            MESSAGE("tests on several GPUs are skipped: " << std::string(failure.what()));
            return;
        }
        const otimes::communicator& ranks = sets.front();
        const auto K = otimes::replicate(ranks, kron(factors));
        matrix want = support::random_matrix<matrix>(std::int64_t{1}, cols, 77);
        DistributedMatrix<float> dX(ranks, 1, cols, otimes::cut_mode(1, count, extents, 0));
        DistributedMatrix<float> dY(ranks, 1, cols, otimes::cut_mode(1, count, extents, 1));
        dX.from_host(want);
        const auto plan = ranks.plan_for((dX * K).problem(false, &dY.layout(), {}));
        CHECK(std::ranges::any_of(
            plan->stages, [](const otimes::distributed_stage& s) { return s.kind == otimes::stage_kind::store; }));
        for (int i = 0; i < 20; ++i) {
            dY = dX * K;
            dX = dY * K;
        }
        for (int i = 0; i < 40; ++i) {
            want = (want * kron(factors)).eval();
        }
        CHECK((dX.to_host() - want).cwiseAbs().maxCoeff() < 1e-4f * want.cwiseAbs().maxCoeff());

        // The same in slabs by turns: two rows, two and one; what one of them stores goes on beside the others' passes.
        std::vector<std::vector<const void*>> addresses;
        for (std::size_t k = 0; k < extents.size(); ++k) {
            addresses.push_back(K.addresses(k));
        }
        want = support::random_matrix<matrix>(std::int64_t{5}, cols, 78);
        DistributedMatrix<float> dS(ranks, 5, cols, otimes::cut_mode(1, count, extents, 0));
        DistributedMatrix<float> dT(ranks, 5, cols, otimes::cut_mode(1, count, extents, 1));
        dS.from_host(want);
        const otimes::interconnect links{.bytes_per_second = 3e11, .packs = false, .store_bytes_per_second = 1e15};
        const auto slabs_from = [&](const DistributedMatrix<float>& from, const DistributedMatrix<float>& to) {
            std::int64_t least = 0;
            otimes::distributed_plan slabs =
                otimes::planning::plan_in_slabs((from * K).problem(false, &to.layout(), {}), to.layout(), 2, true,
                                                ranks.over().executor_of(0).target(), links, true, least);
            REQUIRE(slabs.slab_count == 3);
            for (const otimes::distributed_plan& one : slabs.slabs) {
                CHECK(std::ranges::any_of(one.stages, [](const otimes::distributed_stage& s) {
                    return s.kind == otimes::stage_kind::store;
                }));
            }
            return slabs;
        };
        const otimes::distributed_plan there = slabs_from(dS, dT);
        const otimes::distributed_plan back = slabs_from(dT, dS);
        for (int i = 0; i < 20; ++i) {
            ranks.run(there, dS.sources(), dT.targets(), addresses, 1.0);
            ranks.run(back, dT.sources(), dS.targets(), addresses, 1.0);
        }
        for (int i = 0; i < 40; ++i) {
            want = (want * kron(factors)).eval();
        }
        CHECK((dS.to_host() - want).cwiseAbs().maxCoeff() < 1e-4f * want.cwiseAbs().maxCoeff());
    }
}

TEST_CASE("stages that begin with what has arrived [gpus]") {
    if (ranks_test::under_mpi()) {
        return;
    }
    for (const std::vector<std::int64_t>& extents :
         {std::vector<std::int64_t>{12, 20, 64, 64}, {64, 9, 64, 64}, {5, 64, 3, 64, 64}}) {
        CAPTURE(extents.front());
        std::vector<matrix> factors;
        for (const std::int64_t e : extents) {  // orthogonal: one element that is read too early stays
            factors.push_back(
                Eigen::HouseholderQR<matrix>(support::random_matrix<matrix>(e, e, 60 + static_cast<int>(e)))
                    .householderQ());
        }
        const std::int64_t cols = otimes::planning::product_of(extents);
        for (int count = 2; count <= 4; ++count) {
            std::vector<otimes::communicator> sets;
            try {
                sets.push_back(otimes::gpu_communicator({.gpu_count = 1}));  // what is expected
                // Links that hold the passes up.
                sets.push_back(otimes::gpu_communicator(
                    {.deadline = std::chrono::seconds(30),
                     .gpu_count = count,
                     .links = {.bytes_per_second = 1e10, .stores = true, .store_bytes_per_second = 1e10}}));
            } catch (const otimes::device_error& failure) {
                MESSAGE("tests on several GPUs are skipped: " << std::string(failure.what()));
                break;
            }
            const otimes::communicator& alone = sets.front();
            const otimes::communicator& ranks = sets.back();
            const otimes::executor& one = ranks.over().executor_of(0);
            REQUIRE(one.stores_for_peers() != nullptr);
            const auto K = otimes::replicate(ranks, kron(factors));
            const auto K_alone = otimes::replicate(alone, kron(factors));
            for (const std::int64_t rows : {3, 5}) {
                CAPTURE(count);
                CAPTURE(rows);
                const matrix X = support::random_matrix<matrix>(rows, cols, 61);
                DistributedMatrix<float> dW(alone, rows, cols);
                dW.from_host(X);
                DistributedMatrix<float> dX(ranks, rows, cols, otimes::cut_mode(1, count, extents, 0));
                DistributedMatrix<float> dY(ranks, rows, cols, otimes::cut_mode(1, count, extents, 1));
                dX.from_host(X);
                for (const auto* const from : {&dX, &dY}) {
                    const auto plan = ranks.plan_for((*from * K).problem(false, &(from == &dX ? dY : dX).layout(), {}));
                    const otimes::distributed_stage& store = plan->stages.at(plan->stages.size() - 2);
                    REQUIRE(store.kind == otimes::stage_kind::store);
                    if (!one.target().gpus.front().has_warpgroup_mma) {
                        MESSAGE("without warpgroups stages wait for all that is stored");
                        continue;
                    }
                    CHECK(store.portion_items > 0);
                    CHECK(one.stores_for_peers()->can_tell_portions(store.plans.front()));
                    CHECK(one.stores_for_peers()->can_run_arriving(plan->stages.back().plans.front()));
                }
                for (int i = 0; i < 10; ++i) {
                    dY = dX * K;
                    dX = dY * K;
                    dW = dW * K_alone;
                    dW = dW * K_alone;
                }
                const matrix want = dW.to_host();
                CHECK((dX.to_host() - want).cwiseAbs().maxCoeff() < 1e-4f * want.cwiseAbs().maxCoeff());
                const matrix before = dY.to_host();
                dY += dX * K;  // what the last stage adds to
                dW = dW * K_alone;
                CHECK((dY.to_host() - before - dW.to_host()).cwiseAbs().maxCoeff() <
                      1e-4f * want.cwiseAbs().maxCoeff());
            }
        }
    }
}

TEST_CASE("chunks of a mode that no rank cuts are multiplied further when they have arrived [gpus]") {
    if (ranks_test::under_mpi()) {
        return;
    }
    const std::vector<std::int64_t> extents{8, 12, 9, 32};
    std::vector<matrix> factors;
    for (const std::int64_t e : extents) {  // orthogonal: one element that is read too early stays
        factors.push_back(Eigen::HouseholderQR<matrix>(support::random_matrix<matrix>(e, e, 70 + static_cast<int>(e)))
                              .householderQ());
    }
    const std::int64_t cols = otimes::planning::product_of(extents);
    for (const otimes::communicator& ranks : gpu_sets()) {
        if (ranks.size() == 1) {
            continue;
        }
        CAPTURE(ranks.name());
        const auto K = otimes::replicate(ranks, kron(factors));
        std::vector<std::vector<const void*>> addresses;
        for (std::size_t k = 0; k < factors.size(); ++k) {
            addresses.push_back(K.addresses(k));
        }
        const otimes::machine& where = ranks.over().executor_of(0).target();
        for (const std::int64_t rows : {1, 3}) {
            const matrix X = support::random_matrix<matrix>(rows, cols, 71);
            DistributedMatrix<float> dX(ranks, rows, cols, otimes::cut_mode(1, ranks.size(), extents, 0));
            DistributedMatrix<float> dY(ranks, rows, cols, otimes::cut_mode(1, ranks.size(), extents, 1));
            matrix want = X;
            for (int i = 0; i < 20; ++i) {
                want = (want * kron(factors)).eval();
            }
            for (const bool by_places : {false, true}) {
                const auto planned = [&](const DistributedMatrix<float>& from, const distribution& to) {
                    const otimes::interconnect links{.bytes_per_second = 3e11,
                                                     .chunks = 4,
                                                     .least_chunk_bytes = 1,
                                                     .packs = !ranks.over().reaches(0, 1),
                                                     .stores = false};
                    std::int64_t least = 0;
                    otimes::distributed_plan plan = otimes::planning::plan_at_once(
                        (from * K).problem(false, &to, ranks.wishes()), where, links, true, least, {}, true);
                    otimes::distributed_stage& first = plan.stages.at(1);
                    REQUIRE(first.chunk_mode == 2);
                    REQUIRE(first.chunks == 4);
                    for (otimes::plan& one : first.plans) {
                        const auto other =
                            otimes::planning::from_place_to_place(plan.source, first.factors, one.source);
                        REQUIRE(other);
                        if (by_places) {
                            one = otimes::make_plan(*other, where, one.wishes);
                        }
                    }
                    return plan;
                };
                const otimes::distributed_plan there = planned(dX, dY.layout());
                const otimes::distributed_plan back = planned(dY, dX.layout());
                dX.from_host(X);
                for (int i = 0; i < 10; ++i) {
                    ranks.run(there, dX.sources(), dY.targets(), addresses, 1.0);
                    ranks.run(back, dY.sources(), dX.targets(), addresses, 1.0);
                }
                CHECK((dX.to_host() - want).cwiseAbs().maxCoeff() < 1e-4f * want.cwiseAbs().maxCoeff());
            }
        }
    }
}
