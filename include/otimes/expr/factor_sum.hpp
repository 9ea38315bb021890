// SPDX-License-Identifier: MIT
/// @file factor_sum.hpp
/// c1 F1 + c2 F2 + .. of dense factors and identities, formed when a sum of krons is lowered (lower_tree.hpp):
///
///     a kron(L, F, R) + b kron(L, G, R) = kron(L, a F + b G, R)
///
/// It is a matrix of the size of a factor. A program that is run again has it formed again, since the factors may have changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/expr/leaf.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/expr/structured.hpp>

namespace otimes {

/// A factor that lowering has formed of others, and that can be formed again.
class formed_factor : public std::enable_shared_from_this<formed_factor> {
public:
    formed_factor() = default;
    formed_factor(const formed_factor&) = delete;
    formed_factor& operator=(const formed_factor&) = delete;
    virtual ~formed_factor() = default;
    /// Reads the factors where they were when this was made. Cost: each element of each of them once; no allocation.
    virtual void form() = 0;
    [[nodiscard]] virtual std::int64_t bytes() const noexcept = 0;

    std::shared_ptr<formed_factor> before;  ///< of the same program
};

/// @tparam Value Scalar, or its real type where all factors have real elements and all coefficients are real
template <class Scalar, class Value>
class factor_sum final : public formed_factor {
public:
    /// Elements that are not there yet, in the order of `like`. @pre like is a dense matrix
    explicit factor_sum(const matrix_view& like)
        : by_rows_(like.col_stride < like.row_stride),
          lines_(by_rows_ ? like.rows : like.cols),
          length_(by_rows_ ? like.cols : like.rows),
          elements_(static_cast<std::size_t>(lines_ * length_)) {}

    /// @pre dense and in host memory, of the shape of all others, or an identity; it stays where it is
    void add(const leaf& factor, const Scalar& coefficient) {
        const matrix_view view = factor.view();
        part one{leaf::borrowed(view), view.data, by_rows_ ? view.row_stride : view.col_stride,
                 by_rows_ ? view.col_stride : view.row_stride, value_of(coefficient)};
        if (factor.is_identity()) {
            one.reader = factor;
        } else if (factor.conjugated()) {
            one.reader.conjugate();
        }
        one.reader.set_real_elements(factor.real_elements());
        parts_.push_back(std::move(one));
    }
    void form() override {
        bool first = true;
        for (const part& one : parts_) {
            Value* line = elements_.data();
            for (std::int64_t k = 0; k < lines_; ++k, line += length_) {
                if (one.reader.is_identity()) {
                    std::fill(line, first ? line + length_ : line, Value(0));
                    line[k] = line[k] + one.coefficient;
                    continue;
                }
                for (std::int64_t i = 0; i < length_; ++i) {
                    const Value element = value_of(
                        detail::stored_value<Scalar>(one.reader, one.data, k * one.line_stride + i * one.stride));
                    line[i] = first ? one.coefficient * element : line[i] + one.coefficient * element;
                }
            }
            first = false;
        }
    }
    [[nodiscard]] std::int64_t bytes() const noexcept override {
        return lines_ * length_ * static_cast<std::int64_t>(sizeof(Value));
    }
    /// The sum as a factor. `owner` keeps this.
    [[nodiscard]] leaf result(std::shared_ptr<const void> owner) const {
        leaf sum = leaf::owned(std::move(owner), by_rows_ ? matrix_view{elements_.data(), lines_, length_, length_, 1}
                                                          : matrix_view{elements_.data(), length_, lines_, 1, length_});
        sum.set_real_elements(!std::is_same_v<Value, Scalar>);
        return sum;
    }

private:
    struct part {
        leaf reader;  ///< says how elements are read; owns nothing
        const void* data;
        std::int64_t line_stride;
        std::int64_t stride;
        Value coefficient;
    };
    static Value value_of(const Scalar& value) {
        if constexpr (std::is_same_v<Value, Scalar>) {
            return value;
        } else {
            return detail::real_part_of(value);
        }
    }

    bool by_rows_;
    std::int64_t lines_;
    std::int64_t length_;
    std::vector<Value> elements_;
    std::vector<part> parts_;
};

}  // namespace otimes
