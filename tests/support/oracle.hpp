// SPDX-License-Identifier: MIT
// The oracle: Kronecker products entry by entry, in long double, by plain loops on std::vector.
//
// It shares no code with the library and does not include Eigen; it is meant to be right at sight, not quick.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace oracle {

// The type the oracle computes in: std::complex<long double> for complex scalars, long double for all others.
template <class Scalar>
struct wide {
    using type = long double;
};
template <class Real>
struct wide<std::complex<Real>> {
    using type = std::complex<long double>;
};
template <class Scalar>
using wide_t = typename wide<Scalar>::type;

// A row-major matrix of Wide (long double or std::complex<long double>).
template <class Wide>
class dense {
public:
    dense() = default;
    dense(std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols), entries_(rows * cols, Wide(0)) {}

    std::size_t rows() const { return rows_; }
    std::size_t cols() const { return cols_; }
    Wide& operator()(std::size_t i, std::size_t j) { return entries_.at(i * cols_ + j); }
    const Wide& operator()(std::size_t i, std::size_t j) const { return entries_.at(i * cols_ + j); }

private:
    std::size_t rows_ = 0;
    std::size_t cols_ = 0;
    std::vector<Wide> entries_;
};

using real = dense<long double>;
using complex = dense<std::complex<long double>>;

namespace detail {

inline void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
}

template <class Scalar>
long double widened(const Scalar& value) {
    return static_cast<long double>(value);
}
template <class Real>
std::complex<long double> widened(const std::complex<Real>& value) {
    return {static_cast<long double>(value.real()), static_cast<long double>(value.imag())};
}

inline long double conjugated(long double value) { return value; }
inline std::complex<long double> conjugated(const std::complex<long double>& value) { return std::conj(value); }

template <class Matrix>
concept has_shape = requires(const Matrix& matrix) {
    matrix.rows() * matrix.cols();
};

template <class First, class Second>
using common_t = std::conditional_t<std::is_same_v<First, Second>, First, std::complex<long double>>;

}  // namespace detail

// A copy of anything with rows(), cols() and operator()(row, col), e.g. an Eigen matrix or view (evaluate expressions
// first).
template <class Matrix>
auto from(const Matrix& matrix) {
    using index = std::remove_cvref_t<decltype(matrix.rows())>;
    using scalar = std::remove_cvref_t<decltype(matrix(index{}, index{}))>;
    dense<wide_t<scalar>> copy(static_cast<std::size_t>(matrix.rows()), static_cast<std::size_t>(matrix.cols()));
    for (index i = 0; i < matrix.rows(); ++i) {
        for (index j = 0; j < matrix.cols(); ++j) {
            copy(static_cast<std::size_t>(i), static_cast<std::size_t>(j)) = detail::widened(scalar(matrix(i, j)));
        }
    }
    return copy;
}

inline complex to_complex(const real& matrix) {
    complex copy(matrix.rows(), matrix.cols());
    for (std::size_t i = 0; i < matrix.rows(); ++i) {
        for (std::size_t j = 0; j < matrix.cols(); ++j) copy(i, j) = matrix(i, j);
    }
    return copy;
}

template <class Wide = long double>
dense<Wide> identity(std::size_t extent) {
    dense<Wide> result(extent, extent);
    for (std::size_t i = 0; i < extent; ++i) result(i, i) = Wide(1);
    return result;
}

// kron(F1, ..., FN)(i, j) = F1(i1, j1) * ... * FN(iN, jN), where i = ((i1 * P2 + i2) * P3 + i3) ... and j likewise: the
// last factor's indices run quickest. The product of no factors is the 1 x 1 matrix (1).
template <class Wide>
dense<Wide> kron(const std::vector<dense<Wide>>& factors) {
    std::size_t rows = 1;
    std::size_t cols = 1;
    for (const auto& factor : factors) {
        rows *= factor.rows();
        cols *= factor.cols();
    }
    dense<Wide> result(rows, cols);
    for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < cols; ++j) {
            Wide entry(1);
            std::size_t row_rest = i;
            std::size_t col_rest = j;
            for (std::size_t n = factors.size(); n-- > 0;) {
                const auto& factor = factors[n];
                entry *= factor(row_rest % factor.rows(), col_rest % factor.cols());
                row_rest /= factor.rows();
                col_rest /= factor.cols();
            }
            result(i, j) = entry;
        }
    }
    return result;
}

