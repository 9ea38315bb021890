// SPDX-License-Identifier: MIT
/// @file lower_tree.hpp
/// From a tree of sums and products of krons to steps.
///
/// A sum of krons whose factors split X alike shares what its terms have in common. With the modes in the order that is
/// cheapest for one term, each prefix of factors is applied once and partial results that continue alike are added before
/// they continue:
///
///     kron(A, M, M) + kron(M, A, M) + kron(M, M, A):  X A, X M | (X A) M + (X M) A, (X M) M | .. M + .. A     7 products, not 9
///     kron(A, I, I) + kron(I, B, I) + kron(I, I, C):  X A + X B + X C, into Y                                  3 products
///
/// At every mode the terms are edges between what has been computed (and the next factor) and what is still to come; a
/// least vertex cover of that graph says which partial results to keep apart and which to add. (The construction of
/// sum-of-products operators by bipartite graphs: Ren, Li, Jiang, Shuai 2020, see docs/references.md.) What then goes from one result to
/// another by several factors goes by their sum, where factors and X are in host memory:
///
///     kron(A, M) + kron(M, A) - s kron(M, M):         X A, X M | (X A) M + (X M) (A - s M)                     4 products, not 6
///     kron(A, I) + kron(I, B) - s I:                  X A + X (B - s I), into Y                                2 products
///
/// Where all that takes more flops than the terms one by one, they are evaluated one by one.
///
/// A product is evaluated from X outwards through scratch matrices: its inner extents need not split alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <otimes/expr/factor_sum.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/lower_structured.hpp>
#include <otimes/expr/multiply_krons.hpp>
#include <otimes/expr/tree.hpp>

namespace otimes {
namespace detail {

/// Whether all that lies between the steps of a tree has at most 2^63 - 1 elements, whatever their order. `beside`: the other extent of X.
template <class Scalar>
bool intermediates_fit(const operator_tree<Scalar>& tree, std::int64_t beside) {
    const auto fits = [&beside](const leaf& factor) {
        return checked_multiply(beside, (std::max)(factor.rows(), factor.cols()), beside);
    };
    const factor_list& factors = tree.kron.factors();
    return std::all_of(tree.parts.begin(), tree.parts.end(),
                       [beside](const operator_tree<Scalar>& part) { return intermediates_fit(part, beside); }) &&
           std::all_of(factors.begin(), factors.end(), fits);
}

}  // namespace detail

/// Y (+)= alpha * L * X * R with trees on either side, one of which may be absent (null).
template <class Scalar>
struct tree_product_node {
    leaf x;
    std::shared_ptr<const operator_tree<Scalar>> left;
    std::shared_ptr<const operator_tree<Scalar>> right;
    Scalar alpha = Scalar(1);

    [[nodiscard]] std::int64_t rows() const { return left ? left->rows() : x.rows(); }
    [[nodiscard]] std::int64_t cols() const { return right ? right->cols() : x.cols(); }

    /// @throws shape_error when X does not fit, or an operand or an intermediate has more than 2^63 - 1 elements.
    void check() const {
        const matrix_view view = x.view();
        for (const auto* tree : {left.get(), right.get()}) {
            if (tree != nullptr) {
                tree->check();
            }
        }
        if (left && left->cols() != view.rows) {
            throw shape_error("otimes: S * X: X is " + detail::shape_text(view.rows, view.cols) + ", but S, " +
                              left->name() + ", is " + detail::shape_text(left->rows(), left->cols()) +
                              ". The rows of X must equal the columns of S.");
        }
        if (right && right->rows() != view.cols) {
            throw shape_error("otimes: X * S: X is " + detail::shape_text(view.rows, view.cols) + ", but S, " +
                              right->name() + ", is " + detail::shape_text(right->rows(), right->cols()) +
                              ". The columns of X must equal the rows of S.");
        }
        std::int64_t ignored = 0;
        const bool empty = view.rows == 0 || view.cols == 0 || rows() == 0 || cols() == 0;
        if (!empty &&
            (!checked_multiply(rows(), cols(), ignored) || (left && !detail::intermediates_fit(*left, view.cols)) ||
             (right && !detail::intermediates_fit(*right, rows())))) {
            detail::throw_too_large(left && right ? "S1 * X * S2" : left ? "S * X" : "X * S", view, rows(), cols());
        }
    }
};

namespace detail {

/// The same elements, read in the same way, whoever names them: what two terms can share.
inline bool reads_alike(const leaf& a, const leaf& b) {
    const bool plain = (a.is_dense() || a.is_identity()) && a.kind() == b.kind();
    return a == b || (plain && a.conjugated() == b.conjugated() && a.real_elements() == b.real_elements() &&
                      a.space() == b.space() && a.view() == b.view());
}

}  // namespace detail

/// Writes a sum of krons that split X alike; see the file comment.
template <class Scalar>
class sum_lowering {
public:
    sum_lowering(lowering<Scalar>& low, const leaf& x, bool from_left) : low_(low), x_(x), from_left_(from_left) {}

