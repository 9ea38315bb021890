// SPDX-License-Identifier: MIT
/// @file plan_key.hpp
/// A short description of what an expression evaluates, complete enough to tell its plan from all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace otimes {

/// The first `count` words say everything; the others hold nothing.
struct plan_key {
    static constexpr std::size_t most_words = 64;
    std::size_t count = 0;
    std::int64_t words[most_words];

    plan_key() noexcept {}  // NOLINT: the words are written before they are read

    [[nodiscard]] bool equals(const plan_key& other) const noexcept {
        return count == other.count && std::memcmp(words, other.words, count * sizeof(words[0])) == 0;
    }
    /// A hash for a small table: the words times odd numbers, added up, so that no word waits for another.
    [[nodiscard]] std::uint64_t hash() const noexcept {
        std::uint64_t sum = count;
        std::uint64_t odd = 0x9e3779b97f4a7c15ull;
        for (std::size_t i = 0; i < count; ++i) {
            sum += static_cast<std::uint64_t>(words[i]) * odd;
            odd += 0xd1b54a32d192ed04ull;  // even, so that it stays odd
        }
        return sum ^ sum >> 32;
    }
};

}  // namespace otimes
