// SPDX-License-Identifier: MIT
// Ranks of MPI on the CPU. Every operation is non-blocking and polled, so that a rank or link that is gone ends in an error
// within the deadline, never in a hang.
#define OMPI_SKIP_MPICXX 1  // the C interface only
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <otimes/plan/plan_text.hpp>
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
    std::atomic<bool> broken = false;  // told by communicators of several threads

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

bool finalized() {
    int result = 0;
    MPI_Finalized(&result);
    return result != 0;
}

/// Whether this thread may call MPI, as far as MPI can tell: where it was initialised for several threads, any may.
/// @pre MPI is initialised, and not finalised
bool is_thread_of_mpi() {
    int level = MPI_THREAD_SINGLE;
    int is_main = 0;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    return level >= MPI_THREAD_SERIALIZED || is_main != 0;
}

/// What collective calls that are on their way read and write. MPI cannot cancel them, and goes on with them after a deadline: then this
/// is left to it.
struct collective_memory {
    MPI_Comm ranks = MPI_COMM_NULL;
    std::vector<std::uint64_t> words;
    std::vector<double> numbers;
    std::uint64_t length = 0;
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
};

/// A part of a message that is on its way.
struct started_part {
    std::byte* data = nullptr;
    bool received = false;
};

class mpi_transport final : public host_transport {
public:
    mpi_transport(const executor& where, std::chrono::milliseconds deadline)
        : host_transport(where), deadline_(deadline), shared_(std::make_unique<collective_memory>()) {
        mpi_library::instance();
        require_whole();
        int rank = 0;
        int size = 1;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        rank_ = rank;
        size_ = size;
        // A communicator of our own: no message meets one of the program's.
        check(MPI_Comm_idup(MPI_COMM_WORLD, &shared_->ranks, &shared_->request), "MPI_Comm_idup");
        wait({&shared_->request, 1}, "other ranks to join");
        ranks_ = shared_->ranks;
        MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
    }
    ~mpi_transport() override {
        if (!finalized() && reason_.empty() && is_thread_of_mpi()) {
            MPI_Comm_free(&ranks_);
        }
    }

    [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }
    [[nodiscard]] std::int32_t size() const noexcept override { return size_; }
    [[nodiscard]] std::int32_t first_rank() const noexcept override { return rank_; }
    [[nodiscard]] std::int32_t local_count() const noexcept override { return 1; }

    /// Memory of which a part is still sent or received is left to MPI.
    void release(std::int32_t local, void* memory, std::int64_t bytes) noexcept override {
        const auto* const begin = static_cast<const std::byte*>(memory);
        const std::less_equal<> up_to;
        const bool in_use = std::ranges::any_of(
            parts_, [&](const started_part& p) { return up_to(begin, p.data) && !up_to(begin + bytes, p.data); });
        if (!in_use) {
            host_transport::release(local, memory, bytes);
        }
    }

    void start(std::span<const message> sends, std::span<const message> receives, std::span<const rank_copy> copies,
               bool) override {
        require_whole();
        for (const message& m : receives) {
            for_each_part(m, [&](std::byte* data, int bytes) {
                check(MPI_Irecv(data, bytes, MPI_BYTE, m.from, message_tag, ranks_, &added(data, true)), "MPI_Irecv");
            });
        }
        for (const message& m : sends) {
            for_each_part(m, [&](std::byte* data, int bytes) {
                check(MPI_Isend(data, bytes, MPI_BYTE, m.to, message_tag, ranks_, &added(data, false)), "MPI_Isend");
            });
        }
        for (const rank_copy& c : copies) {
            copy_on_host(c.source, c.target, c.what);
        }
    }
    void finish(std::int32_t) override {
        wait(requests_, "the messages of an exchange");
        requests_.clear();
        parts_.clear();
    }

