// SPDX-License-Identifier: MIT
/// @file inner_products.hpp
/// The Frobenius norm of a sum of Kronecker products, without forming any of them: by the mixed-product rule
///
///     ||sum_i K_i||^2 = sum_ij <K_j, K_i>         <a kron(F1, .., FN), b kron(G1, .., GN)> = conj(a) b prod_k tr(F_k^H G_k)
///
/// Terms whose factors have equal shapes are multiplied factor by factor. An identity is cut where the other term's factors are square; a term of one
/// identity, diagonal, permutation or sparse matrix is compared with the elements of the other that it meets.
/// Cost: the factors' elements for each pair of terms; stored elements times the number of factors for such a single matrix. Memory: two columns of a
/// factor, of matrix-free ones only. Sums are in double for float. What cancels is lost: the error is some roundings of (sum_i ||K_i||)^2.
#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/tree.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
namespace detail {

/// What inner products of `Scalar` are summed in.
template <class Scalar>
using sum_of =
    std::conditional_t<std::is_same_v<Scalar, float>, double,
                       std::conditional_t<std::is_same_v<Scalar, std::complex<float>>, std::complex<double>, Scalar>>;

/// Few elements in places that are known.
inline bool has_few_elements(const leaf& f) noexcept {
    return f.is_identity() || f.kind() == factor_kind::diagonal || f.kind() == factor_kind::permutation ||
           f.kind() == factor_kind::sparse;
}

/// use(i, j, element) for every stored element. @pre has_few_elements
template <class Scalar, class Use>
void for_each_stored(const leaf& f, const Use& use) {
    const matrix_view view = f.view();
    if (f.kind() == factor_kind::sparse) {
        const sparse_elements s = static_cast<const sparse_operand*>(view.data)->elements();
        const bool by_columns = s.by_columns != f.transposed();
        for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
            for (std::int64_t k = s.begin(outer); k < s.end(outer); ++k) {
                const std::int64_t inner = s.index(s.inner, k);
                use(by_columns ? inner : outer, by_columns ? outer : inner, stored_value<Scalar>(f, s.values, k));
            }
        }
        return;
    }
    for (std::int64_t i = 0; i < view.rows; ++i) {
        if (f.kind() != factor_kind::permutation) {
            use(i, i, kron_node<Scalar>::element(f, view, i, i));
        } else {
            const std::int64_t to = static_cast<const std::int32_t*>(view.data)[i];
            use(f.transposed() ? i : to, f.transposed() ? to : i, Scalar(1));
        }
    }
}

/// tr(f^H g) for factors of equal shapes.
template <class Scalar>
sum_of<Scalar> inner_product(const leaf& f, const leaf& g) {
    using sum_type = sum_of<Scalar>;
    sum_type sum(0);
    const matrix_view of_f = f.view();
    const matrix_view of_g = g.view();
    if (has_few_elements(f) && g.kind() != factor_kind::callback) {
        for_each_stored<Scalar>(f, [&](std::int64_t i, std::int64_t j, const Scalar& value) {
            sum = sum + conjugate_of(sum_type(value)) * sum_type(kron_node<Scalar>::element(g, of_g, i, j));
        });
        return sum;
    }
    if (has_few_elements(g) && f.kind() != factor_kind::callback) {
        for_each_stored<Scalar>(g, [&](std::int64_t i, std::int64_t j, const Scalar& value) {
            sum = sum + conjugate_of(sum_type(kron_node<Scalar>::element(f, of_f, i, j))) * sum_type(value);
        });
        return sum;
    }
    const auto column_of = [](const leaf& m, const matrix_view& view, std::int64_t j, std::vector<Scalar>& column) {
        if (m.kind() == factor_kind::callback) {
            column = callback_column<Scalar>(m, view, j);
            return;
        }
        column.clear();
        for (std::int64_t i = 0; i < view.rows; ++i) {
            column.push_back(kron_node<Scalar>::element(m, view, i, j));
        }
    };
    std::vector<Scalar> first;
    std::vector<Scalar> second;
    for (std::int64_t j = 0; j < of_f.cols; ++j) {
        column_of(f, of_f, j, first);
        column_of(g, of_g, j, second);
        for (std::size_t i = 0; i < first.size(); ++i) {
            sum = sum + conjugate_of(sum_type(first[i])) * sum_type(second[i]);
        }
    }
    return sum;
}

/// The factors of a kron one after the other, of which identities can be cut and neighbouring ones are one.
class factor_walk {
public:
    explicit factor_walk(const factor_list& factors) : factors_(factors) { enter(); }
    [[nodiscard]] bool at_end() const noexcept { return order_ == 0 && at_ == factors_.size(); }
    /// What is left of an identity; 0: the current factor is none.
    [[nodiscard]] std::int64_t order() const noexcept { return order_; }
    [[nodiscard]] const leaf& factor() const { return factors_[at_]; }
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
        for (; at_ < factors_.size() && factors_[at_].is_identity(); ++at_) {
            order *= factors_[at_].rows();
            any = true;
        }
        order_ = any && order != 1 ? order : 0;
    }
    const factor_list& factors_;
    std::size_t at_ = 0;
    std::int64_t order_ = 0;
};

