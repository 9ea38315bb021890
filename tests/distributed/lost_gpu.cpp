// SPDX-License-Identifier: MIT
// A process that dies while an exchange between GPUs is under way. Each rank is a process of its own with one GPU; what it needs to agree
// with the others is memory that they share, so that no launcher is wanted, and none ends the survivors.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "../../backend/distributed/host_transport.hpp"
#include "../../backend/distributed/transports.hpp"
#include "distributed/ranks.hpp"

extern char** environ;  // of POSIX

namespace {

using clock_type = std::chrono::steady_clock;
using otimes::DistributedMatrix;
using otimes::kron;
constexpr std::chrono::seconds deadline{8};
constexpr std::int32_t most_ranks = 4;

// What the processes share: of each rank two letters, written by turns, and the number of the last one written.
struct post_office {
    struct box {
        std::atomic<std::uint64_t> written{0};
        std::array<std::uint64_t, 2> bytes{};
        std::array<std::array<char, 1 << 20>, 2> letter{};
    };
    std::array<box, most_ranks> boxes;
};

// A rank's agreements with the others. A rank is at most one letter ahead, so that nobody reads what is being written.
class shared_memory_control final : public otimes::backend::host_transport {
public:
    shared_memory_control(post_office& office, std::int32_t rank, std::int32_t ranks)
        : host_transport(otimes::cpu()), office_(office), rank_(rank), ranks_(ranks) {}

    std::string_view name() const noexcept override { return "shared memory"; }
    std::int32_t size() const noexcept override { return ranks_; }
    std::int32_t first_rank() const noexcept override { return rank_; }
    std::int32_t local_count() const noexcept override { return 1; }
    void start(std::span<const otimes::message>, std::span<const otimes::message>, std::span<const otimes::rank_copy>,
               bool) override {}
    void finish(std::int32_t) override {}
    void maximum(std::span<std::uint64_t> words) override {
        for (const std::string& other : letters({reinterpret_cast<const char*>(words.data()), words.size_bytes()})) {
            for (std::size_t i = 0; i < words.size(); ++i) {
                std::uint64_t word = 0;
                std::memcpy(&word, other.data() + 8 * i, 8);
                words[i] = std::max(words[i], word);
            }
        }
    }
    void broadcast(std::string& text) override { text = letters(rank_ == 0 ? text : std::string()).front(); }
    void collect(std::span<double> numbers) override {
        const auto n = static_cast<std::size_t>(rank_);
        const std::vector<std::string> all = letters({reinterpret_cast<const char*>(numbers.data() + n), 8});
        for (std::size_t i = 0; i < all.size(); ++i) {
            std::memcpy(&numbers[i], all[i].data(), 8);
        }
    }

private:
    // Everyone's letter, once all are there.
    std::vector<std::string> letters(const std::string& mine) {
        const std::uint64_t number = ++number_;
        const auto turn = static_cast<std::size_t>(number % 2);
        post_office::box& own = office_.boxes[static_cast<std::size_t>(rank_)];
        if (mine.size() > own.letter[turn].size()) {
            throw otimes::device_error("shared memory: a letter that is too long");
        }
        std::memcpy(own.letter[turn].data(), mine.data(), mine.size());
        own.bytes[turn] = mine.size();
        own.written.store(number, std::memory_order_release);
        std::vector<std::string> all;
        const otimes::backend::time_limit limit(deadline);
        for (std::int32_t r = 0; r < ranks_; ++r) {
            post_office::box& box = office_.boxes[static_cast<std::size_t>(r)];
            while (box.written.load(std::memory_order_acquire) < number) {
                if (limit.passed()) {
                    throw otimes::device_error("shared memory: waited for a rank that does not write");
                }
                std::this_thread::yield();
            }
            all.emplace_back(box.letter[turn].data(), static_cast<std::size_t>(box.bytes[turn]));
        }
        return all;
    }

