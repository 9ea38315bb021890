// SPDX-License-Identifier: MIT
// Ranks of MPI on the CPU. Every operation is non-blocking and polled, so that a rank or link that is gone ends in an error
// within the deadline, never in a hang.
#define OMPI_SKIP_MPICXX 1  // the C interface only
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <otimes/program/errors.hpp>

#include "../distributed/host_transport.hpp"
#include "../distributed/transports.hpp"

namespace otimes::backend {

namespace {

constexpr std::int64_t most_message_bytes = std::int64_t{1} << 30;  // MPI counts in int
constexpr int message_tag = 71;

/// MPI_Init for programs that have not called it, and MPI_Finalize for those.
class mpi_library {
public:
    static mpi_library& instance() {
        static mpi_library library;
        return library;
    }
    mpi_library(const mpi_library&) = delete;
    mpi_library& operator=(const mpi_library&) = delete;
    ~mpi_library() {
        int finalized = 0;
        MPI_Finalized(&finalized);
        // With a rank gone MPI_Finalize would wait for it: the launcher ends what is left.
        if (own_ && finalized == 0 && !broken) {
            MPI_Finalize();
        }
    }
    bool broken = false;

private:
    mpi_library() {
        int initialized = 0;
        MPI_Initialized(&initialized);
        if (initialized == 0) {
            int provided = 0;
            MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
            own_ = true;
        }
    }
    bool own_ = false;
};

class mpi_transport final : public host_transport {
public:
    mpi_transport(const executor& where, std::chrono::milliseconds deadline)
        : host_transport(where), deadline_(deadline) {
        mpi_library::instance();
        MPI_Request request = MPI_REQUEST_NULL;
        // A communicator of our own: no message meets one of the program's.
        check(MPI_Comm_idup(MPI_COMM_WORLD, &ranks_, &request), "MPI_Comm_idup");
        wait({&request, 1}, "other ranks to join");
        MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
        int rank = 0;
        int size = 1;
        MPI_Comm_rank(ranks_, &rank);
        MPI_Comm_size(ranks_, &size);
        rank_ = rank;
        size_ = size;
    }
    ~mpi_transport() override {
        int finalized = 0;
        MPI_Finalized(&finalized);
        if (finalized == 0 && reason_.empty()) {
            MPI_Comm_free(&ranks_);
        }
    }

    [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }
    [[nodiscard]] std::int32_t size() const noexcept override { return size_; }
    [[nodiscard]] std::int32_t first_rank() const noexcept override { return rank_; }
    [[nodiscard]] std::int32_t local_count() const noexcept override { return 1; }

    void start(std::span<const message> sends, std::span<const message> receives, std::span<const rank_copy> copies,
               bool) override {
        require_whole();
        for (const message& m : receives) {
            for_each_part(m, [&](void* data, int bytes) {
                check(MPI_Irecv(data, bytes, MPI_BYTE, m.from, message_tag, ranks_, &added()), "MPI_Irecv");
            });
        }
        for (const message& m : sends) {
            for_each_part(m, [&](void* data, int bytes) {
                check(MPI_Isend(data, bytes, MPI_BYTE, m.to, message_tag, ranks_, &added()), "MPI_Isend");
            });
        }
        for (const rank_copy& c : copies) {
            copy_on_host(c.source, c.target, c.what);
        }
    }
    void finish(std::int32_t) override {
        wait(requests_, "the messages of an exchange");
        requests_.clear();
    }

    void maximum(std::span<std::uint64_t> words) override {
        require_whole();
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Iallreduce(MPI_IN_PLACE, words.data(), static_cast<int>(words.size()), MPI_UINT64_T, MPI_MAX, ranks_,
                             &request),
              "MPI_Iallreduce");
        wait({&request, 1}, "the agreement of all ranks");
    }
    void broadcast(std::string& text) override {
        require_whole();
        std::uint64_t length = text.size();
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Ibcast(&length, 1, MPI_UINT64_T, 0, ranks_, &request), "MPI_Ibcast");
        wait({&request, 1}, "a text of rank 0");
        text.resize(length);
        for (std::uint64_t at = 0; at < length; at += most_message_bytes) {
            const std::uint64_t some = std::min<std::uint64_t>(most_message_bytes, length - at);
            check(MPI_Ibcast(text.data() + at, static_cast<int>(some), MPI_BYTE, 0, ranks_, &request), "MPI_Ibcast");
            wait({&request, 1}, "a text of rank 0");
        }
    }
    void collect(std::span<double> numbers) override {
        require_whole();
        // One rank's number and zeros: the sum is exact in any order.
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Iallreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), MPI_DOUBLE, MPI_SUM,
                             ranks_, &request),
              "MPI_Iallreduce");
        wait({&request, 1}, "the numbers of all ranks");
    }

private:
    MPI_Request& added() { return requests_.emplace_back(MPI_REQUEST_NULL); }

    template <class Use>
    static void for_each_part(const message& m, const Use& use) {
        for (std::int64_t at = 0; at < m.bytes; at += most_message_bytes) {
            use(static_cast<std::byte*>(m.data) + at, static_cast<int>(std::min(most_message_bytes, m.bytes - at)));
        }
    }

    void require_whole() const {
        if (!reason_.empty()) {
            throw device_error("otimes: the communicator is broken since: " + reason_);
        }
    }

    [[noreturn]] void fail(const std::string& what) {
        reason_ = "otimes: rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + what +
                  " The communicator cannot be used any more.";
        mpi_library::instance().broken = true;
        for (MPI_Request& request : requests_) {  // nothing may arrive in memory that is about to be freed
            if (request != MPI_REQUEST_NULL) {
                MPI_Cancel(&request);
                MPI_Request_free(&request);
            }
        }
        requests_.clear();
        throw device_error(reason_);
    }

    void check(int code, const char* call) {
        if (code != MPI_SUCCESS) {
            char text[MPI_MAX_ERROR_STRING] = {};
            int length = 0;
            MPI_Error_string(code, text, &length);
            fail(std::string(call) + " failed: " + text + ".");
        }
    }

    void wait(std::span<MPI_Request> requests, const char* for_what) {
        require_whole();
        const time_limit limit(deadline_);
        int done = 0;
        while (true) {
            check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
                  "MPI_Testall");
            if (done != 0) {
                return;
            }
            if (limit.passed()) {
                fail("waited " + std::to_string(deadline_.count()) + " ms for " + for_what +
                     ": another rank has died, hangs, or does something else.");
            }
            std::this_thread::yield();
        }
    }

    std::chrono::milliseconds deadline_;
    MPI_Comm ranks_ = MPI_COMM_NULL;
    std::int32_t rank_ = 0;
    std::int32_t size_ = 1;
    std::vector<MPI_Request> requests_;
    std::string reason_;
};

}  // namespace

bool started_by_mpi() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) {
        return true;
    }
    for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"}) {
        if (std::getenv(name) != nullptr) {
            return true;
        }
    }
    return false;
}

std::unique_ptr<transport> make_mpi_transport(const executor& where, std::chrono::milliseconds deadline) {
    return std::make_unique<mpi_transport>(where, deadline);
}

std::int32_t mpi_rank_on_host() {
    mpi_library::instance();
    MPI_Comm host = MPI_COMM_NULL;
    int rank = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    return rank;
}

}  // namespace otimes::backend