    /// y (+)= scale * (sum of the terms applied to x).
    void add(const std::vector<const kron_node<Scalar>*>& terms, const matrix_view& y, bool add, const Scalar& scale) {
        doubled_ = std::all_of(terms.begin(), terms.end(), [&](const kron_node<Scalar>* term) {
            return low_.is_doubled(product_of(*term), scale * term->alpha());
        });
        if (terms.size() > 1 && build(terms)) {
            const double saved = separate_cost(terms) - shared_cost();
            if (saved > 0 || (saved == 0 && has_sums())) {  // an identity is no flops, but a pass over memory
                const std::size_t begin = low_.target().steps.size();
                emit(terms, y, add, scale);
                note_savings(terms, begin);
                if (saved > 0) {
                    low_.target().rewritten.add(rewrite::terms_shared);
                }
                return;
            }
        }
        bool later = false;
        for (const kron_node<Scalar>* term : terms) {
            low_.add_product(product_of(*term), y, add || later, scale);
            later = true;
        }
    }

private:
    /// One summand of a value: `factor` on its mode, applied to value `from`, times coefficient.
    struct contribution {
        std::size_t from = 0;
        leaf factor;
        std::size_t mode = 0;
        Scalar coefficient = Scalar(1);
        bool scaled = false;  ///< the coefficient belongs to this expression even if it happens to be 1
        std::vector<std::pair<leaf, Scalar>> addends{};  ///< where there are some, the factor stands for their sum
    };
    /// A partial result; value 0 is X, the last one Y.
    struct value {
        std::vector<contribution> parts;
        std::size_t uses = 0;
        std::int32_t tensor = -1;
    };
    /// A term that is still to be finished: the value that its prefix has become, and which term's suffix follows.
    struct strand {
        std::size_t state = 0;
        std::size_t term = 0;
        Scalar coefficient = Scalar(1);
        bool scaled = true;
    };

    product_node<Scalar> product_of(const kron_node<Scalar>& term) const {
        product_node<Scalar> node;
        node.x = x_;
        (from_left_ ? node.left : node.right) = term.factors();
        (from_left_ ? node.has_left : node.has_right) = true;
        node.alpha = term.alpha();
        node.complex_scale = term.complex_scale();
        return node;
    }
    [[nodiscard]] std::int64_t contracted(const leaf& f) const { return from_left_ ? f.cols() : f.rows(); }
    [[nodiscard]] std::int64_t produced(const leaf& f) const { return from_left_ ? f.rows() : f.cols(); }

    /// Builds the shared values. False where there is nothing to share.
    bool build(const std::vector<const kron_node<Scalar>*>& terms) {
        const std::size_t count = terms.front()->factors().size();
        if (count == 0) {
            return false;
        }
        order_.resize(count);
        for (std::size_t k = 0; k < count; ++k) {
            order_[k] = k;
        }
        // The cheapest order of one term: i before j where 1/P_i - 1/Q_i < 1/P_j - 1/Q_j.
        const auto key = [&](std::size_t k) {
            const leaf& f = terms.front()->factors()[k];
            return 1.0 / static_cast<double>(contracted(f)) - 1.0 / static_cast<double>(produced(f));
        };
        for (const leaf& f : terms.front()->factors()) {
            if (f.rows() == 0 || f.cols() == 0) {
                return false;
            }
        }
        std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });

        values_.assign(1, {});
        std::vector<strand> strands;
        for (std::size_t t = 0; t < terms.size(); ++t) {
            strands.push_back({0, t, terms[t]->alpha(), true});
        }
        for (std::size_t at = 0; at < count; ++at) {
            strands = advance(terms, strands, at);
        }
        // What is left is the single strand of Y.
        inline_single_uses();
        add_factors();
        return true;
    }

    /// One mode: chooses by a least vertex cover which partial results stay apart and which are added.
    std::vector<strand> advance(const std::vector<const kron_node<Scalar>*>& terms, const std::vector<strand>& strands,
                                std::size_t at) {
        const std::size_t mode = order_[at];
        const auto factor_of = [&](const strand& s) -> const leaf& { return terms[s.term]->factors()[mode]; };
        const auto same_suffix = [&](std::size_t a, std::size_t b) {
            for (std::size_t k = at + 1; k < order_.size(); ++k) {
                if (!detail::reads_alike(terms[a]->factors()[order_[k]], terms[b]->factors()[order_[k]])) {
                    return false;
                }
            }
            return true;
        };
        // Vertices: prefixes (state, factor) and suffixes; each strand is an edge.
        std::vector<std::size_t> prefix_of;
        std::vector<std::size_t> suffix_of;
        std::vector<std::size_t> prefixes;  // a strand of each
        std::vector<std::size_t> suffixes;
        for (std::size_t e = 0; e < strands.size(); ++e) {
            std::size_t u = 0;
            while (u < prefixes.size() &&
                   !(strands[prefixes[u]].state == strands[e].state &&
                     detail::reads_alike(factor_of(strands[prefixes[u]]), factor_of(strands[e])))) {
                ++u;
            }
            if (u == prefixes.size()) {
                prefixes.push_back(e);
            }
            prefix_of.push_back(u);
            std::size_t v = 0;
            while (v < suffixes.size() && !same_suffix(strands[suffixes[v]].term, strands[e].term)) {
                ++v;
            }
            if (v == suffixes.size()) {
                suffixes.push_back(e);
            }
            suffix_of.push_back(v);
        }
        std::vector<bool> keep_prefix(prefixes.size(), false);
        std::vector<bool> keep_suffix(suffixes.size(), true);
        if (at + 1 < order_.size()) {
            least_cover(prefix_of, suffix_of, keep_prefix, keep_suffix);
        }
        std::vector<std::size_t> state_of_prefix(prefixes.size(), none);
        std::vector<std::size_t> state_of_suffix(suffixes.size(), none);
        std::vector<strand> next;
        for (std::size_t e = 0; e < strands.size(); ++e) {
            const strand& s = strands[e];
            const leaf& factor = factor_of(s);
            if (keep_prefix[prefix_of[e]]) {
                std::size_t& state = state_of_prefix[prefix_of[e]];
                if (state == none) {
                    if (factor.is_identity()) {
                        state = s.state;
                    } else {
                        state = values_.size();
                        values_.push_back({{contribution{s.state, factor, mode, Scalar(1), false}}, 0, -1});
                    }
                }
                next.push_back({state, s.term, s.coefficient, s.scaled});
                continue;
            }
            std::size_t& state = state_of_suffix[suffix_of[e]];
            if (state == none) {
                state = values_.size();
                values_.push_back({});
                next.push_back({state, s.term, Scalar(1), false});
            }
            values_[state].parts.push_back({s.state, factor, mode, s.coefficient, s.scaled});
        }
        return next;
    }

    /// Koenig: from a largest matching, the prefixes that no alternating path reaches and the suffixes that one does.
    static void least_cover(const std::vector<std::size_t>& prefix_of, const std::vector<std::size_t>& suffix_of,
                            std::vector<bool>& keep_prefix, std::vector<bool>& keep_suffix) {
        std::vector<std::size_t> partner(keep_suffix.size(), none);  // of each suffix
        std::vector<bool> matched(keep_prefix.size(), false);
        std::vector<bool> seen;
        const auto augment = [&](const auto& self, std::size_t u) -> bool {
            for (std::size_t e = 0; e < prefix_of.size(); ++e) {
                const std::size_t v = suffix_of[e];
                if (prefix_of[e] != u || seen[v]) {
                    continue;
                }
                seen[v] = true;
                if (partner[v] == none || self(self, partner[v])) {
                    partner[v] = u;
                    return true;
                }
            }
            return false;
        };
        for (std::size_t u = 0; u < keep_prefix.size(); ++u) {
            seen.assign(keep_suffix.size(), false);
            matched[u] = augment(augment, u);
        }
        std::fill(keep_prefix.begin(), keep_prefix.end(), true);
        std::fill(keep_suffix.begin(), keep_suffix.end(), false);
        const auto reach = [&](const auto& self, std::size_t u) -> void {
            keep_prefix[u] = false;
            for (std::size_t e = 0; e < prefix_of.size(); ++e) {
                const std::size_t v = suffix_of[e];
                if (prefix_of[e] == u && !keep_suffix[v]) {
                    keep_suffix[v] = true;
                    if (partner[v] != none && keep_prefix[partner[v]]) {
                        self(self, partner[v]);
                    }
                }
            }
        };
        for (std::size_t u = 0; u < matched.size(); ++u) {
            if (!matched[u] && keep_prefix[u]) {
                reach(reach, u);
            }
        }
    }

    /// A value that is only added to another one is computed there.
    void inline_single_uses() {
        for (value& v : values_) {
            v.uses = 0;
        }
        for (const value& v : values_) {
            for (const contribution& c : v.parts) {
                ++values_[c.from].uses;
            }
        }
        for (value& v : values_) {
            for (std::size_t k = 0; k < v.parts.size();) {
                const contribution c = v.parts[k];
                if (!c.factor.is_identity() || c.from == 0 || values_[c.from].uses != 1) {
                    ++k;
                    continue;
                }
                v.parts.erase(v.parts.begin() + static_cast<std::ptrdiff_t>(k));
                for (contribution moved : values_[c.from].parts) {
                    moved.coefficient = c.coefficient * moved.coefficient;
                    moved.scaled = true;
                    v.parts.push_back(std::move(moved));
                }
                values_[c.from].parts.clear();
                values_[c.from].uses = 0;
            }
        }
    }

    /// What goes from one value to another along one mode, or as it is, goes at once, by the sum of the factors. That takes a multiply-add for each
    /// element of the factors, so it saves one for each of the other indices; what the rows of X would save is left out, so that their number
    /// decides nothing.
    void add_factors() {
        constexpr double least_others = 8;
        for (value& v : values_) {
            for (std::size_t k = 0; k < v.parts.size(); ++k) {
                contribution& one = v.parts[k];
                for (std::size_t j = k + 1; j < v.parts.size();) {
                    contribution& other = v.parts[j];
                    const bool alike =  // an identity is one on any mode
                        other.mode == one.mode || one.factor.is_identity() || other.factor.is_identity();
                    const contribution& dense = one.factor.is_identity() ? other : one;
                    if (other.from != one.from || !alike || !may_add(one.factor, other.factor) ||
                        others_of(dense) < least_others) {
                        ++j;
                        continue;
                    }
                    if (one.addends.empty()) {
                        one.addends.push_back({one.factor, one.coefficient});
                    }
                    one.addends.push_back({other.factor, other.coefficient});
                    if (one.factor.is_identity()) {
                        one.factor = other.factor;
                        one.mode = other.mode;
                    }
                    one.coefficient = Scalar(1);
                    one.scaled = false;
                    v.parts.erase(v.parts.begin() + static_cast<std::ptrdiff_t>(j));
                }
            }
        }
    }
    /// Writes down, for explain, how many factors and terms the formula has that the steps from `begin` on need not do.
    void note_savings(const std::vector<const kron_node<Scalar>*>& terms, std::size_t begin) {
        program& p = low_.target();
        std::int32_t factors = 0;
        auto written = static_cast<std::int32_t>(terms.size());
        for (const kron_node<Scalar>* term : terms) {
            for (const leaf& f : term->factors()) {
                factors += f.is_identity() ? 0 : 1;
            }
        }
        for (std::size_t i = begin; i < p.steps.size(); ++i) {
            factors -= p.steps[i].factor >= 0 ? 1 : 0;
            written -= p.at(p.steps[i].out).role == tensor_role::output ? 1 : 0;
        }
        p.noted.factors_saved += factors;
        // A sum that lies between two products has no terms of the result.
        if (!lowering_notes::has(p.noted.scratch_bindings, p.at(p.steps.back().out).binding)) {
            p.noted.terms_saved += written;
        }
    }
    [[nodiscard]] bool has_sums() const {
        return std::any_of(values_.begin(), values_.end(), [](const value& v) {
            return std::any_of(v.parts.begin(), v.parts.end(),
                               [](const contribution& c) { return !c.addends.empty(); });
        });
    }
    /// Matrices whose elements can be read here; not two real ones that a complex scalar would make complex.
    [[nodiscard]] bool may_add(const leaf& a, const leaf& b) const {
        const auto complex_elements = [](const leaf& f) { return f.is_dense() && !f.real_elements(); };
        return (a.is_dense() || b.is_dense()) && (a.is_dense() || a.is_identity()) &&
               (b.is_dense() || b.is_identity()) && a.space() == memory_space::host &&
               b.space() == memory_space::host && x_.space() == memory_space::host &&
               (!detail::is_complex_scalar<Scalar> || doubled_ || complex_elements(a) || complex_elements(b));
    }
    /// The sum of a contribution's factors, formed and kept with the bindings.
    leaf sum_of(const contribution& c) { return doubled_ ? sum_of<detail::real_of<Scalar>>(c) : sum_of<Scalar>(c); }
    template <class Value>
    leaf sum_of(const contribution& c) {
        auto sum = std::make_shared<factor_sum<Scalar, Value>>(c.factor.view());
        rewrites& applied = low_.target().rewritten;
        applied.add(rewrite::factors_added);
        for (const auto& [factor, coefficient] : c.addends) {
            sum->add(factor, coefficient);
            applied.formed_flops += 2 * factor.rows() * (factor.is_identity() ? 1 : factor.cols());
        }
        sum->form();
        sum->before = low_.formed() != nullptr ? low_.formed()->shared_from_this() : nullptr;
        low_.keep_formed(sum, sum.get());
        return sum->result(sum);
    }

    /// Indices of the other modes, relative to the rows of X: the modes done are produced ones.
    [[nodiscard]] double others_of(const contribution& c) const {
        double others = 1;
        bool done = true;
        for (const std::size_t k : order_) {
            if (k == c.mode) {
                done = false;
                continue;
            }
            others *= static_cast<double>(done ? produced((*shape_)[k]) : contracted((*shape_)[k]));
        }
        return others;
    }
    [[nodiscard]] double shared_cost() const {
        double cost = 0;
        for (const value& v : values_) {
            for (const contribution& c : v.parts) {
                cost += others_of(c) * detail::fibre_cost(c.factor);
            }
        }
        return cost;
    }
    double separate_cost(const std::vector<const kron_node<Scalar>*>& terms) const {
        double cost = 0;
        for (const kron_node<Scalar>* term : terms) {
            std::vector<detail::mode_parts> modes;
            double others = 1;
            for (const leaf& factor : term->factors()) {
                modes.push_back(detail::parts_along(factor, from_left_, static_cast<std::int32_t>(modes.size())));
                others *= modes.back().parts.empty() ? static_cast<double>(factor.rows()) : 1.0;
            }
            cost += detail::cheapest_interleaving(modes, others).cost;
        }
        return cost;
    }

    void emit(const std::vector<const kron_node<Scalar>*>& terms, const matrix_view& y, bool add, const Scalar& scale) {
        program& p = low_.target();
        product_node<Scalar> node = product_of(*terms.front());
        const bool doubled = doubled_;
        type_ = doubled ? dtype_of<detail::real_of<Scalar>>() : dtype_of<Scalar>();
        const bool promote_x = detail::is_complex_scalar<Scalar> && x_.real_elements();
        const matrix_view x = x_.view();
        std::int32_t input = low_.describe_matrix(node, x, promote_x ? dtype_of<detail::real_of<Scalar>>() : type_,
                                                  tensor_role::input, false, doubled);
        p.tensors.back().conjugate = x_.conjugated();
        p.tensors.back().space = x_.space();
        low_.bind(x.data, /*is_x=*/true);
        if (promote_x) {
            const std::int32_t promoted = low_.add_temporary(input, type_, -1, 0);
            p.steps.push_back(program_writer::make_step(step_kind::accumulate, input, -1, promoted, -1));
            input = promoted;
        }
        values_.front().tensor = input;
        const std::int32_t result = low_.describe_matrix(node, y, type_, tensor_role::output, true, doubled);
        p.tensors.back().space = x_.space();
        low_.bind(y.data);
        values_.back().tensor = result;
        for (contribution& c : values_.back().parts) {
            c.coefficient = scale * c.coefficient;
            c.scaled = true;
        }
        write_value(values_.size() - 1, add);
    }

    /// Writes the steps of a value; what it needs is written just before, so that a run of single uses is one chain.
    void write_value(std::size_t id, bool add) {
        program& p = low_.target();
        for (const contribution& c : values_[id].parts) {
            if (values_[c.from].tensor < 0) {
                write_value(c.from, false);
            }
            const std::int32_t from = values_[c.from].tensor;
            const leaf factor = c.addends.empty() ? c.factor : sum_of(c);
            const std::int32_t out =
                low_.add_factor(from, type_, factor, from_left_, static_cast<std::int32_t>(position(c.mode)));
            std::int32_t& tensor = values_[id].tensor;
            if (out == from) {  // an identity
                if (tensor < 0) {
                    tensor = low_.add_temporary(from, type_, -1, 0);
                }
                p.steps.push_back(program_writer::make_step(step_kind::accumulate, from, -1, tensor, -1));
            } else if (tensor < 0) {
                tensor = out;
            } else {
                low_.drop_last_tensor();
                p.steps.back().out = tensor;
            }
            p.steps.back().add = add;
            if (c.scaled) {
                p.steps.back().scalar = low_.add_scalar(c.coefficient);
            }
            add = true;
        }
    }

    /// Number of the mode of factor k in the tensors of X.
    [[nodiscard]] std::size_t position(std::size_t k) const { return from_left_ ? k : k + 1; }

    static constexpr std::size_t none = static_cast<std::size_t>(-1);

