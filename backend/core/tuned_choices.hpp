// SPDX-License-Identifier: MIT
/// @file tuned_choices.hpp
/// What otimes::tune has found for GPUs in this process, for all executors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <otimes/plan/machine.hpp>

namespace otimes::backend {

/// Choices by kind of GPU and hash of the program. Any thread may use it at any time.
class tuned_choices {
public:
    /// The table of the process; it is never destroyed.
    static tuned_choices& of_process() {
        static tuned_choices* const all = new tuned_choices;
        return *all;
    }

    /// Of a program on GPUs like this one: what `keep` was given last, else what was found before, else what `look` finds (empty: nothing).
    template <class Look>
    std::string find(const gpu_description& gpu, std::uint64_t program, const Look& look) {
        const key where = key_of(gpu, program);
        if (const std::optional<std::string> known = at(where)) {
            return *known;
        }
        std::string found = look();
        const std::lock_guard lock(mutex_);
        if (known_.size() >= most_known) {  // programs of ever new shapes: where nothing was found can be asked again
            std::erase_if(known_, [](const auto& entry) { return entry.second.empty(); });
        }
        return known_.try_emplace(where, std::move(found)).first->second;
    }
    /// From now on that is the choice, and plans that were made before are stale.
    void keep(const gpu_description& gpu, std::uint64_t program, std::string choice) {
        {
            const std::lock_guard lock(mutex_);
            known_[key_of(gpu, program)] = std::move(choice);
        }
        version_.fetch_add(1, std::memory_order_release);
    }
    /// Another one after each `keep`; 0 before the first.
    [[nodiscard]] std::uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

private:
    struct key {
        std::string gpu;
        std::int32_t multiprocessors;
        std::uint64_t program;
        auto operator<=>(const key&) const = default;
    };
    static key key_of(const gpu_description& gpu, std::uint64_t program) {
        return {gpu.name, static_cast<std::int32_t>(gpu.multiprocessors), program};
    }
    std::optional<std::string> at(const key& where) {
        const std::lock_guard lock(mutex_);
        const auto found = known_.find(where);
        return found == known_.end() ? std::nullopt : std::optional<std::string>(found->second);
    }

    static constexpr std::size_t most_known = 4096;
    std::mutex mutex_;
    std::map<key, std::string> known_;
    std::atomic<std::uint64_t> version_{0};
};

}  // namespace otimes::backend
