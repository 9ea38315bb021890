// SPDX-License-Identifier: MIT
/// @file transport.hpp
/// How ranks talk. An evaluation by several ranks needs three things of its transport: messages between blocks, agreement on a
/// few words, and one text from rank 0 to all. MPI, NCCL and the ranks of one process implement it (backend/), and tests do to
/// make it fail.
///
/// One transport object serves the ranks of one process, usually one. Calls are collective: every process makes the same ones
/// in the same order, from one thread at a time. No call waits longer than the deadline: it throws `device_error`, and from then
/// on the transport is broken and says so at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <otimes/exec/executor.hpp>
#include <otimes/exec/peer_stores.hpp>

namespace otimes {

/// A copy of runs of bytes, each `run` bytes long, one for each index of three levels (outermost first); strides in bytes.
struct strided_copy {
    std::int64_t run = 0;
    std::array<std::int64_t, 3> counts{1, 1, 1};
    std::array<std::int64_t, 3> from_strides{0, 0, 0};
    std::array<std::int64_t, 3> to_strides{0, 0, 0};
};

/// `bytes` bytes at `data` that `from` sends or `to` receives.
struct message {
    std::int32_t from = 0;
    std::int32_t to = 0;
    void* data = nullptr;
    std::int64_t bytes = 0;
};

/// A copy from the memory of local rank `from` to that of `to`, which it reaches.
struct rank_copy {
    std::int32_t from = 0;
    const void* source = nullptr;
    std::int32_t to = 0;
    void* target = nullptr;
    strided_copy what;
};

/// See the file comment.
class transport {
public:
    transport() = default;
    transport(const transport&) = delete;
    transport& operator=(const transport&) = delete;
    virtual ~transport() = default;

    /// "in process", "mpi", "nccl", ...
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    [[nodiscard]] virtual std::int32_t size() const noexcept = 0;
    /// This process has the ranks first_rank() .. first_rank() + local_count() - 1.
    [[nodiscard]] virtual std::int32_t first_rank() const noexcept = 0;
    [[nodiscard]] virtual std::int32_t local_count() const noexcept = 0;
    /// The executor on which a local rank (from 0) computes; its memory is where its messages are.
    [[nodiscard]] virtual const executor& executor_of(std::int32_t local) const = 0;
    /// True where the local ranks' executors put what they are given into one graph (CUDA's stream capture) instead of doing it.
    /// @throws device_error some do and others do not, or into another graph
    [[nodiscard]] virtual bool captured() const { return false; }

    /// @name Memory of a local rank, used in the order of its executor's work.
    /// @{
    [[nodiscard]] virtual void* allocate(std::int32_t local, std::int64_t bytes) = 0;
    virtual void release(std::int32_t local, void* memory, std::int64_t bytes) noexcept = 0;
    /// Inside one rank's memory, in the order of its work.
    virtual void copy(std::int32_t local, const void* from, void* to, const strided_copy& what) = 0;
    /// Runs of at least this many bytes are messages of their own; shorter ones are packed into one. The same on all ranks.
    [[nodiscard]] virtual std::int64_t least_message_bytes() const noexcept { return 64 << 10; }
    /// Whether a local rank writes into another's memory (or its own) without messages.
    [[nodiscard]] virtual bool reaches(std::int32_t local_from, std::int32_t local_to) const noexcept = 0;
    /// Between host memory and a local rank's; the host memory may be used again when the call returns.
    virtual void upload(std::int32_t local, void* to, const void* from, std::int64_t bytes) = 0;
    virtual void download(std::int32_t local, void* to, const void* from, std::int64_t bytes) = 0;
    /// @}

    /// Starts an exchange: all messages of this process's ranks, and copies between those that reach each other, after the work
    /// that their executors have now. Between two ranks messages arrive in the order in which both list them. What is sent must
    /// not change, and what is received must not be used, before `finish`. Several exchanges may be on their way.
    /// @param beside_work the executors get more work before `finish`: their processors are left to it where that is possible
    /// @throws device_error a send or receive that fails at once
    virtual void start(std::span<const message> sends, std::span<const message> receives,
                       std::span<const rank_copy> copies, bool beside_work) = 0;
    /// The same for a further part of the exchange that was started last: what the local ranks' executors have got since its first part does
    /// not use what this part receives.
    virtual void start_further(std::span<const message> sends, std::span<const message> receives,
                               std::span<const rank_copy> copies, bool beside_work) {
        start(sends, receives, copies, beside_work);
    }
    /// Ends all exchanges that were started, but (if the transport can tell) the last `leave`, at most one: on a stream, later
    /// work of each rank's executor comes after them; else waits. @throws device_error a rank or link that failed, or the deadline
    virtual void finish(std::int32_t leave) = 0;
    /// Work that any local rank's executor gets after end_fence() comes after all work that the local ranks' executors had at
    /// begin_fence(). For ranks that write into each other's memory. Nothing to do where executors work while they are called.
    virtual void begin_fence() {}
    virtual void end_fence() {}
    /// A fence that every local rank begins itself, by what its executor's peer_stores tells all ranks behind its last store.
    /// @return what each local rank is to tell; empty: this transport has none, use the other one
    [[nodiscard]] virtual std::span<const arrival_signal> signals_of_fence() { return {}; }
    /// Ends it, and those begun before. @param value of its signals. @pre every local rank's executor has been given its own
    virtual void end_signalled_fence([[maybe_unused]] std::uint32_t value) {}
    /// What a local rank's executor waits for instead of the end of that fence, where all ranks tell it of portions. Null words: this
    /// transport keeps none, and stages wait for the fence. @param value of the signals
    [[nodiscard]] virtual awaited_signal awaited_by([[maybe_unused]] std::int32_t local,
                                                    [[maybe_unused]] std::uint32_t value) const {
        return {};
    }
    /// An executor of a local rank whose work, from this call on, comes after what executor_of(local) has now, and goes on beside what that
    /// gets next. It is for work behind which a signal is told: the end of that fence is the end of the work. Null: there is none.
    [[nodiscard]] virtual const executor* branch_of([[maybe_unused]] std::int32_t local) { return nullptr; }

    /// Replaces each word by the largest that any process gave. @throws device_error
    virtual void maximum(std::span<std::uint64_t> words) = 0;
    /// Gives rank 0's text to all. @throws device_error
    virtual void broadcast(std::string& text) = 0;
    /// Collects one number of each rank, in the order of the ranks, on all. `numbers` has `size()` entries, of which this
    /// process has filled those of its ranks. @throws device_error
    virtual void collect(std::span<double> numbers) = 0;
    /// Waits until the local ranks' queued work is done. @throws device_error what failed since the last wait, or the deadline
    virtual void synchronize() = 0;
};

}  // namespace otimes
