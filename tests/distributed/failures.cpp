// SPDX-License-Identifier: MIT
// What ranks see of each other's failures: of ranks that are late, that call something else, that have no memory.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../../backend/distributed/host_transport.hpp"
#include "../../backend/distributed/transports.hpp"
#include "support/counting_new.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

using matrix = Eigen::MatrixXd;

// For each_rank.sh: whether this case is the one that it starts, and what a rank says at the end of it.
bool asked_for(const char* name) {
    const char* const wanted = std::getenv("OTIMES_TEST_CASE");
    return wanted != nullptr && std::string(wanted) == name;
}
void say(const char* name, std::int32_t rank, bool as_expected) {
    std::printf("%s %d %s\n", name, static_cast<int>(rank), as_expected ? "as expected" : "NOT as expected");
    std::fflush(stdout);
}

otimes::communicator within(std::chrono::milliseconds deadline) {
    return otimes::make_communicator({.deadline = deadline, .use_gpus = false});
}

// Whether this function's frame, which lies where those of the calls before it were, stays as it is while MPI goes on with its work.
__attribute__((noinline)) bool frame_stays(const otimes::communicator& other) {
    volatile unsigned char mine[65536];
    for (volatile unsigned char& byte : mine) {
        byte = 0xA5;
    }
    for (int i = 0; i < 30; ++i) {
        other.barrier();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    bool same = true;
    for (const volatile unsigned char& byte : mine) {
        same = same && byte == 0xA5;
    }
    return same;
}

// Ranks of several processes, or none.
const otimes::communicator* several() {
    return under_mpi() && everyone().front().size() > 1 ? &everyone().front() : nullptr;
}

}  // namespace