    post_office& office_;
    std::int32_t rank_;
    std::int32_t ranks_;
    std::uint64_t number_ = 0;
};

post_office& mapped(const char* path, bool make) {
    const int file = ::open(path, make ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    REQUIRE(file >= 0);
    REQUIRE((!make || ::ftruncate(file, sizeof(post_office)) == 0));
    void* const memory = ::mmap(nullptr, sizeof(post_office), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    REQUIRE(memory != MAP_FAILED);
    return make ? *new (memory) post_office : *static_cast<post_office*>(memory);
}

// One rank. `way`: rank 1 dies "before" it sends its part of an exchange that all have agreed on, or with many large ones "under way".
void be_a_rank(std::int32_t rank, std::int32_t count, const std::string& way, const char* path) {
    const otimes::communicator_options how{.deadline = deadline};
    const otimes::communicator ranks(
        otimes::backend::make_gpu_transport(
            rank, 1, std::make_unique<shared_memory_control>(mapped(path, false), rank, count), deadline, false),
        how);
    const std::vector<std::int64_t> extents{64, 64, 64};
    const std::int64_t rows = way == "before" ? 2 : 512;
    const std::int64_t cols = 64 * 64 * 64;
    const auto from = otimes::cut_mode(1, count, extents, 0);
    const auto to = otimes::cut_mode(1, count, extents, 1);
    std::vector<Eigen::MatrixXf> factors(3, Eigen::MatrixXf::Identity(64, 64));
    const auto K = otimes::replicate(ranks, kron(factors));
    DistributedMatrix<float> dS(ranks, rows, 1);
    dS.fill([](std::int64_t i, std::int64_t) { return static_cast<float>(i % 7); });
    std::vector<Eigen::MatrixXf> ones(3, Eigen::MatrixXf::Ones(1, 64));
    DistributedMatrix<float> dX(ranks, rows, cols, from);
    dX = dS * kron(ones);
    DistributedMatrix<float> dY(ranks, rows, cols, to);
    dY = dX * K;
    CHECK(dY.staged_block().back() == static_cast<float>((rows - 1) % 7));  // before it, all is well
    ranks.barrier();
    const auto began = clock_type::now();
    if (way == "before") {
        if (rank == 1) {
            static_cast<void>(ranks.plan_for((dX * K).problem(false, &dY.layout(), ranks.wishes())));
            std::raise(SIGKILL);
        }
        CHECK_THROWS_AS(
            [&] {
                dY = dX * K;
                ranks.over().synchronize();
            }(),
            otimes::device_error);
    } else {
        CHECK_THROWS_AS(
            [&] {
                for (int i = 0; i < 200; ++i) {  // 256 MiB from each rank
                    ranks.move(from, dX.sources(), to, dY.targets(), rows, cols, 4);
                    if (rank == 1 && i == 20) {
                        std::raise(SIGKILL);
                    }
                }
                ranks.over().synchronize();
            }(),
            otimes::device_error);
    }
    CHECK(std::chrono::duration<double>(clock_type::now() - began).count() < 8 + 4);
    CHECK_THROWS_WITH_AS(ranks.barrier(), doctest::Contains("is broken since"), otimes::device_error);
    CHECK_THROWS_AS(dY = dX * K, otimes::device_error);
}

}  // namespace

TEST_CASE("a process that dies while GPUs exchange ends in an error on the others in time [gpus]") {
    if (const char* const rank = std::getenv("OTIMES_TEST_GPU_RANK")) {
        be_a_rank(std::atoi(rank), std::atoi(std::getenv("OTIMES_TEST_GPU_RANKS")), std::getenv("OTIMES_TEST_GPU_WAY"),
                  std::getenv("OTIMES_TEST_GPU_OFFICE"));
        return;
    }
    const std::int32_t count = std::min(otimes::backend::visible_gpus(), 3);
    if (ranks_test::under_mpi() || count < 2) {
        MESSAGE("tests on several GPUs are skipped: there are no two GPUs");
        return;
    }
    for (const std::string way : {"before", "under way"}) {
        CAPTURE(way);
        const std::string path = "/dev/shm/otimes_lost_gpu_" + std::to_string(::getpid());
        post_office& office = mapped(path.c_str(), true);
        std::vector<pid_t> ranks;
        for (std::int32_t rank = 0; rank < count; ++rank) {
            std::vector<std::string> settings{"OTIMES_TEST_GPU_RANK=" + std::to_string(rank),
                                              "OTIMES_TEST_GPU_RANKS=" + std::to_string(count),
                                              "OTIMES_TEST_GPU_WAY=" + way, "OTIMES_TEST_GPU_OFFICE=" + path};
            std::vector<char*> variables;
            for (std::string& s : settings) {
                variables.push_back(s.data());
            }
            for (char** v = environ; *v != nullptr; ++v) {
                variables.push_back(*v);
            }
            variables.push_back(nullptr);
            char self[] = "/proc/self/exe";
            char only[] = "--test-case=a process that dies while GPUs exchange*";
            char* const arguments[] = {self, only, nullptr};
            pid_t child = 0;
            REQUIRE(::posix_spawn(&child, self, nullptr, nullptr, arguments, variables.data()) == 0);
            ranks.push_back(child);
        }
        // None hangs: a start, the deadline, and what is left of a minute.
        const otimes::backend::time_limit limit(std::chrono::seconds(60));
        for (std::int32_t rank = 0; rank < count; ++rank) {
            CAPTURE(rank);
            const pid_t child = ranks[static_cast<std::size_t>(rank)];
            int status = 0;
            bool ended = false;
            while (!(ended = ::waitpid(child, &status, WNOHANG) == child) && !limit.passed()) {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            }
            if (!ended) {
                ::kill(child, SIGKILL);
                ::waitpid(child, &status, 0);
            }
            CHECK(ended);
            if (rank == 1) {
                CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
            } else {
                CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
            }
        }
        ::munmap(&office, sizeof(post_office));
        ::unlink(path.c_str());
    }
}
