// SPDX-License-Identifier: MIT
/// @file product.hpp
/// The product of a dense matrix with Kronecker products on either side.
///
/// Mathematics. With L = kron(L1, ..., La) and R = kron(R1, ..., Rb), either of which may be absent,
///
///     Y (+)= alpha * L * X * R
///
/// X seen as the tensor X[(p1..pa), (r1..rb)] by the index formula of kron.hpp, every factor replaces its own mode:
///
///     Y[.., q, ..] = sum_p L_k[q, p] * X[.., p, ..]     and     Y[.., s, ..] = sum_r X[.., r, ..] * R_k[r, s]
///
/// Call syntaxes: `X * K`, `K * X`, `K * v`, `v.transpose() * K`, `K1 * X * K2`, each times a scalar anywhere.
/// Shape rule: cols(L) = rows(X), rows(R) = cols(X); Y is rows(L) x cols(R), or the rows / columns of X where a side is absent.
/// Scalar rule: the common one of X and the factors. Lifetime: X like a factor (leaf.hpp).
/// Cost: the planner's; at most 2 * sum of the mode products' flops, no Y-sized memory beyond the plan's workspace.
/// Errors: shape_error with both shapes and the rule.
/// See also: lower.hpp (how it becomes a program).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {

namespace detail {

/// X does not fit the kron beside it.
[[noreturn]] OTIMES_COLD inline void throw_mismatch(const matrix_view& x, const factor_list& factors, bool from_left) {
    const side contracted = from_left ? side::cols : side::rows;
    const side kept = from_left ? side::rows : side::cols;
    const std::int64_t expected = extent_product(factors, contracted);
    const std::int64_t other = extent_product(factors, kept);
    const std::string name = kron_text(factors.size());
    const std::int64_t given = from_left ? x.rows : x.cols;
    std::string text =
        "otimes: " + (from_left ? name + " * X" : "X * " + name) + ": X is " + shape_text(x.rows, x.cols) + ", but " +
        name + " is " + (from_left ? shape_text(other, expected) : shape_text(expected, other)) + ". The " +
        (from_left ? "rows" : "columns") + " of X must equal the product of the factors' " +
        (from_left ? "columns" : "rows") + ", " + product_text(extents_of(factors, contracted), expected) + ".";
    if (given == other) {
        text += " They equal the product of the factors' other extents: did you mean " + name + ".transpose()?";
    }
    throw shape_error(text);
}

/// "kron(F1, F2) * X * kron(F1, F2, F3)"; a side without a kron: nullptr.
OTIMES_COLD inline std::string formula_text(const factor_list* left, const factor_list* right) {
    return (left != nullptr ? kron_text(left->size()) + " * " : std::string()) + "X" +
           (right != nullptr ? " * " + kron_text(right->size()) : std::string());
}

[[noreturn]] OTIMES_COLD inline void throw_too_large(const std::string& formula, const matrix_view& x,
                                                     std::int64_t rows, std::int64_t cols) {
    throw shape_error("otimes: " + formula + ": X is " + shape_text(x.rows, x.cols) + " and the result " +
                      shape_text(rows, cols) + "; an operand or an intermediate has more than 2^63 - 1 elements.");
}

}  // namespace detail

/// L * X * R: all of a product but its scalar, so that what needs no scalar type is compiled once for all of them.
struct product_operands {
    leaf x;
    factor_list left;       ///< factors of L
    factor_list right;      ///< factors of R
    bool has_left = false;  ///< L is there (it may have no factors: the 1 x 1 one)
    bool has_right = false;
    /// The scalar was multiplied by one of a complex type: a plan of this product is complex whatever the value is.
    bool complex_scale = false;
    rewrites rewritten;  ///< the rules that made it

    [[nodiscard]] std::int64_t rows() const {
        return has_left ? detail::extent_product(left, detail::side::rows) : x.rows();
    }
    [[nodiscard]] std::int64_t cols() const {
        return has_right ? detail::extent_product(right, detail::side::cols) : x.cols();
    }

    /// @throws shape_error when X does not fit a kron beside it, or X or Y has more than 2^63 - 1 elements.
    OTIMES_OUT_OF_LINE void check() const {
        if (!fits()) {
            check_each();
        }
    }

