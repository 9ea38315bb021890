// SPDX-License-Identifier: MIT
// The ranks that the tests of this room run on. Started alone: 1 to 6 ranks inside the process, once reaching each other's
// memory and once by messages. Started by mpirun: its ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

namespace ranks_test {

// The type and the text of what `call` throws.
inline std::string thrown(const std::function<void()>& call) {
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

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline void copy_runs(const void* from, void* to, const otimes::strided_copy& c) {
    for (std::int64_t i = 0; i < c.counts[0]; ++i) {
        for (std::int64_t j = 0; j < c.counts[1]; ++j) {
            for (std::int64_t k = 0; k < c.counts[2]; ++k) {
                std::memcpy(static_cast<char*>(to) + i * c.to_strides[0] + j * c.to_strides[1] + k * c.to_strides[2],
                            static_cast<const char*>(from) + i * c.from_strides[0] + j * c.from_strides[1] +
                                k * c.from_strides[2],
                            std::size_t(c.run));
            }
        }
    }
}

// Ranks of one process that send messages all the same, as late as they may: what is sent arrives when its exchange is finished.
// Counts what is sent, and fails or loses messages on request.
class loopback final : public otimes::transport {
public:
    explicit loopback(std::int32_t ranks) : ranks_(ranks) {}

    std::string_view name() const noexcept override { return "loopback"; }
    std::int32_t size() const noexcept override { return ranks_; }
    std::int32_t first_rank() const noexcept override { return 0; }
    std::int32_t local_count() const noexcept override { return ranks_; }
    const otimes::executor& executor_of(std::int32_t) const override { return otimes::cpu(); }
    void* allocate(std::int32_t rank, std::int64_t bytes) override {
        auto& [now, most] = held[rank];
        now += bytes;
        most = std::max(most, now);
        return ::operator new(std::size_t(bytes) + 1);
    }
    void release(std::int32_t rank, void* memory, std::int64_t bytes) noexcept override {
        held[rank].first -= bytes;
        ::operator delete(memory);
    }
    void copy(std::int32_t, const void* from, void* to, const otimes::strided_copy& c) override {
        copy_runs(from, to, c);
    }
    bool reaches(std::int32_t from, std::int32_t to) const noexcept override { return from == to; }
    void upload(std::int32_t, void* to, const void* from, std::int64_t bytes) override {
        if (bytes > 0) std::memcpy(to, from, std::size_t(bytes));
    }
    void download(std::int32_t, void* to, const void* from, std::int64_t bytes) override {
        if (bytes > 0) std::memcpy(to, from, std::size_t(bytes));
    }
    void start(std::span<const otimes::message> sends, std::span<const otimes::message> receives,
               std::span<const otimes::rank_copy> copies, bool) override {
        ++starts;
        for (const otimes::rank_copy& c : copies) {
            if (c.from != c.to) {
                throw otimes::device_error("loopback: a copy between ranks");
            }
        }
        on_their_way.emplace_back();
        exchange& now = on_their_way.back();
        now.copies.assign(copies.begin(), copies.end());
        most_on_their_way = std::max(most_on_their_way, on_their_way.size());
        if (starts == fail_at) {
            throw otimes::device_error("loopback: the link failed");
        }
        std::map<std::pair<int, int>, std::deque<otimes::message>> mail;
        for (const otimes::message& m : sends) {
            bytes_sent += m.from == m.to ? 0 : m.bytes;
            ++messages;
            mail[{m.from, m.to}].push_back(m);
        }
        for (const otimes::message& m : receives) {
            auto& box = mail[{m.from, m.to}];
            if (box.empty() || box.front().bytes != m.bytes) {
                throw otimes::device_error("loopback: a message of another length, or none");
            }
            now.deliveries.push_back({box.front().data, m.data, std::size_t(m.bytes)});
            box.pop_front();
        }
        for (const auto& [who, box] : mail) {
            if (!box.empty()) {
                throw otimes::device_error("loopback: a message that nobody receives");
            }
        }
    }
    void finish(std::int32_t leave) override {
        if (starts == lose_at) {
            throw otimes::device_error("loopback: waited in vain");
        }
        for (; on_their_way.size() > std::size_t(leave); on_their_way.pop_front()) {
            for (const delivery& d : on_their_way.front().deliveries) {
                std::memcpy(d.to, d.from, d.bytes);
            }
            for (const otimes::rank_copy& c : on_their_way.front().copies) {
                copy(c.from, c.source, c.target, c.what);
            }
        }
    }
    void maximum(std::span<std::uint64_t>) override {}
    void broadcast(std::string&) override {}
    void collect(std::span<double>) override {}
    void synchronize() override {}

    std::size_t most_on_their_way = 0;
    int starts = 0;
    int messages = 0;
    int fail_at = -1;
    int lose_at = -1;
    std::int64_t bytes_sent = 0;
    std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>> held;  // for each rank: bytes now, most so far

private:
    struct delivery {
        const void* from;
        void* to;
        std::size_t bytes;
    };
    struct exchange {
        std::vector<delivery> deliveries;
        std::vector<otimes::rank_copy> copies;
    };
    std::deque<exchange> on_their_way;
    std::int32_t ranks_;
};

inline std::pair<otimes::communicator, loopback*> looped(std::int32_t ranks,
                                                         const otimes::communicator_options& how = {}) {
    auto t = std::make_unique<loopback>(ranks);
    loopback* const seen = t.get();
    return {otimes::communicator(std::move(t), how), seen};
}

inline bool under_mpi() { return otimes::started_by_mpi(); }

// Exchanges in up to three chunks, however small.
inline const otimes::communicator_options in_chunks{
    .links = {.bytes_per_second = 1e9, .chunks = 3, .least_chunk_bytes = 1}};

// Every communicator that the cases run on.
inline const std::vector<otimes::communicator>& everyone() {
    static const std::vector<otimes::communicator> all = [] {
        std::vector<otimes::communicator> list;
        if (under_mpi()) {
            list.push_back(otimes::make_communicator({.deadline = std::chrono::seconds(20), .use_gpus = false}));
            list.push_back(otimes::make_communicator(
                {.deadline = std::chrono::seconds(20), .use_gpus = false, .links = in_chunks.links}));
            return list;
        }
        for (const int ranks : {1, 2, 3, 4, 6}) {
            list.push_back(otimes::in_process(ranks));
        }
        list.push_back(looped(5).first);
        list.push_back(otimes::in_process(3, in_chunks));
        list.push_back(looped(2, in_chunks).first);
        return list;
    }();
    return all;
}

// Rows, flat columns, columns along each of two modes, a grid, and one rank.
inline std::vector<otimes::distribution> cuts_of(std::int32_t ranks, std::int64_t first, std::int64_t second) {
    const std::vector<std::int64_t> extents{first, second};
    std::vector<otimes::distribution> list{otimes::cut_rows(ranks), otimes::cut_columns(ranks),
                                           otimes::cut_mode(1, ranks, extents, 0),
                                           otimes::cut_mode(1, ranks, extents, 1)};
    if (ranks % 2 == 0) {
        list.push_back(otimes::cut_mode(2, ranks / 2, extents, 1));
    }
    otimes::distribution one;
    one.first_rank = ranks - 1;
    list.push_back(one);
    return list;
}

}  // namespace ranks_test