TEST_CASE("ranks that make different calls throw together and go on") {
    if (several() == nullptr) {
        return;
    }
    const otimes::communicator& ranks = *several();
    const bool first = ranks.rank() == 0;
    const matrix A = matrix::Ones(2, 2), B = matrix::Ones(3, 3);
    DistributedMatrix<double> x(ranks, 6, 6), y(ranks, 6, 6);
    x.fill([](std::int64_t, std::int64_t) { return 1.0; });
    y.fill([](std::int64_t, std::int64_t) { return 2.0; });
    const double one = 1;
    const std::vector<std::function<void()>> calls{
        [&] { ranks.barrier(); },
        [&] {
            static_cast<void>(ranks.sum({&one, 1}));
        },
        [&] { static_cast<void>(dot(x, x)); },
        [&] { y = x * kron(A, B); },
        [&] { y = kron(A, B) * x; },
        [&] { y += x; },
        [&] { y -= x; },
        [&] { static_cast<void>(make_plan(x * kron(A, A.topRows(1), B))); },
        [&] { x.redistribute(x.layout()); },
        [&] { static_cast<void>(x.gather()); },
        [&] { static_cast<void>(x.gather(1)); },
        [&] { x.scatter(matrix(6, 6)); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
        for (std::size_t j = 0; j < calls.size(); ++j) {
            if (i == j) {
                continue;
            }
            CAPTURE(i);
            CAPTURE(j);
            const std::string said = thrown(first ? calls[i] : calls[j]);
            CHECK(has(said, "unsupported: "));
            CHECK(has(said, "different"));
            CHECK(has(said, "rank 0"));
        }
    }
    CHECK(has(thrown([&] { first ? y += x : y -= x; }),
              first ? "this rank agrees with rank 0" : "the assignment is -= here, there +="));
    if (ranks.size() % 2 == 0) {
        const std::vector<std::int64_t> extents{6};
        DistributedMatrix<double> z(
            ranks, 6, 6, first ? otimes::cut_mode(2, ranks.size() / 2, extents, 0) : otimes::cut_columns(ranks.size()));
        CHECK(has(thrown([&] { y = kron(A, B) * z; }), "the ranks were asked for different products"));
    }
    CHECK(ranks.sum({&one, 1}) == ranks.size());
    CHECK((x.to_host().array() == 1).all());
    CHECK((y.to_host().array() == 2).all());
    // A call that begins as another one ends with it.
    if (first) {
        CHECK(has(thrown([&] { static_cast<void>(x.to_host()); }), "rank 0: the whole matrix on every process"));
    } else {
        static_cast<void>(x.gather());
        CHECK(has(thrown([&] { ranks.barrier(); }), "a barrier; rank 0: the whole matrix on every process"));
    }
    ranks.barrier();
}

TEST_CASE("a thread that MPI was not initialised for is refused, and the ranks go on in the one that it was") {
    if (several() == nullptr) {
        return;
    }
    const otimes::communicator& ranks = *several();
    auto* const query = reinterpret_cast<int (*)(int*)>(::dlsym(RTLD_DEFAULT, "MPI_Query_thread"));
    REQUIRE((query != nullptr));
    int level = 0;
    REQUIRE(query(&level) == 0);
    auto own = std::make_unique<otimes::communicator>(within(std::chrono::seconds(20)));
    const matrix A = matrix::Ones(2, 2), B = matrix::Ones(3, 3);
    DistributedMatrix<double> x(ranks, 5, 6), y(ranks, 5, 6, otimes::cut_columns(ranks.size()));
    x.fill([](std::int64_t, std::int64_t) { return 1.0; });
    y.fill([](std::int64_t, std::int64_t) { return 2.0; });
    std::vector<std::string> said;
    std::thread([&] {
        for (const std::function<void()>& call : std::vector<std::function<void()>>{
                 [&] { ranks.barrier(); }, [&] { y = x * kron(A, B); }, [&] { static_cast<void>(dot(x, x)); },
                 [&] { x.redistribute(y.layout()); }, [&] { static_cast<void>(within(std::chrono::seconds(20))); }}) {
            said.push_back(thrown(call));
        }
        own.reset();
    }).join();
    constexpr int serialized = 2;  // MPI_THREAD_SERIALIZED of Open MPI and of MPICH
    for (const std::string& text : said) {
        CAPTURE(text);
        CHECK((level >= serialized ? text == "nothing"
                                   : has(text, "unsupported: otimes: this thread uses ranks of MPI")));
    }
    CHECK((x.to_host().array() == 1).all());
    CHECK((y.to_host().array() == (level >= serialized ? 6 : 2)).all());
}

TEST_CASE("what one rank cannot do is told to the others") {
    if (several() == nullptr) {
        return;
    }
    const otimes::communicator& ranks = *several();
    const bool first = ranks.rank() == 0;
    DistributedMatrix<double> y(ranks);
    const auto check = [&](const char* there, const std::function<void()>& call) {
        CHECK(has(thrown(call), first ? there : "device: otimes: another rank could not make this call"));
    };
    const matrix large = matrix::Ones(first ? 300 : 2, first ? 300 : 2);
    DistributedMatrix<double> x(ranks, 3, 2);
    x.fill([](std::int64_t, std::int64_t) { return 1.0; });
    // Also before the product is assigned.
    check("unsupported: otimes: factor 1, 300 x 300, has structure",
          [&] { y = x * kron(large.triangularView<Eigen::Lower>()); });
    check("unsupported: otimes: factor 1, 300 x 300, has structure",
          [&] { static_cast<void>(make_plan(2.0 * x * kron(large.triangularView<Eigen::Lower>()))); });
    check("shape: otimes: X * kron(F1)", [&] { static_cast<void>(make_plan(x * kron(large))); });
    check("shape: otimes: dot(x, y)", [&] {
        const DistributedMatrix<double> z(ranks, 3, 2, otimes::cut_columns(first && ranks.size() > 1 ? 2 : 1));
        const DistributedMatrix<double> w(ranks, 3, 2, otimes::cut_columns(1));
        static_cast<void>(dot(z, w));
    });
    check("shape: otimes: communicator::sum: 2 numbers were given",
          [&] { static_cast<void>(ranks.sum(std::vector<double>(first ? 2 : 1, 1.0))); });
    // A matrix that one rank cannot make: the others learn of it in their next call.
    check("shape: otimes: a distribution into", [&] {
        const DistributedMatrix<double> z(ranks, 3, 2, otimes::cut_rows(first ? 99 : 1));
        ranks.barrier();
    });
    check("shape: otimes: DistributedMatrix::from_host", [&] { x.scatter(matrix(first ? 4 : 3, 2)); });
    ranks.barrier();
    y = x * kron(matrix::Identity(2, 2));
    CHECK((y.to_host().array() == 1).all());
}

TEST_CASE("a rank that has no memory throws an error of otimes, and the others do") {
    if (!support::allocations_are_counted()) {
        return;  // sanitizers end the process
    }
    // More than the addresses of a process: some systems give less than that without having it.
    CHECK(has(thrown([] { DistributedMatrix<double>(otimes::in_process(1), 1 << 23, 1 << 23); }),
              "device: otimes: a rank has no"));
    if (several() == nullptr) {
        return;
    }
    const otimes::communicator& ranks = *several();
    const std::int64_t n = 1000;
    DistributedMatrix<double> x(ranks, n, n), small(ranks, 2, 2);
    x.fill([](std::int64_t, std::int64_t) { return 1.0; });
    small.fill([](std::int64_t, std::int64_t) { return 1.0; });
    const matrix host = matrix::Ones(ranks.rank() == 0 ? n : 0, ranks.rank() == 0 ? n : 0);
    const matrix A = matrix::Identity(40, 40), B = matrix::Identity(25, 25);
    const auto check = [&](const std::string& what, std::int32_t poor, const std::function<void()>& call) {
        CAPTURE(what);
        ranks.barrier();
        const auto began = std::chrono::steady_clock::now();
        std::string said;
        {
            std::optional<support::allocation_size_limit> short_of_memory;
            if (ranks.rank() == poor) {
                short_of_memory.emplace(std::size_t{1} << 19);
            }
            said = thrown(call);
        }
        CAPTURE(said);
        CHECK(has(said,
                  ranks.rank() == poor ? "device: otimes: " : "device: otimes: another rank could not make this call"));
        CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
    };
    const std::int32_t last = ranks.size() - 1;
    check("gather", 0, [&] { static_cast<void>(x.gather(0)); });
    check("to_host", last, [&] { static_cast<void>(x.to_host()); });
    check("scatter", 0, [&] { x.scatter(host); });
    for (const std::int32_t poor : {0, last}) {
        check("a new Y", poor, [&] {
            DistributedMatrix<double> y(ranks);
            y = x * kron(A, B);
        });
        check("Y is X", poor, [&] { x = x * kron(A, B); });
        check("Y is X in a sum", poor, [&] { x = x * kron(A, B) - 2 * x; });
        check("a copy", poor, [&] { const DistributedMatrix<double> y(x); });
        check("redistribute", poor, [&] { x.redistribute(otimes::cut_columns(ranks.size())); });
        check("a new matrix", poor, [&] {
            const DistributedMatrix<double> y(ranks, n, n);
            ranks.barrier();
        });
    }
    // What a product, or a move, holds beside X and Y; later it is there.
    const std::vector<std::int64_t> extents{40, 25};
    const distribution first = otimes::cut_mode(1, ranks.size(), extents, 0);
    for (const std::int32_t poor : {0, last}) {
        const otimes::communicator fresh = within(std::chrono::seconds(20));
        DistributedMatrix<double> z(fresh, n, n, first), y(fresh, n, n, first);
        z.fill([](std::int64_t i, std::int64_t j) { return static_cast<double>(i - j); });
        check("a product that exchanges", poor, [&] { y = z * kron(A, B); });
        check("it has not been forgotten", poor, [&] { y = z * kron(A, B); });
        const auto plan = make_plan(z * kron(A, B));
        y = z * kron(A, B);
        CHECK(dot(y, y) == dot(z, z));
        y -= z;
        CHECK(dot(y, y) == 0);
        const otimes::communicator other = within(std::chrono::seconds(20));
        DistributedMatrix<double> w(other, n, n, first);
        w.fill([](std::int64_t i, std::int64_t j) { return static_cast<double>(i - j); });
        check("a move", poor, [&] { w.redistribute(otimes::cut_mode(1, other.size(), extents, 1)); });
        w.redistribute(otimes::cut_mode(1, other.size(), extents, 1));
        CHECK(dot(w, w) == dot(z, z));
    }
    CHECK(dot(small, small) == 4);
    CHECK(dot(x, x) == static_cast<double>(n * n));
}

// By each_rank.sh.
TEST_CASE("a call that has given up is not written to later [alone] [late_rank]") {
    if (!asked_for("late_rank")) {
        return;
    }
    using std::chrono::milliseconds;
    const otimes::communicator hasty = within(milliseconds(200));
    const otimes::communicator ranks = within(milliseconds(20000));
    const std::int32_t rank = ranks.rank();
    DistributedMatrix<double> dX(hasty, 8, 20);
    dX.fill([](std::int64_t, std::int64_t) { return 1.0; });
    DistributedMatrix<double> dY(hasty);
    std::vector<std::uint64_t> words(64, rank == 0 ? 1 : 7);
    ranks.barrier();
    if (rank == 1) {
        std::this_thread::sleep_for(milliseconds(800));
    }
    const std::string said = thrown([&] { dY = dX * kron(matrix::Identity(4, 4), matrix::Identity(5, 5)); });
    bool good = frame_stays(ranks);
    CHECK(good);
    // Words of the caller, too.
    const otimes::communicator second = within(milliseconds(200));
    ranks.barrier();
    if (rank == 1) {
        std::this_thread::sleep_for(milliseconds(800));
    }
    const std::string again = thrown([&] { second.over().maximum(words); });
    words.assign(words.size(), 42);
    good = frame_stays(ranks) && good;
    good = words == std::vector<std::uint64_t>(64, 42) && good;
    // Nobody waits longer to learn who is on its host.
    const otimes::communicator third = within(milliseconds(200));
    std::string counted = "device: ";
    if (rank == 0) {
        counted = thrown([&] { static_cast<void>(otimes::backend::mpi_rank_on_host(third.over())); });
    }
    // A rank that the others do not join says which one it is.
    const std::string alone = rank == 0 ? thrown([] { static_cast<void>(within(milliseconds(200))); }) : "rank 0 of 2";
    good = has(alone, "rank 0 of 2") && good;
    // The late rank may find what the other one had begun, and then sees no error.
    good = (rank == 1 || (has(said, "device: ") && has(again, "device: "))) && has(counted, "device: ") && good;
    CHECK(good);
    say("late_rank", rank, good);
    static_cast<void>(thrown([&] { ranks.barrier(); }));  // some launchers end the other rank once one has ended
}

// By each_rank.sh.
TEST_CASE("after the program's own MPI_Finalize [alone] [finalized]") {
    if (!asked_for("finalized")) {
        return;
    }
    const otimes::communicator ranks = within(std::chrono::seconds(20));
    const std::int32_t rank = ranks.rank();
    DistributedMatrix<double> dX(ranks, 8, 20);
    dX.fill([](std::int64_t, std::int64_t) { return 1.0; });
    DistributedMatrix<double> dY(ranks);
    dY = dX * kron(matrix::Identity(4, 4), matrix::Identity(5, 5));
    auto* const finalize = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "MPI_Finalize"));
    REQUIRE((finalize != nullptr));
    finalize();
    bool good = true;
    const std::string why = "device: otimes: the ranks talk over MPI, and this program has called MPI_Finalize";
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { ranks.barrier(); },
             [&] { dY = dX * kron(matrix::Identity(4, 4), matrix::Identity(5, 5)); },
             [&] { static_cast<void>(dX.to_host()); },
             [&] { static_cast<void>(dot(dX, dX)); },
             [&] { static_cast<void>(within(std::chrono::seconds(1))); },
         }) {
        const std::string said = thrown(call);
        CHECK(has(said, why));
        good = has(said, why) && good;
    }
    say("finalized", rank, good);
}