    void maximum(std::span<std::uint64_t> words) override {
        require_whole();
        std::vector<std::uint64_t>& held = shared_->words;
        held.assign(words.begin(), words.end());
        check(MPI_Iallreduce(MPI_IN_PLACE, held.data(), static_cast<int>(held.size()), MPI_UINT64_T, MPI_MAX, ranks_,
                             &shared_->request),
              "MPI_Iallreduce");
        wait({&shared_->request, 1}, "the agreement of all ranks");
        std::ranges::copy(held, words.begin());
    }
    void broadcast(std::string& text) override {
        require_whole();
        std::string& held = shared_->text;
        held = std::move(text);
        std::uint64_t& length = shared_->length = held.size();
        check(MPI_Ibcast(&length, 1, MPI_UINT64_T, 0, ranks_, &shared_->request), "MPI_Ibcast");
        wait({&shared_->request, 1}, "a text of rank 0");
        try {
            held.resize(length);
        } catch (const std::bad_alloc&) {
            fail("has no memory for a text of " + std::to_string(length) + " bytes.");
        }
        for (std::uint64_t at = 0; at < length; at += most_message_bytes) {
            const std::uint64_t some = std::min<std::uint64_t>(most_message_bytes, length - at);
            check(MPI_Ibcast(held.data() + at, static_cast<int>(some), MPI_BYTE, 0, ranks_, &shared_->request),
                  "MPI_Ibcast");
            wait({&shared_->request, 1}, "a text of rank 0");
        }
        text = std::exchange(held, {});
    }
    void collect(std::span<double> numbers) override {
        require_whole();
        std::vector<double>& held = shared_->numbers;
        held.assign(numbers.begin(), numbers.end());
        // One rank's number and zeros: the sum is exact in any order.
        check(MPI_Iallreduce(MPI_IN_PLACE, held.data(), static_cast<int>(held.size()), MPI_DOUBLE, MPI_SUM, ranks_,
                             &shared_->request),
              "MPI_Iallreduce");
        wait({&shared_->request, 1}, "the numbers of all ranks");
        std::ranges::copy(held, numbers.begin());
    }

private:
    MPI_Request& added(std::byte* data, bool received) {
        parts_.push_back({data, received});
        return requests_.emplace_back(MPI_REQUEST_NULL);
    }

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
        if (finalized()) {
            throw device_error(
                "otimes: the ranks talk over MPI, and this program has called MPI_Finalize. Call it after the last use "
                "of a communicator.");
        }
        if (!is_thread_of_mpi()) {
            throw unsupported_error(
                "otimes: this thread uses ranks of MPI, which was initialised for calls of one thread alone, another. "
                "Use "
                "communicators in that thread (the one of MPI_Init or of the first make_communicator()), or call "
                "MPI_Init_thread with MPI_THREAD_MULTIPLE before.");
        }
    }

    [[noreturn]] void fail(const std::string& what) {
        reason_ = "otimes: rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + what +
                  " The communicator cannot be used any more.";
        mpi_library::instance().broken = true;
        // MPI goes on with what it was given. Receives that nothing has come for can be taken back; the memory of the other messages is
        // kept by release(), and that of collective calls here.
        std::size_t on_their_way = 0;
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            int done = 0;
            if (requests_[i] != MPI_REQUEST_NULL && parts_[i].received) {
                MPI_Cancel(&requests_[i]);
            }
            MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
            if (requests_[i] != MPI_REQUEST_NULL) {
                parts_[on_their_way++] = parts_[i];
            }
        }
        requests_.clear();
        parts_.resize(on_their_way);
        static_cast<void>(shared_.release());
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
    std::unique_ptr<collective_memory> shared_;  ///< none once the communicator is broken
    MPI_Comm ranks_ = MPI_COMM_NULL;
    std::int32_t rank_ = 0;
    std::int32_t size_ = 1;
    std::vector<MPI_Request> requests_;
    std::vector<started_part> parts_;  ///< of each of them
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

std::int32_t mpi_rank_on_host(transport& ranks) {
    if (finalized()) {
        return 0;
    }
    // MPI's own split by hosts cannot be polled, so the ranks tell each other where they are. The start of a system tells hosts of one
    // name apart.
    char name[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    MPI_Get_processor_name(name, &length);
    std::string host(name, static_cast<std::size_t>(length));
    std::string start;
    if (std::ifstream file("/proc/sys/kernel/random/boot_id"); file >> start) {
        host += start;
    }
    const auto own = static_cast<std::size_t>(ranks.first_rank());
    std::vector<std::uint64_t> hosts(static_cast<std::size_t>(ranks.size()), 0);
    hosts[own] = planning::checksum_of(host);
    ranks.maximum(hosts);
    return static_cast<std::int32_t>(std::count(hosts.begin(), hosts.begin() + ranks.first_rank(), hosts[own]));
}

}  // namespace otimes::backend
