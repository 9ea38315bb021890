// SPDX-License-Identifier: MIT
// Products of the GPUs of this process, captured into a graph: replayed with other contents, and what is refused. Skipped, visibly, where there
// are no two GPUs.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <optional>

#include "support/cuda_driver.hpp"
#include "support/random.hpp"

using otimes::DistributedMatrix;
using otimes::kron;

namespace {

using matrix = Eigen::MatrixXf;

std::optional<otimes::communicator> two_gpus(bool copies, const otimes::interconnect& links) {
    if (ranks_test::under_mpi()) {
        return std::nullopt;
    }
    try {
        return otimes::gpu_communicator(
            {.deadline = std::chrono::seconds(20), .gpu_count = 2, .exchange_by_copies = copies, .links = links});
    } catch (const otimes::device_error& failure) {
        MESSAGE("tests on several GPUs are skipped: " << std::string(failure.what()));
        return std::nullopt;
    }
}

// The streams of two ranks, captured into one graph: the first one's, which the other joins by an event, and by another at the end.
class one_graph {
public:
    explicit one_graph(const otimes::communicator& ranks) {
        for (int rank = 0; rank < 2; ++rank) {
            const auto& executor = dynamic_cast<const otimes::device_executor&>(ranks.over().executor_of(rank));
            streams_.push_back(executor.stream());
            events_.push_back(nullptr);
            on(rank, [&] { REQUIRE(cuda.event_create(&events_.back(), 2) == 0); });
        }
    }
    void begin(bool together = true) {
        REQUIRE(cuda.begin_capture(streams_[0], 2) == 0);
        if (together) {
            waits_for(1, 0);
        }
    }
    void* end(bool together = true) {
        if (together) {
            waits_for(0, 1);
        }
        void* graph = nullptr;
        REQUIRE(cuda.end_capture(streams_[0], &graph) == 0);
        return graph;
    }
    // Between two launches of a graph, or a launch and other work, the ranks' streams wait for each other.
    void launch(void* executable) {
        waits_for(0, 1);
        REQUIRE(cuda.graph_launch(executable, streams_[0]) == 0);
        waits_for(1, 0);
    }
    std::size_t nodes_of(void* graph) {
        std::size_t nodes = 0;
        REQUIRE(cuda.node_count(graph, nullptr, &nodes) == 0);
        return nodes;
    }
    void* instance_of(void* graph) {
        void* executable = nullptr;
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        return executable;
    }

private:
    template <class Call>
    void on(int rank, const Call& call) {
        void* context = nullptr;
        REQUIRE(cuda.primary_retain(&context, rank) == 0);
        REQUIRE(cuda.context_push(context) == 0);
        call();
        REQUIRE(cuda.context_pop(&context) == 0);
    }
    void waits_for(int later, int earlier) {
        const auto from = static_cast<std::size_t>(earlier);
        on(earlier, [&] { REQUIRE(cuda.event_record(events_[from], streams_[from]) == 0); });
        on(later, [&] { REQUIRE(cuda.stream_wait(streams_[static_cast<std::size_t>(later)], events_[from], 0) == 0); });
    }