namespace {

// Two ranks that are threads of this process and agree with each other; they hold nothing.
struct meeting {
    std::barrier<> both{2};
    std::vector<std::uint64_t> words;
    std::string text;
};
// The machine that rank 0 plans for may change, as it does when something is tuned.
struct changing_executor final : otimes::executor {
    otimes::machine where_now = otimes::cpu().target();
    std::string_view name() const noexcept override { return "changing"; }
    const otimes::machine& target() const noexcept override { return where_now; }
    otimes::placement where() const noexcept override { return otimes::placement::cpu; }
    otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan&, const otimes::bindings&, otimes::workspace_view) const override {}
};
class meeting_transport final : public otimes::transport {
public:
    meeting_transport(meeting& with, std::int32_t rank, const otimes::executor& where, const bool& fails)
        : with_(with), rank_(rank), where_(where), fails_(fails) {}
    std::string_view name() const noexcept override { return "meeting"; }
    std::int32_t size() const noexcept override { return 2; }
    std::int32_t first_rank() const noexcept override { return rank_; }
    std::int32_t local_count() const noexcept override { return 1; }
    const otimes::executor& executor_of(std::int32_t) const override { return where_; }
    void* allocate(std::int32_t, std::int64_t bytes) override { return ::operator new(std::size_t(bytes)); }
    void release(std::int32_t, void* memory, std::int64_t) noexcept override { ::operator delete(memory); }
    void copy(std::int32_t, const void*, void*, const otimes::strided_copy&) override {}
    bool reaches(std::int32_t from, std::int32_t to) const noexcept override { return from == to; }
    void upload(std::int32_t, void*, const void*, std::int64_t) override {}
    void download(std::int32_t, void*, const void*, std::int64_t) override {}
    void start(std::span<const otimes::message>, std::span<const otimes::message>, std::span<const otimes::rank_copy>,
               bool) override {}
    void finish(std::int32_t) override {}
    void maximum(std::span<std::uint64_t> words) override {
        if (rank_ == 0) with_.words.assign(words.begin(), words.end());
        with_.both.arrive_and_wait();
        if (rank_ == 1) std::ranges::transform(words, with_.words, with_.words.begin(), std::ranges::max);
        with_.both.arrive_and_wait();
        std::ranges::copy(with_.words, words.begin());
        with_.both.arrive_and_wait();
    }
    void broadcast(std::string& text) override {
        if (rank_ == 0) with_.text = text;
        with_.both.arrive_and_wait();
        text = with_.text;
        with_.both.arrive_and_wait();
        if (fails_) throw otimes::device_error("meeting: fails after it has sent");
    }
    void collect(std::span<double>) override {}
    void synchronize() override {}

private:
    meeting& with_;
    std::int32_t rank_;
    const otimes::executor& where_;
    const bool& fails_;
};

}  // namespace