public:
    /// The factors that give the modes their extents.
    void set_shape(const factor_list& shape) { shape_ = &shape; }

private:
    lowering<Scalar>& low_;
    const leaf& x_;
    bool from_left_;
    const factor_list* shape_ = nullptr;
    std::vector<std::size_t> order_;
    std::vector<value> values_;
    dtype type_ = dtype_of<Scalar>();
    bool doubled_ = false;  // a real problem: X alone is complex
};

namespace detail {

/// Do the factors split rows and columns alike?
inline bool same_split(const factor_list& a, const factor_list& b) {
    if (a.size() != b.size()) {
        return false;
    }
    for (std::size_t k = 0; k < a.size(); ++k) {
        if (a[k].rows() != b[k].rows() || a[k].cols() != b[k].cols()) {
            return false;
        }
    }
    return true;
}

/// The term with its identities split and merged so that its factors split like `shape`; the term itself where that is
/// impossible. An identity on its own is split like any square shape.
template <class Scalar>
kron_node<Scalar> split_like(const kron_node<Scalar>& term, const factor_list& shape) {
    if (same_split(term.factors(), shape)) {
        return term;
    }
    factor_list runs;
    merge_identity_runs(term.factors(), runs);
    factor_list merged;  // without identities of order 1, which stand anywhere
    for (const leaf& f : runs) {
        if (!f.is_identity() || f.rows() != 1) {
            merged.push_back(f);
        }
    }
    kron_node<Scalar> result;
    result.rewritten().add(term.rewritten());
    std::size_t at = 0;
    std::int64_t left = 0;  // of the identity at `at`
    for (const leaf& f : shape) {
        if (left == 0 && at < merged.size() && merged[at].is_identity()) {
            left = merged[at].rows();
        }
        if (left > 0 && f.rows() == f.cols() && f.rows() > 1 && left % f.rows() == 0) {
            result.append(leaf::identity(f.rows()));
            left = left == f.rows() ? (++at, 0) : left / f.rows();
        } else if (left == 0 && at < merged.size() && merged[at].rows() == f.rows() && merged[at].cols() == f.cols()) {
            result.append(merged[at++]);
        } else if (f.rows() == 1 && f.cols() == 1) {
            result.append(leaf::identity(1));
        } else {
            return term;
        }
    }
    if (at != merged.size()) {
        return term;
    }
    result.rewritten().add(rewrite::identity_term_split);
    result.set_alpha(term.alpha());
    if (term.complex_scale()) {
        result.set_complex_scale();
    }
    return result;
}

/// y (+)= scale * tree * x, or x * tree.
template <class Scalar>
void lower_tree(lowering<Scalar>& low, const operator_tree<Scalar>& tree, const leaf& x, bool from_left,
                const matrix_view& y, bool add, const Scalar& scale) {
    if (tree.kind == tree_kind::product) {
        leaf current = x;
        for (std::size_t k = 0; k < tree.parts.size(); ++k) {
            const operator_tree<Scalar>& part = tree.parts[from_left ? tree.parts.size() - 1 - k : k];
            if (k + 1 == tree.parts.size()) {
                lower_tree(low, part, current, from_left, y, add, scale);
                return;
            }
            const matrix_view view = current.view();
            const matrix_view between =
                from_left ? low.scratch(part.rows(), view.cols, y) : low.scratch(view.rows, part.cols(), y);
            lower_tree(low, part, current, from_left, between, false, Scalar(1));
            current = leaf::borrowed(between);
            current.set_space(x.space());
        }
        return;
    }
    // The krons of a sum, in groups that split alike; identities join the first group that they fit.
    std::vector<kron_node<Scalar>> krons;
    if (tree.kind == tree_kind::kron) {
        krons.push_back(tree.kron);
    }
    for (const operator_tree<Scalar>& part : tree.parts) {
        if (part.kind == tree_kind::kron) {
            krons.push_back(part.kron);
        }
    }
    bool later = add;
    std::vector<bool> done(krons.size(), false);
    const auto all_identity = [](const kron_node<Scalar>& node) {
        return std::all_of(node.factors().begin(), node.factors().end(), [](const leaf& f) { return f.is_identity(); });
    };
    // How many of the terms that are left split like a shape.
    const auto fits = [](const kron_node<Scalar>& term, const factor_list& shape) {
        return same_split(term.factors(), shape) || same_split(split_like(term, shape).factors(), shape);
    };
    const auto fitting = [&](const factor_list& shape) {
        std::size_t count = 0;
        for (std::size_t j = 0; j < krons.size(); ++j) {
            count += done[j] || fits(krons[j], shape) ? 1u : 0u;
        }
        return count;
    };
    low.share_x(true);
    for (const bool identities : {false, true}) {
        for (std::size_t i = 0; i < krons.size(); ++i) {
            if (done[i] || all_identity(krons[i]) != identities) {
                continue;
            }
            factor_list shape = krons[i].factors();
            if (krons.size() > 1) {  // the split, of those of the terms, that most terms can take
                std::size_t most = fitting(shape);
                const auto consider = [&](const factor_list& other) {
                    if (most < krons.size() && fits(krons[i], other) && fitting(other) > most) {
                        most = fitting(other);
                        shape = other;
                    }
                };
                factor_list merged;
                if (merge_identity_runs(krons[i].factors(), merged)) {
                    consider(merged);
                }
                for (std::size_t j = i + 1; j < krons.size(); ++j) {
                    if (!done[j] && !all_identity(krons[j])) {
                        consider(krons[j].factors());
                    }
                }
            }
            std::vector<const kron_node<Scalar>*> terms;
            for (std::size_t j = 0; j < krons.size(); ++j) {
                if (done[j]) {
                    continue;
                }
                kron_node<Scalar> fitted = split_like(krons[j], shape);
                if (same_split(fitted.factors(), shape)) {
                    if (!same_split(krons[j].factors(), shape)) {
                        low.target().rewritten.add(rewrite::identity_term_split);
                    }
                    krons[j] = std::move(fitted);
                    done[j] = true;
                    terms.push_back(&krons[j]);
                }
            }
            sum_lowering<Scalar> sum(low, x, from_left);
            sum.set_shape(shape);
            sum.add(terms, y, later, scale);
            later = true;
        }
    }
    low.share_x(false);
    for (const operator_tree<Scalar>& part : tree.parts) {
        if (part.kind != tree_kind::kron) {
            lower_tree(low, part, x, from_left, y, later, scale);
            later = true;
        }
    }
}

}  // namespace detail
}  // namespace otimes