    support::driver cuda;
    std::vector<CUstream_st*> streams_;
    std::vector<void*> events_;
};

// Three products are captured, and replayed with other contents of X.
void check_replays(const otimes::communicator& ranks) {
    const bool by_host = std::getenv("PRETENDED_GPUS") != nullptr;  // tests/pretended_driver: its kernels are slow
    const std::int64_t long_mode = by_host ? 8 : 64;
    for (const std::vector<std::int64_t>& extents :
         {std::vector<std::int64_t>{8, 6, long_mode, long_mode}, std::vector<std::int64_t>{5, 7, 6}}) {
        std::vector<matrix> factors;
        for (std::size_t k = 0; k < extents.size(); ++k) {
            factors.push_back(support::random_matrix<matrix>(extents[k], extents[k], 80 + k));
        }
        const std::int64_t cols = otimes::planning::product_of(extents);
        const auto K = otimes::replicate(ranks, kron(factors));
        for (const std::pair<std::int64_t, bool>& one : {std::pair{std::int64_t{1}, true}, {3, true}, {3, false}}) {
            const std::int64_t rows = one.first;
            const bool by_columns = one.second;
            CAPTURE(cols);
            CAPTURE(rows);
            CAPTURE(by_columns);
            const auto cut = [&](std::size_t mode) {
                return by_columns ? otimes::cut_mode(1, 2, extents, mode) : otimes::cut_rows(2);
            };
            DistributedMatrix<float> dX(ranks, rows, cols, cut(0)), dY(ranks, rows, cols, cut(1)),
                dZ(ranks, rows, cols, cut(0));
            const auto products = [&] {
                dY = dX * K;
                dZ = dY * K;
                dZ += 2.0f * dX * K;
            };
            const auto poison = [&] {
                for (DistributedMatrix<float>* const d : {&dY, &dZ}) {
                    d->fill([](std::int64_t, std::int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
                }
            };
            std::vector<matrix> contents;
            std::vector<std::pair<matrix, matrix>> want;  // what is queued as always leaves
            for (std::uint64_t turn = 0; turn < 3; ++turn) {
                contents.push_back(support::random_matrix<matrix>(rows, cols, 90 + turn));
                dX.from_host(contents.back());
                products();
                want.emplace_back(dY.to_host(), dZ.to_host());
            }
            REQUIRE(want[0] != want[1]);
            one_graph graph(ranks);
            graph.begin();
            products();
            void* const captured = graph.end();
            CHECK(graph.nodes_of(captured) >= 6);
            void* const executable = graph.instance_of(captured);
            for (std::size_t turn = 0; turn < 3; ++turn) {
                CAPTURE(turn);
                dX.from_host(contents[turn]);
                poison();
                graph.launch(executable);
                CHECK(dY.to_host() == want[turn].first);
                CHECK(dZ.to_host() == want[turn].second);
            }
            // Many at once, then what is not captured around it.
            poison();
            for (int i = 0; i < 20; ++i) {
                graph.launch(executable);
            }
            CHECK(dZ.to_host() == want[2].second);
            dX.from_host(contents[0]);
            poison();
            products();
            graph.launch(executable);
            products();
            CHECK(dY.to_host() == want[0].first);
            CHECK(dZ.to_host() == want[0].second);
        }
    }
}

}  // namespace

TEST_CASE("captured products of two GPUs replay with new contents [gpus]") {
    for (const bool stores : {true, false}) {
        CAPTURE(stores);
        const std::optional<otimes::communicator> ranks = two_gpus(true, {.bytes_per_second = 3e11,
                                                                          .chunks = 2,
                                                                          .least_chunk_bytes = 1,
                                                                          .stores = stores,
                                                                          .store_bytes_per_second = 1e15});
        if (ranks) {
            check_replays(*ranks);
        }
    }
}

TEST_CASE("captured products of two GPUs over NCCL replay with new contents [gpus]") {
    if (const std::optional<otimes::communicator> ranks = two_gpus(false, {.bytes_per_second = 3e11})) {
        check_replays(*ranks);
    }
}

TEST_CASE("what cannot be captured of two GPUs is refused, and nothing is queued [gpus]") {
    const std::optional<otimes::communicator> made = two_gpus(true, {.bytes_per_second = 3e11});
    if (!made) {
        return;
    }
    const otimes::communicator& ranks = *made;
    const std::vector<std::int64_t> extents{4, 6, 5};
    std::vector<matrix> factors;
    for (std::size_t k = 0; k < extents.size(); ++k) {
        factors.push_back(support::random_matrix<matrix>(extents[k], extents[k], 60 + k));
    }
    const auto K = otimes::replicate(ranks, kron(factors));
    DistributedMatrix<float> dX(ranks, 3, 120, otimes::cut_mode(1, 2, extents, 0)),
        dY(ranks, 3, 120, otimes::cut_mode(1, 2, extents, 1)), dW(ranks, 300, 120, otimes::cut_mode(1, 2, extents, 0)),
        dV(ranks, 300, 120, otimes::cut_mode(1, 2, extents, 1));
    dX.from_host(support::random_matrix<matrix>(3, 120, 63));
    dW.from_host(support::random_matrix<matrix>(300, 120, 64));
    dY = dX * K;
    const matrix want = dY.to_host();
    one_graph graph(ranks);
    graph.begin(false);  // the other rank's stream is not captured
    CHECK_THROWS_WITH_AS(dY = dX * K, doctest::Contains("rank 0"), otimes::device_error);
    CHECK_THROWS_AS(dX.redistribute(otimes::cut_rows(2)), otimes::device_error);
    CHECK(graph.nodes_of(graph.end(false)) == 0);
    CHECK(dY.to_host() == want);
    graph.begin();
    CHECK_THROWS_AS(static_cast<void>(dY.to_host()), otimes::device_error);  // the host waits
    CHECK_THROWS_AS(ranks.barrier(), otimes::device_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(dot(dX, dX)), doctest::Contains("returns its number to the host"),
                         otimes::device_error);
    CHECK_THROWS_AS(dY = dX * kron(factors), otimes::device_error);  // host factors
    CHECK_THROWS_AS(dV = dW * K, otimes::device_error);              // an intermediate that has yet to be taken
    CHECK_THROWS_AS(DistributedMatrix<float>(ranks, 3, 120, otimes::cut_rows(2)), otimes::device_error);
    static_cast<void>(graph.end());
    dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
    dY = dX * K;
    CHECK(dY.to_host() == want);  // the communicator is whole
}
