// SPDX-License-Identifier: MIT
/// @file late_frees.hpp
/// Memory of a stream that is given back while the stream is being captured into a graph.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace otimes::backend {

/// In a capture, cuMemFreeAsync makes a node that frees what the graph has allocated, and refuses all other memory, which makes the capture
/// invalid. So memory from before a capture that is given back within it waits until the capture has ended. Any thread may use it at any time.
class late_frees {
public:
    struct piece {
        void* memory = nullptr;
        std::int64_t bytes = 0;
    };

    /// The memory was allocated while the stream was captured: it is the graph's.
    void allocated_in_capture(void* memory) {
        const std::lock_guard lock(mutex_);
        of_graphs_.push_back(memory);
    }

    /// Whether memory that is given back must wait; it is then kept here. False: free it now.
    bool keep(const piece& given, bool captured) noexcept {
        try {
            const std::lock_guard lock(mutex_);
            if (const auto found = std::ranges::find(of_graphs_, given.memory); found != of_graphs_.end()) {
                of_graphs_.erase(found);
                return false;
            }
            if (captured) {
                waiting_.push_back(given);
                some_wait_ = true;
            }
        } catch (const std::exception&) {  // no room for a note of it: it stays the process's, the capture stays valid
        }
        return captured;
    }

    /// Cost: a look.
    [[nodiscard]] bool some_wait() const noexcept { return some_wait_.load(std::memory_order_relaxed); }

    /// What waits, once the stream is not captured any more; the caller frees it.
    std::vector<piece> take() noexcept {
        const std::lock_guard lock(mutex_);
        some_wait_ = false;
        return std::exchange(waiting_, {});
    }

private:
    std::mutex mutex_;
    std::vector<void*> of_graphs_;
    std::vector<piece> waiting_;
    std::atomic<bool> some_wait_{false};
};

}  // namespace otimes::backend
