// SPDX-License-Identifier: MIT
#include "receipt.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>

namespace otimes::backend {

namespace {

constexpr std::uint32_t not_yet_written = 0x7fa5c3d1u;

thread_local receipt* of_thread = nullptr;

/// kernels/dot_product.cuh, finish_dot: its threads take sums in turn, then a tree adds the threads.
template <class Wide>
Wide added_up(const std::byte* sums, int count) {
    constexpr std::size_t threads = 256;  // dot_threads
    std::array<Wide, threads> tree{};
    for (int b = 0; b < count; ++b) {
        Wide one;
        std::memcpy(&one, sums + static_cast<std::size_t>(b) * sizeof(Wide), sizeof(Wide));
        tree[static_cast<std::size_t>(b) % threads] += one;
    }
    for (std::size_t half = threads / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) {
            tree[i] += tree[i + half];
        }
    }
    return tree[0];
}

template <class Number>
void put(void* to, const Number& value) {
    std::memcpy(to, &value, sizeof(value));
}

}  // namespace

awaited_numbers::awaited_numbers(std::span<std::byte> memory)
    : left_(reinterpret_cast<std::uint32_t*>(memory.data()), memory.size() / sizeof(std::uint32_t)) {
    std::ranges::fill(left_, not_yet_written);
}

bool awaited_numbers::come_until(std::chrono::steady_clock::time_point end) {
    while (!left_.empty()) {
        for (int look = 0; look < 64; ++look) {
            while (!left_.empty() && std::atomic_ref(left_.back()).load(std::memory_order_acquire) != not_yet_written) {
                left_ = left_.first(left_.size() - 1);
            }
            if (left_.empty()) {
                return true;
            }
        }
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
    }
    return true;
}

receipt::receipt(const gpu_executor& executor, std::span<std::byte> numbers, std::span<std::byte> sums)
    : executor_(executor), numbers_(numbers), sums_(sums), outer_(of_thread) {
    of_thread = this;
}

receipt::~receipt() { of_thread = outer_; }

receipt* receipt::of_this_thread(const gpu_executor& executor) noexcept {
    return of_thread != nullptr && &of_thread->executor_ == &executor ? of_thread : nullptr;
}

std::byte* receipt::take_sums(int count, dtype type, std::complex<double> alpha, void* number) {
    const auto* const at = static_cast<const std::byte*>(number);
    const std::less<const std::byte*> before;
    const bool ours = !before(at, numbers_.data()) && before(at, numbers_.data() + numbers_.size());
    const auto bytes = static_cast<std::size_t>(count) * (is_complex(type) ? 16 : 8);
    const std::size_t whole = (bytes + 15) / 16 * 16;  // the next ones stand at a multiple of 16 bytes, too
    if (!ours || whole > sums_.size()) {
        return nullptr;
    }
    std::byte* const taken = sums_.data();
    totals_.push_back({taken, count, type, alpha, number});
    awaited_.emplace_back(sums_.first(bytes));
    sums_ = sums_.subspan(whole);
    return taken;
}

bool receipt::come_until(std::chrono::steady_clock::time_point end) {
    return std::ranges::all_of(awaited_, [end](awaited_numbers& sums) { return sums.come_until(end); });
}

void receipt::write_totals() const {
    for (const total& t : totals_) {
        if (is_complex(t.type)) {
            const auto sum = added_up<std::complex<double>>(t.sums, t.count);
            // Not std::complex's product, whose infinities are others than a kernel's.
            const std::complex<double> value(t.alpha.real() * sum.real() - t.alpha.imag() * sum.imag(),
                                             t.alpha.real() * sum.imag() + t.alpha.imag() * sum.real());
            t.type == dtype::c64 ? put(t.number, std::complex<float>(value)) : put(t.number, value);
        } else {
            const double value = t.alpha.real() * added_up<double>(t.sums, t.count);
            t.type == dtype::f32 ? put(t.number, static_cast<float>(value)) : put(t.number, value);
        }
    }
}

}  // namespace otimes::backend