TEST_CASE("a rank that still has a plan which rank 0 has made anew takes rank 0's [alone]") {
    meeting with;
    changing_executor planning;
    bool fails = true;
    const bool never = false;
    otimes::distributed_problem problem;
    problem.ranks = 2;
    problem.rows = 12;
    problem.operand = otimes::cut_columns(2);
    for (const std::int64_t n : {4, 6}) {
        problem.factors.push_back({otimes::dtype::f64, n, n, n, 1, false, false, otimes::memory_space::host});
    }
    std::vector<std::shared_ptr<const otimes::distributed_plan>> seen[2];
    std::string first_words[2];
    const auto rank = [&](std::int32_t r) {
        const otimes::communicator ranks(
            std::make_unique<meeting_transport>(with, r,
                                                r == 0 ? static_cast<const otimes::executor&>(planning) : otimes::cpu(),
                                                r == 0 ? fails : never),
            {});
        first_words[r] = thrown([&] { static_cast<void>(ranks.plan_for(problem)); });
        if (r == 0) {
            fails = false;
            planning.where_now.cpu.memory_bytes_per_second *= 3;
            ranks.refuse("it failed");
        }
        for (int times = 0; times < 2; ++times) {
            seen[r].push_back(ranks.plan_for(problem));
        }
    };
    std::thread other([&] { rank(1); });
    rank(0);
    other.join();
    CHECK(first_words[0] == "device: meeting: fails after it has sent");
    CHECK(has(first_words[1], "device: otimes: another rank could not make this call"));
    REQUIRE(seen[0].size() == 2);
    REQUIRE(seen[1].size() == 2);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
        CHECK(to_text(*seen[0][i]) == to_text(*seen[1][i]));
    }
    CHECK(seen[1][0] == seen[1][1]);
}

