// SPDX-License-Identifier: MIT
/// @file bindings.hpp
/// What a plan is run on: the addresses of the operands and the values of the scalars, in the order in which the
/// program numbers them. A value that lives for one call.
#pragma once

#include <complex>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <otimes/program/cold.hpp>

namespace otimes {

/// A short list that keeps its first `InlineCount` entries inside itself: lowering an expression of a usual number of
/// factors allocates nothing.
template <class Value, std::size_t InlineCount>
class inline_vector {
    static_assert(std::is_default_constructible_v<Value>);

public:
    inline_vector() = default;
    inline_vector(const inline_vector& other) : inline_vector() { append(other); }
    inline_vector(inline_vector&& other) noexcept : inline_vector() { take(std::move(other)); }
    inline_vector& operator=(const inline_vector& other) {
        if (this != &other) {
            clear();
            append(other);
        }
        return *this;
    }
    inline_vector& operator=(inline_vector&& other) noexcept {
        if (this != &other) {
            clear();
            take(std::move(other));
        }
        return *this;
    }
    OTIMES_OUT_OF_LINE ~inline_vector() { delete[] heap_; }

    void push_back(Value value) {
        if (count_ == capacity_) {
            grow(capacity_ * 2);
        }
        data()[count_++] = std::move(value);
    }
    /// Forgets the entries (and what they own) and keeps the memory.
    void clear() noexcept {
        for (std::size_t i = 0; i < count_; ++i) {
            data()[i] = Value();
        }
        count_ = 0;
    }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }
    [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
    [[nodiscard]] Value* data() noexcept { return heap_ != nullptr ? heap_ : inline_; }
    [[nodiscard]] const Value* data() const noexcept { return heap_ != nullptr ? heap_ : inline_; }
    [[nodiscard]] Value* begin() noexcept { return data(); }
    [[nodiscard]] Value* end() noexcept { return data() + count_; }
    [[nodiscard]] const Value* begin() const noexcept { return data(); }
    [[nodiscard]] const Value* end() const noexcept { return data() + count_; }
    [[nodiscard]] Value& operator[](std::size_t i) noexcept { return data()[i]; }
    [[nodiscard]] const Value& operator[](std::size_t i) const noexcept { return data()[i]; }
    [[nodiscard]] Value& back() noexcept { return data()[count_ - 1]; }

private:
    OTIMES_COLD void grow(std::size_t capacity) {
        Value* const larger = new Value[capacity];
        for (std::size_t i = 0; i < count_; ++i) {
            larger[i] = std::move(data()[i]);
        }
        delete[] heap_;
        heap_ = larger;
        capacity_ = capacity;
    }
    OTIMES_OUT_OF_LINE void append(const inline_vector& other) {
        for (const Value& value : other) {
            push_back(value);
        }
    }
    OTIMES_OUT_OF_LINE void take(inline_vector&& other) noexcept {
        delete[] heap_;
        heap_ = other.heap_;
        capacity_ = heap_ != nullptr ? other.capacity_ : InlineCount;
        count_ = other.count_;
        if (heap_ == nullptr) {
            for (std::size_t i = 0; i < count_; ++i) {
                inline_[i] = std::move(other.inline_[i]);
            }
        }
        other.heap_ = nullptr;
        other.capacity_ = InlineCount;
        other.count_ = 0;
    }

    Value inline_[InlineCount] = {};
    Value* heap_ = nullptr;
    std::size_t capacity_ = InlineCount;
    std::size_t count_ = 0;
};

/// Addresses and scalars of one run.
struct bindings {
    /// `pointers[t.binding]` is the address of element (0, ..., 0) of tensor t. Outputs are written through it.
    inline_vector<void*, 12> pointers;
    /// Values of the scalars of the program. The imaginary part is 0 where the program is real. For dtype::other the
    /// scalar is read from `opaque_scalars` instead.
    inline_vector<std::complex<double>, 4> scalars;
    /// For dtype::other only: addresses of the scalars, each of the program's own C++ type.
    inline_vector<const void*, 2> opaque_scalars;

    void clear() noexcept {
        pointers.clear();
        scalars.clear();
        opaque_scalars.clear();
    }
};

}  // namespace otimes
