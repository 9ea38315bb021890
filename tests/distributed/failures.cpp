// SPDX-License-Identifier: MIT
// What ranks see of each other's failures: of ranks that are late, that call something else, that have no memory.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <thread>

#include "../../backend/distributed/host_transport.hpp"
#include "../../backend/distributed/transports.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

using matrix = Eigen::MatrixXd;

// The type and the text of what `call` throws.
std::string seen(const std::function<void()>& call) {
    try {
        call();
    } catch (const otimes::device_error& e) {
        return std::string("device: ") + e.what();
    } catch (const otimes::unsupported_error& e) {
        return std::string("unsupported: ") + e.what();
    } catch (const otimes::shape_error& e) {
        return std::string("shape: ") + e.what();
    } catch (const otimes::budget_error& e) {
        return std::string("budget: ") + e.what();
    } catch (const std::exception& e) {
        return std::string("not of otimes: ") + e.what();
    }
    return "nothing";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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

}  // namespace

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
    const std::string said = seen([&] { dY = dX * kron(matrix::Identity(4, 4), matrix::Identity(5, 5)); });
    bool good = frame_stays(ranks);
    CHECK(good);
    // Words of the caller, too.
    const otimes::communicator second = within(milliseconds(200));
    ranks.barrier();
    if (rank == 1) {
        std::this_thread::sleep_for(milliseconds(800));
    }
    const std::string again = seen([&] { second.over().maximum(words); });
    words.assign(words.size(), 42);
    good = frame_stays(ranks) && good;
    good = words == std::vector<std::uint64_t>(64, 42) && good;
    // Nobody waits longer to learn who is on its host.
    const otimes::communicator third = within(milliseconds(200));
    std::string counted = "device: ";
    if (rank == 0) {
        counted = seen([&] { static_cast<void>(otimes::backend::mpi_rank_on_host(third.over())); });
    }
    // The late rank may find what the other one had begun, and then sees no error.
    good = (rank == 1 || (has(said, "device: ") && has(again, "device: "))) && has(counted, "device: ") && good;
    CHECK(good);
    say("late_rank", rank, good);
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
        const std::string said = seen(call);
        CHECK(has(said, why));
        good = has(said, why) && good;
    }
    say("finalized", rank, good);
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
