// SPDX-License-Identifier: MIT
/// @file host_transport.hpp
/// What transports of ranks on the CPU share: memory, copies; and the ranks of one process.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

#include <otimes/exec/transport.hpp>

namespace otimes::backend {

/// Copies runs in host memory.
void copy_on_host(const void* from, void* to, const strided_copy& what);

/// `times` times a length, in nanoseconds; the most that there are where it is longer.
constexpr std::int64_t nanoseconds_of(std::chrono::milliseconds length, std::int64_t times = 1) noexcept {
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    const std::int64_t count = (std::max)(std::int64_t{length.count()}, std::int64_t{0});
    return count > most / 1'000'000 / times ? most : count * 1'000'000 * times;
}

/// A moment by which something must have happened.
class time_limit {
public:
    explicit time_limit(std::chrono::milliseconds length) {
        // A length that is as good as none must not end before it began.
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::nanoseconds whole(nanoseconds_of(length));
        const auto left = std::chrono::steady_clock::time_point::max() - now;
        end_ = now + (std::min<std::chrono::nanoseconds>)(whole, left);
    }
    [[nodiscard]] bool passed() const { return std::chrono::steady_clock::now() > end_; }

private:
    std::chrono::steady_clock::time_point end_;
};

/// Host memory for every local rank; messages are left to the derived class.
class host_transport : public transport {
public:
    explicit host_transport(const executor& where) : where_(where) {}

    [[nodiscard]] const executor& executor_of(std::int32_t) const override { return where_; }
    [[nodiscard]] void* allocate(std::int32_t local, std::int64_t bytes) override;
    void release(std::int32_t local, void* memory, std::int64_t bytes) noexcept override;
    void copy(std::int32_t local, const void* from, void* to, const strided_copy& what) override;
    [[nodiscard]] bool reaches(std::int32_t, std::int32_t) const noexcept override { return true; }
    void upload(std::int32_t local, void* to, const void* from, std::int64_t bytes) override;
    void download(std::int32_t local, void* to, const void* from, std::int64_t bytes) override;
    void synchronize() override {}

private:
    const executor& where_;
};

/// All ranks in this process, which takes them one after another: nothing is ever sent.
class in_process_transport final : public host_transport {
public:
    in_process_transport(const executor& where, std::int32_t ranks) : host_transport(where), ranks_(ranks) {}

    [[nodiscard]] std::string_view name() const noexcept override { return "in process"; }
    [[nodiscard]] std::int32_t size() const noexcept override { return ranks_; }
    [[nodiscard]] std::int32_t first_rank() const noexcept override { return 0; }
    [[nodiscard]] std::int32_t local_count() const noexcept override { return ranks_; }
    void start(std::span<const message> sends, std::span<const message> receives, std::span<const rank_copy> copies,
               bool) override;
    void finish(std::int32_t) override {}
    void maximum(std::span<std::uint64_t>) override {}
    void broadcast(std::string&) override {}
    void collect(std::span<double>) override {}

private:
    std::int32_t ranks_;
};

}  // namespace otimes::backend
