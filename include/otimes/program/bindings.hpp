// SPDX-License-Identifier: MIT
/// @file bindings.hpp
/// What a plan is run on: the addresses of the operands and the values of the scalars, in the order in which the
/// program numbers them. A value that lives for one call.
#pragma once

#include <complex>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include <otimes/program/cold.hpp>

namespace otimes {

/// A short list that keeps its first `InlineCount` entries inside itself: lowering an expression of a usual number of
/// factors allocates nothing, and an empty list costs nothing to make.
template <class Value, std::size_t InlineCount>
class inline_vector {
    static_assert(std::is_nothrow_move_constructible_v<Value>);

public:
    inline_vector() noexcept {}
    inline_vector(const inline_vector& other) { append(other); }
    inline_vector(inline_vector&& other) noexcept { take(other); }
    inline_vector& operator=(const inline_vector& other) {
        if (this != &other) {
            clear();
            append(other);
        }
        return *this;
    }
    inline_vector& operator=(inline_vector&& other) noexcept {
        if (this != &other) {
            release();
            take(other);
        }
        return *this;
    }
    ~inline_vector() { release(); }

    void push_back(const Value& value) {
        if (count_ == capacity_) {
            push_back(Value(value));  // a copy, since `value` may be an entry
            return;
        }
        ::new (static_cast<void*>(first_ + count_)) Value(value);
        ++count_;
    }
    void push_back(Value&& value) {
        if (count_ == capacity_) {
            Value kept(std::move(value));
            grow();
            ::new (static_cast<void*>(first_ + count_)) Value(std::move(kept));
        } else {
            ::new (static_cast<void*>(first_ + count_)) Value(std::move(value));
        }
        ++count_;
    }
    /// Appends a copy of each entry of another list.
    OTIMES_OUT_OF_LINE void append(const inline_vector& other) {
        const std::size_t count = other.count_;
        for (std::size_t i = 0; i < count; ++i) {
            push_back(other.first_[i]);
        }
    }
    /// `count` copies of `value`, which is no entry of this list, in place of all entries.
    void assign(std::size_t count, const Value& value) {
        clear();
        while (count_ < count) {
            push_back(value);
        }
    }
    /// Forgets the entries (and what they own) and keeps the memory.
    void clear() noexcept {
        if constexpr (!std::is_trivially_destructible_v<Value>) {
            for (std::size_t i = 0; i < count_; ++i) {
                first_[i].~Value();
            }
        }
        count_ = 0;
    }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }
    [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
    [[nodiscard]] Value* data() noexcept { return first_; }
    [[nodiscard]] const Value* data() const noexcept { return first_; }
    [[nodiscard]] Value* begin() noexcept { return first_; }
    [[nodiscard]] Value* end() noexcept { return first_ + count_; }
    [[nodiscard]] const Value* begin() const noexcept { return first_; }
    [[nodiscard]] const Value* end() const noexcept { return first_ + count_; }
    [[nodiscard]] Value& operator[](std::size_t i) noexcept { return first_[i]; }
    [[nodiscard]] const Value& operator[](std::size_t i) const noexcept { return first_[i]; }
    [[nodiscard]] Value& back() noexcept { return first_[count_ - 1]; }

private:
    OTIMES_COLD void grow() {
        Value* const larger = static_cast<Value*>(::operator new(2 * capacity_ * sizeof(Value)));
        for (std::size_t i = 0; i < count_; ++i) {
            ::new (static_cast<void*>(larger + i)) Value(std::move(first_[i]));
            first_[i].~Value();
        }
        if (first_ != inline_) {
            ::operator delete(first_);
        }
        first_ = larger;
        capacity_ *= 2;
    }
    OTIMES_OUT_OF_LINE void take(inline_vector& other) noexcept {
        if (other.first_ != other.inline_) {
            first_ = other.first_;
            capacity_ = other.capacity_;
            count_ = other.count_;
            other.first_ = other.inline_;
            other.capacity_ = InlineCount;
            other.count_ = 0;
            return;
        }
        for (std::size_t i = 0; i < other.count_; ++i) {
            ::new (static_cast<void*>(inline_ + i)) Value(std::move(other.inline_[i]));
        }
        count_ = other.count_;
        other.clear();
    }
    OTIMES_OUT_OF_LINE void release() noexcept {
        clear();
        if (first_ != inline_) {
            ::operator delete(first_);
            first_ = inline_;
            capacity_ = InlineCount;
        }
    }

    union {
        Value inline_[InlineCount];  // the first count_ of them exist, unless first_ points elsewhere
    };
    Value* first_ = inline_;
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
