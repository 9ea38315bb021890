// SPDX-License-Identifier: MIT
/// @file operand_reach.hpp
/// Operands that a GPU is given by address: whether its kernels reach them is asked once for each page. A kernel that goes where it may not
/// takes the context with it, and all that the process has on the device.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <otimes/program/program.hpp>

namespace otimes::backend {

/// Where an address points to, as a GPU sees it.
enum class reach : std::uint8_t {
    here,           ///< its kernels may use it
    nowhere,        ///< a null pointer
    host_memory,    ///< of which the driver knows nothing
    other_address,  ///< page-locked host memory that kernels reach by another address, or not at all
    other_gpu       ///< another GPU's, which this one does not reach
};

/// Pages that kernels of a GPU reach, as far as one thread has seen them. What is not there must be asked for (again). Memory that is given
/// back and comes as another kind is not seen where nothing says so (forget).
class reached_pages {
public:
    static constexpr std::uintptr_t page_bytes = 4096;  // the least that is pinned, or mapped into a device

    [[nodiscard]] bool holds(const void* gpu, const void* address) const noexcept {
        const entry wanted = entry_of(gpu, address);
        const pair& at = pairs_[slot_of(wanted)];
        return (at[0] == wanted || at[1] == wanted) && age_ == age_of_all().load(std::memory_order_relaxed);
    }
    void keep(const void* gpu, const void* address) noexcept {
        if (const std::uint64_t age = age_of_all().load(std::memory_order_relaxed); age_ != age) {
            pairs_ = {};
            age_ = age;
        }
        const entry added = entry_of(gpu, address);
        pair& at = pairs_[slot_of(added)];
        at[1] = at[0];
        at[0] = added;
    }
    /// Memory is no longer what it was: all threads ask again.
    static void forget() noexcept { age_of_all().fetch_add(1, std::memory_order_relaxed); }

private:
    struct entry {
        const void* gpu = nullptr;
        std::uintptr_t page = 0;
        friend bool operator==(const entry&, const entry&) = default;
    };
    using pair = std::array<entry, 2>;
    static constexpr std::size_t slots_log2 = 7;

    static entry entry_of(const void* gpu, const void* address) noexcept {
        return {gpu, reinterpret_cast<std::uintptr_t>(address) / page_bytes};
    }
    static std::size_t slot_of(const entry& e) noexcept {
        const std::uint64_t mixed = (e.page ^ reinterpret_cast<std::uintptr_t>(e.gpu)) * 0x9e3779b97f4a7c15ull;
        return static_cast<std::size_t>(mixed >> (64 - slots_log2));
    }
    static std::atomic<std::uint64_t>& age_of_all() noexcept {
        static std::atomic<std::uint64_t> age{0};
        return age;
    }
    std::array<pair, std::size_t{1} << slots_log2> pairs_{};
    std::uint64_t age_ = 0;
};

/// Whether the host itself can read a byte there. What a captured allocation gives is an address that the driver does not know before the
/// graph runs, in a range that the host cannot read; memory of the host can be read. Cost: four system calls.
bool host_reads(const void* address) noexcept;

/// Why an operand is refused, and what to do. @pre found != reach::here
std::string refusal_of(tensor_role role, const void* address, reach found);

/// Whether kernels may read elements of so many bytes there: a complex number is read at once, which std::complex itself does not ask for.
constexpr bool is_aligned(std::uintptr_t address, std::int64_t element_bytes) {
    return element_bytes <= 1 || address % static_cast<std::uintptr_t>(element_bytes) == 0;
}
/// Why an operand that is not aligned is refused.
std::string refusal_of_alignment(tensor_role role, const void* address, std::int64_t element_bytes);

/// Why a caller's workspace is refused, and what to do: out of reach, or not aligned to `workspace_alignment` bytes.
inline constexpr std::int64_t workspace_alignment = 64;
std::string refusal_of_workspace(const void* address, reach found);

}  // namespace otimes::backend