/// The product of tr(F_k^H G_k). False where the factors' shapes differ, and no identity can be cut to fit.
template <class Scalar>
bool multiply_inner_products(const factor_list& f, const factor_list& g, sum_of<Scalar>& product) {
    factor_walk a(f);
    factor_walk b(g);
    product = sum_of<Scalar>(1);
    while (!a.at_end() && !b.at_end()) {
        if (a.order() != 0 && b.order() != 0) {
            const std::int64_t order = (std::min)(a.order(), b.order());
            if ((std::max)(a.order(), b.order()) % order != 0) {
                return false;
            }
            product = product * sum_of<Scalar>(static_cast<real_of<sum_of<Scalar>>>(order));
            a.cut(order);
            b.cut(order);
        } else if (a.order() != 0 || b.order() != 0) {
            factor_walk& identity = a.order() != 0 ? a : b;
            factor_walk& other = a.order() != 0 ? b : a;
            const leaf& matrix = other.factor();
            const std::int64_t order = matrix.rows();
            if (order != matrix.cols() || order == 0 || identity.order() % order != 0) {
                return false;
            }
            const sum_of<Scalar> trace = inner_product<Scalar>(leaf::identity(order), matrix);
            product = product * (&other == &a ? conjugate_of(trace) : trace);
            identity.cut(order);
            other.take();
        } else {
            if (a.factor().rows() != b.factor().rows() || a.factor().cols() != b.factor().cols()) {
                return false;
            }
            product = product * inner_product<Scalar>(a.factor(), b.factor());
            a.take();
            b.take();
        }
    }
    return a.at_end() && b.at_end();
}

/// <a, b> without their scalars. False: see multiply_inner_products; and neither is a single matrix of few elements.
template <class Scalar>
bool inner_product(const kron_node<Scalar>& a, const kron_node<Scalar>& b, sum_of<Scalar>& product) {
    using sum_type = sum_of<Scalar>;
    if (a.rows() == 0 || a.cols() == 0) {
        product = sum_type(0);
        return true;
    }
    if (multiply_inner_products<Scalar>(a.factors(), b.factors(), product)) {
        return true;
    }
    const auto by_elements = [](const kron_node<Scalar>& few, const kron_node<Scalar>& other) {
        kron_node<Scalar> factors = other;
        factors.set_alpha(Scalar(1));
        sum_type sum(0);
        for_each_stored<Scalar>(few.factors()[0], [&](std::int64_t i, std::int64_t j, const Scalar& value) {
            sum = sum + conjugate_of(sum_type(value)) * sum_type(factors.coefficient(i, j));
        });
        return sum;
    };
    if (a.factors().size() == 1 && has_few_elements(a.factors()[0])) {
        product = by_elements(a, b);
        return true;
    }
    if (b.factors().size() == 1 && has_few_elements(b.factors()[0])) {
        product = conjugate_of(by_elements(b, a));
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

}  // namespace detail

/// The squared Frobenius norm of a sum of Kronecker products; see the file comment. Overflows where it does itself.
/// @throws unsupported_error two terms split their rows and columns differently; a term is a product of operators
template <class Scalar>
[[nodiscard]] detail::real_of<Scalar> squared_norm(const operator_tree<Scalar>& tree) {
    using sum_type = detail::sum_of<Scalar>;
    const std::vector<operator_tree<Scalar>> alone(tree.kind == tree_kind::sum ? 0 : 1, tree);
    const std::vector<operator_tree<Scalar>>& terms = tree.kind == tree_kind::sum ? tree.parts : alone;
    using real = detail::real_of<sum_type>;
    real sum(0);
    for (std::size_t i = 0; i < terms.size(); ++i) {
        if (terms[i].kind != tree_kind::kron) {
            throw unsupported_error(
                "otimes: the norm of " + tree.name() + ": term " + std::to_string(i + 1) + " is " + terms[i].name() +
                ", whose norm needs its elements. Write S.toDenseMatrix().norm() if there is room.");
        }
        for (std::size_t j = 0; j <= i; ++j) {
            const kron_node<Scalar>& a = terms[j].kron;
            const kron_node<Scalar>& b = terms[i].kron;
            sum_type product(0);
            if (!detail::inner_product<Scalar>(a, b, product)) {
                throw unsupported_error(
                    "otimes: the norm of " + tree.name() + ": the factors of term " + std::to_string(j + 1) + " are " +
                    detail::factors_text(a.factors()) + ", those of term " + std::to_string(i + 1) + " " +
                    detail::factors_text(b.factors()) +
                    ". Norms of sums go factor by factor: give all terms factors of the same shapes, or identities.");
            }
            product = detail::conjugate_of(sum_type(a.alpha())) * sum_type(b.alpha()) * product;
            sum = sum + detail::real_part_of(product) * real(i == j ? 1 : 2);
        }
    }
    return static_cast<detail::real_of<Scalar>>(sum < real(0) ? real(0) : sum);
}

}  // namespace otimes