    /// "kron(F1, F2) * X * kron(F1, F2, F3)"
    [[nodiscard]] std::string formula() const {
        return detail::formula_text(has_left ? &left : nullptr, has_right ? &right : nullptr);
    }

private:
    /// All that `check` asks, in one pass over the factors. False: something does not fit, or may not.
    [[nodiscard]] bool fits() const {
        const matrix_view view = x.view();
        std::int64_t extents[2] = {view.rows, view.cols};  // of the result
        std::int64_t most = 1;  // elements of an intermediate, whatever the order of the steps
        std::int64_t ignored = 0;
        bool fit = checked_multiply(view.rows, view.cols, ignored);
        for (const bool of_left : {true, false}) {
            std::int64_t& extent = extents[of_left ? 0 : 1];
            if (!(of_left ? has_left : has_right)) {
                fit = checked_multiply(most, extent, most) && fit;
                continue;
            }
            std::int64_t contracted = 1;
            std::int64_t kept = 1;
            for (const leaf& factor : of_left ? left : right) {
                const matrix_view f = factor.view();
                fit = checked_multiply(contracted, of_left ? f.cols : f.rows, contracted) &&
                      checked_multiply(kept, of_left ? f.rows : f.cols, kept) &&
                      checked_multiply(most, f.rows > f.cols ? f.rows : f.cols, most) && fit;
            }
            fit = contracted == extent && fit;
            extent = kept;
        }
        return checked_multiply(extents[0], extents[1], ignored) && fit;
    }
    /// The same, one question after the other, for the error that says which.
    OTIMES_COLD void check_each() const {
        const matrix_view view = x.view();
        std::int64_t ignored = 0;
        if (has_left && detail::extent_product(left, detail::side::cols) != view.rows) {
            detail::throw_mismatch(view, left, true);
        }
        if (has_right && detail::extent_product(right, detail::side::rows) != view.cols) {
            detail::throw_mismatch(view, right, false);
        }
        if (!checked_multiply(view.rows, view.cols, ignored) || !checked_multiply(rows(), cols(), ignored) ||
            !intermediates_fit(view)) {
            detail::throw_too_large(formula(), view, rows(), cols());
        }
    }
    /// Whatever the order of the steps, an intermediate has at most prod max(P, Q) elements.
    [[nodiscard]] bool intermediates_fit(const matrix_view& view) const {
        std::int64_t count = has_left ? 1 : view.rows;
        bool empty = view.rows == 0 || view.cols == 0 || rows() == 0 || cols() == 0;
        bool fits = has_right || checked_multiply(count, view.cols, count);
        for (const factor_list* list : {&left, &right}) {
            for (const leaf& factor : *list) {
                const matrix_view f = factor.view();
                fits = fits && checked_multiply(count, f.rows > f.cols ? f.rows : f.cols, count);
            }
        }
        return fits || empty;
    }
};

namespace detail {

/// True when `y` is X itself, in memory, every factor replaces a mode by one of the same extent, and none lies in X: then the
/// product needs no second matrix. `bytes`: of an element of X; `doubled`: it is lowered as a real problem.
OTIMES_COLD inline bool replaces_itself(const product_operands& node, const matrix_view& y, std::int64_t bytes,
                                        bool doubled) {
    if (!(node.x.view() == y) || node.x.conjugated() || node.x.real_elements() || y.rows == 0 || y.cols == 0) {
        return false;
    }
    for (const factor_list* list : {&node.left, &node.right}) {
        for (const leaf& factor : *list) {
            const matrix_view f = factor.view();
            if (f.rows != f.cols || (!factor.is_dense() && !factor.is_identity())) {
                return false;
            }
            if (!factor.is_dense()) {
                continue;
            }
            if (factor.real_elements() && !doubled) {  // a complex program promotes it: more than one chain
                return false;
            }
            if (!factor.is_owned() &&
                overlap(memory_of(f, factor.real_elements() ? bytes / 2 : bytes), memory_of(y, bytes))) {
                return false;
            }
        }
    }
    return true;
}

/// The program of such a product says so by one binding for both: X is described first, Y last.
inline void bind_in_place(program& p) { p.tensors.back().binding = p.tensors.front().binding; }

}  // namespace detail

/// L * X * R with a scalar; see the file comment.
template <class Scalar>
struct product_node : product_operands {
    using scalar_type = Scalar;

    Scalar alpha = Scalar(1);
};

}  // namespace otimes
