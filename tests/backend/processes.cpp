// SPDX-License-Identifier: MIT
// What the GPU's executors take from the process: its launcher, its threads, the streams that it passes.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../../backend/core/default_streams.hpp"
#include "../../backend/core/process_launcher.hpp"
#include "../../backend/core/threads.hpp"
#include "../../backend/distributed/transports.hpp"

namespace {

using otimes::backend::is_one_rank_of_several;
using otimes::backend::objection_to_stream;
using otimes::backend::start_threads;

/// The variables of launchers as given, the others unset; as before at the end.
class launched_with {
public:
    launched_with(std::initializer_list<std::pair<const char*, const char*>> variables) {
        for (const char* const name : names) {
            const char* const value = std::getenv(name);
            before_.emplace_back(value != nullptr, value != nullptr ? value : "");
            ::unsetenv(name);
        }
        for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    }
    launched_with(const launched_with&) = delete;
    launched_with& operator=(const launched_with&) = delete;
    ~launched_with() {
        std::size_t i = 0;
        for (const char* const name : names) {
            before_[i].first ? ::setenv(name, before_[i].second.c_str(), 1) : ::unsetenv(name);
            ++i;
        }
    }

private:
    static constexpr std::initializer_list<const char*> names{
        "OMPI_COMM_WORLD_SIZE", "PMI_RANK",     "PMI_SIZE",      "PMIX_RANK",
        "SLURM_NTASKS",         "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"};
    std::vector<std::pair<bool, std::string>> before_;
};

/// A thread of which the system gives three.
class scarce_thread {
public:
    template <class Work>
    scarce_thread(const Work& work, std::size_t i) {
        if (given == 3) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        ++given;
        thread_ = std::thread(work, i);
    }
    void join() { thread_.join(); }
    static int given;

private:
    std::thread thread_;
};
int scarce_thread::given = 0;

}  // namespace

TEST_CASE("a rank of several is what mpirun or srun has started") {
    CHECK(!(launched_with({}), is_one_rank_of_several()));
    CHECK((launched_with({{"OMPI_COMM_WORLD_SIZE", "4"}}), is_one_rank_of_several()));
    CHECK((launched_with({{"PMI_SIZE", "2"}}), is_one_rank_of_several()));
    CHECK(!(launched_with({{"OMPI_COMM_WORLD_SIZE", "1"}}), is_one_rank_of_several()));
    // salloc -n 8, and its shell as an interactive step; sbatch -n 8: one process each.
    CHECK(!(launched_with({{"SLURM_NTASKS", "8"}}), is_one_rank_of_several()));
    CHECK(!(launched_with({{"SLURM_NTASKS", "8"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_STEP_ID", "4294967290"},
                           {"SLURM_STEP_NUM_TASKS", "8"}}),
            is_one_rank_of_several()));
    CHECK(!(launched_with({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}), is_one_rank_of_several()));
    CHECK(!(launched_with({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967291"}}),
            is_one_rank_of_several()));
    // srun -n 8 there, and srun -n 1
    CHECK((launched_with(
               {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}}),
           is_one_rank_of_several()));
    CHECK(!(launched_with(
                {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}}),
            is_one_rank_of_several()));
}

TEST_CASE("a program without MPI that a launcher has started as the only process is not refused") {
    using otimes::backend::started_by_mpi;  // that of none/
    CHECK_FALSE((launched_with({}), started_by_mpi()));
    // mpirun -np 1 and -np 2
    CHECK_FALSE((launched_with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}), started_by_mpi()));
    CHECK((launched_with({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}}), started_by_mpi()));
    CHECK_FALSE((launched_with({{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}}), started_by_mpi()));
    CHECK((launched_with({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), started_by_mpi()));
    // srun -n 1 and -n 8; a shell of salloc -n 8
    CHECK_FALSE((launched_with({{"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "0"}}), started_by_mpi()));
    CHECK((launched_with({{"SLURM_STEP_NUM_TASKS", "8"}, {"PMIX_RANK", "0"}}), started_by_mpi()));
    CHECK((launched_with({{"PMIX_RANK", "0"}}), started_by_mpi()));
    CHECK_FALSE((launched_with({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "0"}}), started_by_mpi()));
}

TEST_CASE("where the system gives no more threads, there are those that it gave") {
    std::atomic<int> sum{0};
    std::vector<scarce_thread> threads;
    const std::size_t started = start_threads(threads, 8, [&](std::size_t i) { sum += 1 << i; });
    for (scarce_thread& t : threads) t.join();
    CHECK(started == 3);
    CHECK(threads.size() == 3);
    CHECK(sum == 7);
    std::vector<std::thread> all;
    CHECK(start_threads(all, 4, [&](std::size_t i) { sum += 8 << i; }) == 4);
    CHECK(start_threads(all, 0, [](std::size_t) {}) == 0);
    for (std::thread& t : all) t.join();
    CHECK(sum == 127);
}

TEST_CASE("CUDA's default streams are refused, also by their other names") {
    const auto stream = [](std::uintptr_t handle) { return reinterpret_cast<const void*>(handle); };
    CHECK(objection_to_stream(stream(0), "gpu(stream)").rfind("otimes::gpu(stream): the stream is the legacy", 0) == 0);
    CHECK(objection_to_stream(stream(1), "gpu(stream)").find("cudaStreamLegacy") != std::string::npos);
    CHECK(objection_to_stream(stream(2), "gpu(stream)").find("cudaStreamPerThread") != std::string::npos);
    for (const std::uintptr_t handle : {std::uintptr_t{0}, std::uintptr_t{1}, std::uintptr_t{2}})
        CHECK(objection_to_stream(stream(handle), "gpu(stream)").find("cudaStreamNonBlocking") != std::string::npos);
    for (const std::uintptr_t handle : {std::uintptr_t{3}, std::uintptr_t{0x55d0c0ffee00}})
        CHECK(objection_to_stream(stream(handle), "gpu(stream)").empty());
}