TEST_CASE("ranks of one host count each other") {
    if (!under_mpi()) {
        return;
    }
    const otimes::communicator& ranks = everyone().front();
    CHECK(otimes::backend::mpi_rank_on_host(ranks.over()) == ranks.rank());
}

TEST_CASE("a deadline may be as long as there is time") {
    using std::chrono::milliseconds;
    for (const milliseconds length :
         {milliseconds::max(), milliseconds::max() / 2, milliseconds(std::chrono::hours(24 * 365 * 300))}) {
        CHECK_FALSE(otimes::backend::time_limit(length).passed());
    }
    for (const milliseconds length : {milliseconds::min(), milliseconds(-1), milliseconds(0)}) {
        const otimes::backend::time_limit limit(length);
        std::this_thread::sleep_for(milliseconds(1));
        CHECK(limit.passed());
    }
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK(otimes::backend::nanoseconds_of(milliseconds(7), 10) == 70'000'000);
    CHECK(otimes::backend::nanoseconds_of(milliseconds::max(), 10) == most);
    CHECK(otimes::backend::nanoseconds_of(milliseconds(most / 2'000'000), 10) == most);
    CHECK(otimes::backend::nanoseconds_of(milliseconds(-5), 10) == 0);
    if (under_mpi()) {
        within(milliseconds::max()).barrier();
    }
}
