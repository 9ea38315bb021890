// SPDX-License-Identifier: MIT
/// @file peer_stores.hpp
/// What executors of ranks do that reach each other's memory: a pass stores what it computes where other ranks read it, and tells them; a stage
/// begins with what has arrived.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/plan/plan.hpp>
#include <otimes/plan/scatter_shape.hpp>
#include <otimes/program/bindings.hpp>

namespace otimes {

/// What a storing kernel tells other ranks' GPUs behind its last store: words in their memory take a value. All of it is device memory.
struct arrival_signal {
    std::vector<unsigned*> words;     ///< of each rank, the one that is this rank's
    unsigned* blocks_done = nullptr;  ///< 0 before and after the kernel, which counts in it
    unsigned value = 0;
    /// @name Where portions are told by themselves: word k of portion p is words[k][p * ranks].
    /// @{
    unsigned items = 0;               ///< of a portion; 0: all is told at once
    unsigned* tiles_done = nullptr;   ///< (portions, ranks), 0 before and after the kernel
    unsigned* tiles_dealt = nullptr;  ///< likewise
    /// @}
};

/// What a kernel waits for that reads what others store in portions: of each portion one word of each sender.
struct awaited_signal {
    const unsigned* words = nullptr;  ///< (portions, senders), device memory
    unsigned senders = 0;
    unsigned value = 0;
    unsigned items = 1;  ///< of a portion
    /// u / item_elements is the item of the input's element u, the mode that is replaced left out.
    std::int64_t item_elements = 1;
    std::chrono::nanoseconds deadline{0};
};

/// See the file comment. An executor gives its own by `stores_for_peers`.
class peer_stores {
public:
    peer_stores() = default;
    peer_stores(const peer_stores&) = delete;
    peer_stores& operator=(const peer_stores&) = delete;
    virtual ~peer_stores() = default;

    /// Evaluates `p` and leaves its output in several matrices, `receivers[k]` of the elements that `to` gives to k. The output's own
    /// binding is not used. False: this executor cannot, or not this plan; nothing has been done then.
    /// @param tell what becomes of it once all is stored, and what was queued before is done; null: nothing
    /// @param half with about half of the blocks that the processors hold, and beside what they do
    virtual bool run_scattered(const plan& p, const bindings& b, const scatter_shape& to,
                               std::span<void* const> receivers, const arrival_signal* tell = nullptr,
                               bool half = false) const = 0;

    /// Whether `run_scattered` does a plan and tells of portions. Cost, as of the next: the plan's kernels, the first time; a look after that.
    [[nodiscard]] virtual bool can_tell_portions(const plan& p) const = 0;
    /// Whether `run_arriving` does a plan.
    [[nodiscard]] virtual bool can_run_arriving(const plan& p) const = 0;
    /// Evaluates `p` beside the run_scattered, of this executor and others, that stores its input and was queued just before: each
    /// portion is read once it has been told. Later work of this executor comes after all portions. @pre can_run_arriving(p); `awaited` has words.
    /// @throws device_error a launch fails. A portion that does not come within the deadline ends the device's context.
    virtual void run_arriving(const plan& p, const bindings& b, const awaited_signal& awaited) const = 0;
};

}  // namespace otimes
