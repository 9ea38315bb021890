// SPDX-License-Identifier: MIT
/// @file inner_products.hpp
/// The Frobenius norm of a sum of Kronecker products, without forming any of them: by the mixed-product rule
///
///     ||sum_i K_i||^2 = sum_ij <K_j, K_i>         <a kron(F1, .., FN), b kron(G1, .., GN)> = conj(a) b prod_k tr(F_k^H G_k)
///
/// Terms whose factors have equal shapes are multiplied factor by factor, those of 1 x 1 alone. An identity is cut where the other term's factors are
/// square; a term of one identity, diagonal, permutation or sparse matrix is compared with the elements of the other that it meets.
/// Cost: the factors' elements for each pair of terms; stored elements times the number of factors for such a single matrix. Memory: two columns of a
/// factor. Sums are in double for float. Factors are scaled by powers of two, so that only a result overflows that has no other value.
/// What cancels is lost: the error is some roundings of (sum_i ||K_i||)^2.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/tree.hpp>
#include <otimes/factorwise/elements.hpp>
#include <otimes/factorwise/norms.hpp>
#include <otimes/factorwise/scaled_number.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
namespace detail {

/// The power of two of a factor's largest element, or near it: elements over it are multiplied without overflow. 0 for zero matrices;
/// its inverse is a number of the type, too.
template <class Scalar>
std::int64_t exponent_of(const leaf& f) {
    if constexpr (!std::is_floating_point_v<real_of<Scalar>>) {
        return 0;
    } else {
        std::int64_t exponent = 0;
        if (f.kind() == factor_kind::low_rank) {
            for (const leaf& part : product_factors(f)) {
                exponent += exponent_of<Scalar>(part);
            }
        } else {
            exponent = factor_norm<Scalar, maximum_norm>(f).exponent();
        }
        constexpr std::int64_t most = -std::numeric_limits<real_of<Scalar>>::min_exponent;
        return std::clamp(exponent, -most, most);
    }
}
template <class Scalar>
std::vector<std::int64_t> exponents_of(const factor_list& factors) {
    std::vector<std::int64_t> result;
    for (const leaf& f : factors) {
        result.push_back(exponent_of<Scalar>(f));
    }
    return result;
}
/// An element over 2^exponent, in the type of sums.
template <class Scalar>
class over_power {
public:
    explicit over_power(std::int64_t exponent) {
        if constexpr (std::is_floating_point_v<real>) {
            inverse_ = std::ldexp(real(1), static_cast<int>(-exponent));
        }
    }
    sum_of<Scalar> operator()(const Scalar& value) const { return sum_of<Scalar>(value) * inverse_; }

private:
    using real = real_of<sum_of<Scalar>>;
    real inverse_ = real(1);
};

/// tr(f^H g) for factors of equal shapes, with their exponent_of.
template <class Scalar>
scaled_number<sum_of<Scalar>> inner_product(const leaf& f, std::int64_t exponent_f, const leaf& g,
                                            std::int64_t exponent_g) {
    using sum_type = sum_of<Scalar>;
    if constexpr (std::is_floating_point_v<real_of<Scalar>>) {
        if (f.kind() == factor_kind::low_rank && f == g) {
            const auto norm = factor_norm<Scalar, 2>(f);
            return scaled_number<sum_type>(sum_type(norm.value_over(norm.exponent())), norm.exponent()).power(2);
        }
    }
    const over_power<Scalar> scaled_f(exponent_f);
    const over_power<Scalar> scaled_g(exponent_g);
    sum_type sum(0);
    const auto with_exponent = [&] { return scaled_number<sum_type>(sum, exponent_f + exponent_g); };
    const matrix_view of_f = f.view();
    const matrix_view of_g = g.view();
    if (has_few_elements(f) && tells_elements(g)) {
        for_each_stored<Scalar>(f, [&](std::int64_t i, std::int64_t j, const Scalar& value) {
            sum = sum + conjugate_of(scaled_f(value)) * scaled_g(kron_node<Scalar>::element(g, of_g, i, j));
        });
        return with_exponent();
    }
    if (has_few_elements(g) && tells_elements(f)) {
        for_each_stored<Scalar>(g, [&](std::int64_t i, std::int64_t j, const Scalar& value) {
            sum = sum + conjugate_of(scaled_f(kron_node<Scalar>::element(f, of_f, i, j))) * scaled_g(value);
        });
        return with_exponent();
    }
    const bool same = f == g;
    std::vector<Scalar> first;
    std::vector<Scalar> second;
    for (std::int64_t j = 0; j < of_f.cols; ++j) {
        write_column<Scalar>(f, j, first);
        if (!same) {
            write_column<Scalar>(g, j, second);
        }
        const std::vector<Scalar>& other = same ? first : second;
        for (std::size_t i = 0; i < first.size(); ++i) {
            sum = sum + conjugate_of(scaled_f(first[i])) * scaled_g(other[i]);
        }
    }
    return with_exponent();
}

/// A term of a sum: its factors and their exponent_of.
template <class Scalar>
struct measured_term {
    const kron_node<Scalar>& node;
    std::vector<std::int64_t> exponents = exponents_of<Scalar>(node.factors());
};

/// The factors of a kron one after the other, of which identities can be cut and neighbouring ones are one. Factors of 1 x 1 are numbers,
/// wherever they stand: those passed are multiplied into `numbers`.
template <class Scalar>
class factor_walk {
public:
    using number = scaled_number<sum_of<Scalar>>;
    /// `conjugated`: the numbers are.
    factor_walk(const measured_term<Scalar>& term, bool conjugated, number& numbers)
        : factors_(term.node.factors()), exponents_(term.exponents), conjugated_(conjugated), numbers_(numbers) {
        enter();
    }
    [[nodiscard]] bool at_end() const noexcept { return order_ == 0 && at_ == factors_.size(); }
    /// What is left of an identity; 0: the current factor is none.
    [[nodiscard]] std::int64_t order() const noexcept { return order_; }
    [[nodiscard]] const leaf& factor() const { return factors_[at_]; }
    [[nodiscard]] std::int64_t exponent() const { return exponents_[at_]; }
    /// Takes an identity of this order off the current one.
    void cut(std::int64_t order) {
        order_ /= order;
        if (order_ == 1) {
            order_ = 0;
            enter();
        }
    }
    /// Takes the current factor, which is no identity.
    void take() {
        ++at_;
        enter();
    }

private:
    void enter() {
        order_ = 0;
        std::int64_t order = 1;
        bool any = false;
        for (; at_ < factors_.size(); ++at_) {
            const leaf& f = factors_[at_];
            if (f.is_identity()) {
                order *= f.rows();
                any = true;
            } else if (f.rows() == 1 && f.cols() == 1) {
                const leaf one = leaf::identity(1);
                numbers_.multiply(conjugated_ ? inner_product<Scalar>(f, exponents_[at_], one, 0)
                                              : inner_product<Scalar>(one, 0, f, exponents_[at_]));
            } else {
                break;
            }
        }
        order_ = any && order != 1 ? order : 0;
    }
    const factor_list& factors_;
    const std::vector<std::int64_t>& exponents_;
    const bool conjugated_;
    number& numbers_;
    std::size_t at_ = 0;
    std::int64_t order_ = 0;
};

/// The product of tr(F_k^H G_k). False where the factors' shapes differ, and no identity can be cut to fit.
template <class Scalar>
bool multiply_inner_products(const measured_term<Scalar>& f, const measured_term<Scalar>& g,
                             scaled_number<sum_of<Scalar>>& product) {
    using sum_type = sum_of<Scalar>;
    product = scaled_number<sum_type>(sum_type(1));
    factor_walk<Scalar> a(f, true, product);
    factor_walk<Scalar> b(g, false, product);
    while (!a.at_end() && !b.at_end()) {
        if (a.order() != 0 && b.order() != 0) {
            const std::int64_t order = (std::min)(a.order(), b.order());
            if ((std::max)(a.order(), b.order()) % order != 0) {
                return false;
            }
            product.multiply(scaled_number<sum_type>(sum_type(static_cast<real_of<sum_type>>(order))));
            a.cut(order);
            b.cut(order);
        } else if (a.order() != 0 || b.order() != 0) {
            factor_walk<Scalar>& identity = a.order() != 0 ? a : b;
            factor_walk<Scalar>& other = a.order() != 0 ? b : a;
            const leaf& matrix = other.factor();
            const std::int64_t order = matrix.rows();
            if (order != matrix.cols() || order == 0 || identity.order() % order != 0) {
                return false;
            }
            const leaf one = leaf::identity(order);
            product.multiply(&other == &a ? inner_product<Scalar>(matrix, other.exponent(), one, 0)
                                          : inner_product<Scalar>(one, 0, matrix, other.exponent()));
            identity.cut(order);
            other.take();
        } else {
            if (a.factor().rows() != b.factor().rows() || a.factor().cols() != b.factor().cols()) {
                return false;
            }
            product.multiply(inner_product<Scalar>(a.factor(), a.exponent(), b.factor(), b.exponent()));
            a.take();
            b.take();
        }
    }
    return a.at_end() && b.at_end();
}

/// <a, b> without their scalars. False: see multiply_inner_products; and neither is a single matrix of few elements.
template <class Scalar>
bool inner_product(const measured_term<Scalar>& a, const measured_term<Scalar>& b,
                   scaled_number<sum_of<Scalar>>& product) {
    using sum_type = sum_of<Scalar>;
    if (a.node.rows() == 0 || a.node.cols() == 0) {
        product = scaled_number<sum_type>(sum_type(0));
        return true;
    }
    if (multiply_inner_products<Scalar>(a, b, product)) {
        return true;
    }
    const auto by_elements = [](const measured_term<Scalar>& few, const measured_term<Scalar>& other, bool conjugated) {
        const over_power<Scalar> scaled(few.exponents[0]);
        std::vector<over_power<Scalar>> scaled_others;
        std::int64_t exponent = few.exponents[0];
        for (const std::int64_t e : other.exponents) {
            scaled_others.emplace_back(e);
            exponent += e;
        }
        const auto element = [&](std::int64_t i, std::int64_t j) {
            sum_type value(1);
            for (std::size_t k = scaled_others.size(); k-- > 0;) {
                const leaf& f = other.node.factors()[k];
                const matrix_view view = f.view();
                value = scaled_others[k](kron_node<Scalar>::element(f, view, i % view.rows, j % view.cols)) * value;
                i /= view.rows;
                j /= view.cols;
            }
            return value;
        };
        sum_type sum(0);
        for_each_stored<Scalar>(few.node.factors()[0], [&](std::int64_t i, std::int64_t j, const Scalar& value) {
            sum = sum + conjugate_of(scaled(value)) * element(i, j);
        });
        return scaled_number<sum_type>(conjugated ? conjugate_of(sum) : sum, exponent);
    };
    const auto is_few = [](const measured_term<Scalar>& term) {
        return term.node.factors().size() == 1 && has_few_elements(term.node.factors()[0]);
    };
    if (is_few(a)) {
        product = by_elements(a, b, false);
        return true;
    }
    if (is_few(b)) {
        product = by_elements(b, a, true);
        return true;
    }
    return false;
}

/// "2 x 3, 4 x 4"
OTIMES_COLD inline std::string factors_text(const factor_list& factors) {
    std::string text;
    for (const leaf& f : factors) {
        text += (text.empty() ? "" : ", ") + shape_text(f.rows(), f.cols());
    }
    return text;
}

/// See squared_norm.
template <class Scalar>
scaled_number<real_of<sum_of<Scalar>>> scaled_squared_norm(const operator_tree<Scalar>& tree) {
    using sum_type = sum_of<Scalar>;
    using real = real_of<sum_type>;
    const std::vector<operator_tree<Scalar>> alone(tree.kind == tree_kind::sum ? 0 : 1, tree);
    const std::vector<operator_tree<Scalar>>& terms = tree.kind == tree_kind::sum ? tree.parts : alone;
    std::vector<measured_term<Scalar>> measured;
    std::vector<scaled_number<real>> products;  // of all pairs
    for (std::size_t i = 0; i < terms.size(); ++i) {
        if (terms[i].kind != tree_kind::kron) {
            throw unsupported_error(
                "otimes: the norm of " + tree.name() + ": term " + std::to_string(i + 1) + " is " + terms[i].name() +
                ", whose norm needs its elements. Write S.toDenseMatrix().norm() if there is room.");
        }
        measured.push_back({terms[i].kron});
        for (std::size_t j = 0; j <= i; ++j) {
            const kron_node<Scalar>& a = terms[j].kron;
            const kron_node<Scalar>& b = terms[i].kron;
            scaled_number<sum_type> product(sum_type(0));
            if (!inner_product<Scalar>(measured[j], measured[i], product)) {
                throw unsupported_error(
                    "otimes: the norm of " + tree.name() + ": the factors of term " + std::to_string(j + 1) + " are " +
                    factors_text(a.factors()) + ", those of term " + std::to_string(i + 1) + " " +
                    factors_text(b.factors()) +
                    ". Norms of sums go factor by factor: give all terms factors of the same shapes, or identities.");
            }
            scaled_number<sum_type> scale(conjugate_of(sum_type(a.alpha())));
            scale.multiply(scaled_number<sum_type>(sum_type(b.alpha())));
            scale.multiply(product);
            products.emplace_back(real_part_of(scale.value_over(scale.exponent())) * real(i == j ? 1 : 2),
                                  scale.exponent());
        }
    }
    bool any = false;
    std::int64_t largest = 0;  // their sum is one over its largest term
    for (const scaled_number<real>& product : products) {
        if (!product.is_zero()) {
            largest = any ? (std::max)(largest, product.exponent()) : product.exponent();
            any = true;
        }
    }
    real sum(0);
    for (const scaled_number<real>& product : products) {
        sum = sum + product.value_over(largest);
    }
    return scaled_number<real>(sum < real(0) ? real(0) : sum, largest);
}

}  // namespace detail

/// The squared Frobenius norm of a sum of Kronecker products; see the file comment. Overflows where it does itself.
/// @throws unsupported_error two terms split their rows and columns differently; a term is a product of operators
template <class Scalar>
[[nodiscard]] detail::real_of<Scalar> squared_norm(const operator_tree<Scalar>& tree) {
    return static_cast<detail::real_of<Scalar>>(detail::scaled_squared_norm(tree).value());
}
/// Its root, which overflows and vanishes only where the norm does. @throws as squared_norm
template <class Scalar>
[[nodiscard]] detail::real_of<Scalar> norm_of(const operator_tree<Scalar>& tree) {
    using std::sqrt;
    if constexpr (std::is_floating_point_v<detail::real_of<Scalar>>) {
        return static_cast<detail::real_of<Scalar>>(detail::scaled_squared_norm(tree).root().value());
    } else {
        return sqrt(squared_norm(tree));
    }
}

}  // namespace otimes