// kron of matrices of any kind: oracle::kron(A, B, C).
template <class... Matrices>
requires(sizeof...(Matrices) > 0 && (detail::has_shape<Matrices> && ...)) auto kron(const Matrices&... matrices) {
    using any = decltype((from(matrices)(0, 0) * ... * 1.0L));
    using wide_type = std::remove_cvref_t<any>;
    std::vector<dense<wide_type>> factors;
    const auto add = [&factors](const auto& matrix) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(matrix)>, dense<wide_type>>) {
            factors.push_back(matrix);
        } else {
            factors.push_back(to_complex(matrix));
        }
    };
    (add(from(matrices)), ...);
    return kron(factors);
}

template <class First, class Second>
auto multiply(const dense<First>& a, const dense<Second>& b) {
    detail::require(a.cols() == b.rows(), "oracle::multiply: the columns of a must equal the rows of b");
    dense<detail::common_t<First, Second>> result(a.rows(), b.cols());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t k = 0; k < a.cols(); ++k) {
            for (std::size_t j = 0; j < b.cols(); ++j) result(i, j) += a(i, k) * b(k, j);
        }
    }
    return result;
}

template <class First, class Second>
auto add(const dense<First>& a, const dense<Second>& b) {
    detail::require(a.rows() == b.rows() && a.cols() == b.cols(), "oracle::add: the shapes must be equal");
    dense<detail::common_t<First, Second>> result(a.rows(), a.cols());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t j = 0; j < a.cols(); ++j) result(i, j) = a(i, j) + b(i, j);
    }
    return result;
}

template <class Factor, class Wide>
auto scale(Factor factor, const dense<Wide>& a) {
    const auto wide_factor = detail::widened(factor);
    dense<detail::common_t<std::remove_cv_t<decltype(wide_factor)>, Wide>> result(a.rows(), a.cols());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t j = 0; j < a.cols(); ++j) result(i, j) = wide_factor * a(i, j);
    }
    return result;
}

template <class Wide>
dense<Wide> transpose(const dense<Wide>& a) {
    dense<Wide> result(a.cols(), a.rows());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t j = 0; j < a.cols(); ++j) result(j, i) = a(i, j);
    }
    return result;
}

template <class Wide>
dense<Wide> conjugate(const dense<Wide>& a) {
    dense<Wide> result(a.rows(), a.cols());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t j = 0; j < a.cols(); ++j) result(i, j) = detail::conjugated(a(i, j));
    }
    return result;
}

template <class Wide>
dense<Wide> adjoint(const dense<Wide>& a) {
    return conjugate(transpose(a));
}

// The magnitudes of the entries. multiply(magnitudes(X), magnitudes(K)) bounds what rounding can do to X * K entry by
// entry.
template <class Wide>
real magnitudes(const dense<Wide>& a) {
    real result(a.rows(), a.cols());
    for (std::size_t i = 0; i < a.rows(); ++i) {
        for (std::size_t j = 0; j < a.cols(); ++j) result(i, j) = std::abs(a(i, j));
    }
    return result;
}

// kron(factors) * v without the product, one factor after the other: for products too large to form.
template <class Wide>
std::vector<Wide> kron_times_vector(const std::vector<dense<Wide>>& factors, std::vector<Wide> v) {
    // Before factor n is applied, v has the extents rows(1) .. rows(n-1), cols(n), cols(n+1) .. cols(N).
    for (std::size_t n = 0; n < factors.size(); ++n) {
        const auto& factor = factors[n];
        std::size_t outer = 1;
        std::size_t inner = 1;
        for (std::size_t m = 0; m < n; ++m) outer *= factors[m].rows();
        for (std::size_t m = n + 1; m < factors.size(); ++m) inner *= factors[m].cols();
        detail::require(v.size() == outer * factor.cols() * inner, "oracle::kron_times_vector: v has the wrong length");
        std::vector<Wide> next(outer * factor.rows() * inner, Wide(0));
        for (std::size_t o = 0; o < outer; ++o) {
            for (std::size_t i = 0; i < factor.rows(); ++i) {
                for (std::size_t j = 0; j < factor.cols(); ++j) {
                    for (std::size_t k = 0; k < inner; ++k) {
                        next[(o * factor.rows() + i) * inner + k] +=
                            factor(i, j) * v[(o * factor.cols() + j) * inner + k];
                    }
                }
            }
        }
        v = std::move(next);
    }
    return v;
}

}  // namespace oracle
