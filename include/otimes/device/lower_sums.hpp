// SPDX-License-Identifier: MIT
/// @file lower_sums.hpp
/// From a sum of products in device memory to one program.
///
/// The terms go one after the other: matrices, products, then products with one diagonal. Or products of one X share what they have in common,
/// as sums of krons in host memory do (expr/lower_tree.hpp): of three krons of three factors that share two each, 7 mode products instead of 9.
/// On a GPU the first is often faster, because terms of small factors are computed by one launch. So both are planned when a sum is seen for the
/// first time, and the one that plan/sharing.hpp prefers is kept. Where what is shared has no room in the device's memory, evaluate.hpp takes the terms after all.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <otimes/device/executors.hpp>
#include <otimes/device/expressions.hpp>
#include <otimes/exec/plan_cache.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/lower_tree.hpp>
#include <otimes/plan/sharing.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>

namespace otimes {
namespace device {

/// One binding for each operand, and each factor in device memory, that several terms read or write, so that the executor sees what they
/// share.
OTIMES_COLD inline void share_bindings(program& p, const bindings& b) {
    for (std::size_t i = 0; i < p.tensors.size(); ++i) {
        tensor& t = p.tensors[i];
        const bool shared = t.role != tensor_role::factor || t.space == memory_space::device;
        for (std::size_t j = 0; j < i && t.binding >= 0 && shared; ++j) {
            const tensor& known = p.tensors[j];
            if (known.role == t.role && known.binding >= 0 && known.space == t.space &&
                b.pointers[static_cast<std::size_t>(known.binding)] ==
                    b.pointers[static_cast<std::size_t>(t.binding)]) {
                t.binding = known.binding;
                break;
            }
        }
    }
}

/// How the products of a sum become steps; see the file comment.
enum class sum_form : std::uint8_t { apart, shared };

template <class Scalar>
using terms_in_order = inline_vector<const device_product<Scalar>*, 8>;

/// Matrices first, which are copied; products; products with one diagonal, which are no chains.
template <class Scalar>
terms_in_order<Scalar> order_of_terms(const device_sum<Scalar>& value) {
    const auto turn_of = [](const device_product<Scalar>& term) {
        const product_node<Scalar>& node = term.node();
        const bool one = node.left.size() + node.right.size() == 1;
        return term.is_matrix()                                                                     ? 0
               : one && (node.has_left ? node.left : node.right)[0].kind() == factor_kind::diagonal ? 2
                                                                                                    : 1;
    };
    terms_in_order<Scalar> order;
    for (const int turn : {0, 1, 2}) {
        for (const device_product<Scalar>& term : value.terms()) {
            if (turn_of(term) == turn) {
                order.push_back(&term);
            }
        }
    }
    return order;
}

/// May terms share products with each other: several factors, dense or identities, on one side of X?
template <class Scalar>
bool may_share(const product_node<Scalar>& node) {
    const factor_list& factors = node.has_left ? node.left : node.right;
    return node.has_left != node.has_right && factors.size() > 1 &&
           std::all_of(factors.begin(), factors.end(), [](const leaf& f) { return f.is_dense() || f.is_identity(); });
}

/// The program and the bindings of y (+)= scale * value, on operands where they are. @return false: there is nothing to share, and p and b
/// say nothing. @param low into p and b; it keeps what the bindings point to
template <class Scalar>
bool lower_terms(lowering<Scalar>& low, const terms_in_order<Scalar>& order, const matrix_view& y, bool add,
                 const Scalar& scale, sum_form form, program& p, bindings& b) {
    std::vector<bool> done(order.size(), false);
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (done[i]) {
            continue;
        }
        const product_node<Scalar>& node = order[i]->node();
        operator_tree<Scalar> tree;
        tree.kind = tree_kind::sum;
        for (std::size_t j = i; form == sum_form::shared && j < order.size(); ++j) {
            const product_node<Scalar>& other = order[j]->node();
            if (!may_share(node) || !may_share(other) || other.has_left != node.has_left ||
                !detail::reads_alike(other.x, node.x)) {
                continue;
            }
            kron_node<Scalar> term;
            for (const leaf& f : other.has_left ? other.left : other.right) {
                term.append(f);
            }
            term.set_alpha(other.alpha);
            if (other.complex_scale) {
                term.set_complex_scale();
            }
            term.rewritten().add(other.rewritten);
            tree.parts.emplace_back(std::move(term));
            done[j] = true;
        }
        const matrix_view x = node.x.view();
        if (tree.parts.size() > 1) {
            if (!detail::intermediates_fit(tree, node.has_left ? x.cols : x.rows)) {
                return false;
            }
            p.rewritten.add(tree.rewritten());
            detail::lower_tree(low, tree, node.x, node.has_left, y, add, scale);
        } else {
            low.add_product(node, y, add, scale);
        }
        add = true;
    }
    if (form == sum_form::shared && !p.rewritten.holds(rewrite::terms_shared)) {
        return false;
    }
    share_bindings(p, b);
    return true;
}
/// The same in device memory.
template <class Scalar>
bool lower_sum(const terms_in_order<Scalar>& order, const matrix_view& y, bool add, const Scalar& scale, sum_form form,
               program& p, bindings& b) {
    lowering<Scalar> low(p, b);  // of matrices in device memory it keeps nothing
    if (!lower_terms(low, order, y, add, scale, form, p, b)) {
        return false;
    }
    mark_result_on_device(p);
    return true;
}

/// The form that is faster on `where` by prediction, `apart` being the program of the other one. Cost: both are planned, once.
template <class Scalar>
sum_form better_form(const terms_in_order<Scalar>& order, const matrix_view& y, bool add, const Scalar& scale,
                     const program& apart, const device_executor& where) {
    constexpr std::size_t most_terms = 32;  // both programs of more take long to plan
    program shared;
    bindings ignored;
    if (order.size() > most_terms || !lower_sum(order, y, add, scale, sum_form::shared, shared, ignored)) {
        return sum_form::apart;
    }
    try {
        const std::shared_ptr<const plan> one_by_one = cached_plan_for(apart, where);
        const std::shared_ptr<const plan> together = cached_plan_for(shared, where);
        return planning::sharing_pays(*one_by_one, *together, where.target().gpus.front()) ? sum_form::shared
                                                                                           : sum_form::apart;
    } catch (const shape_error&) {  // an intermediate of one of them that no memory holds
        return sum_form::apart;
    }
}

/// Which form a sum takes on an executor, as this thread has found.
struct known_form {
    std::uint64_t executor_id = 0;
    program apart;
    sum_form form = sum_form::apart;
};
/// The place of this thread for sums whose terms one by one are program `apart`; it may hold another's. nullptr: the thread ends, and keeps none.
inline known_form* known_form_slot(const program& apart) {
    constexpr std::size_t slots = 16;
    using places = std::array<known_form, slots>;
    places* const recent = otimes::detail::kept_by_thread<places, known_form>();
    return recent == nullptr ? nullptr : &(*recent)[static_cast<std::size_t>(hash_value(apart) >> 32) % slots];
}

/// The program and the bindings of y (+)= scale * value by the form that is better on `where`. The program has all terms. Storage of 16 bits is not
/// shared: what lies between would be rounded once more.
template <class Scalar>
sum_form lower_as_evaluated(const device_sum<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
                            const device_executor& where, program& p, bindings& b) {
    const terms_in_order<Scalar> order = order_of_terms(value);
    lower_sum(order, y, add, scale, sum_form::apart, p, b);
    const auto candidates =
        std::count_if(order.begin(), order.end(), [](const auto* term) { return may_share(term->node()); });
    if (candidates < 2 || sizeof(detail::real_of<Scalar>) == 2) {
        return sum_form::apart;
    }
    known_form own;
    known_form* const slot = known_form_slot(p);
    known_form& known = slot == nullptr ? own : *slot;
    if (known.executor_id != where.id() || !(known.apart == p)) {
        const sum_form form = better_form(order, y, add, scale, p, where);
        known = {where.id(), p, form};
    }
    if (known.form == sum_form::apart) {
        return sum_form::apart;
    }
    // Factors in host memory have bindings of their own: `apart` does not say which of them the terms have in common.
    if (!lower_sum(order, y, add, scale, sum_form::shared, p, b)) {
        lower_sum(order, y, add, scale, sum_form::apart, p, b);
        return sum_form::apart;
    }
    return sum_form::shared;
}

}  // namespace device
}  // namespace otimes
