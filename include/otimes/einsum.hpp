// SPDX-License-Identifier: MIT
/// @file einsum.hpp
/// Contraction of a matrix with a tensor of any order over one index, written with the names of the indices:
///
///     otimes::einsum<"mk,pkn->mnp">(A, B)          C[m, n, p] = sum_k A[m, k] * B[p, k, n]
///
/// The names say which index is which, the strides where it lies: every order of the indices in A, B and C is one contract
/// step on the tensor where it lies, all other indices free; nothing is transposed. All 36 single-mode contractions of
/// Shi et al. (2016), docs/references.md, are of this form, the eight that no strided-batched matrix product expresses included.
///
/// Subscripts: one letter for each index, operands separated by a comma, the result after `->`; blanks do not count. Exactly
/// one letter is in both operands and not in the result: it is summed over. One operand (the factor) has at most one letter
/// that neither the other nor the sum has. Letters in both operands *and* in the result number the items of a batch: "bmk,bkn->bmn".
/// What breaks these rules does not compile, and says which.
///
/// Operands: anything that view() takes (adapt/strided/view.hpp): Eigen::TensorMap, matrices, strided_view; where there is one letter,
/// a vector of Eigen. They are borrowed and must live until the expression is evaluated. Both have one scalar type.
/// The value: `.eval()` or conversion to a dense_tensor; `view = einsum<..>(A, B)`, also += and -=, writes into memory, and so does
/// `C = einsum<..>(A, B)` with an Eigen::Tensor or a TensorMap.
/// Cost: 2 K flops for each element of the result; no memory beyond the plan's tiles.
/// Errors: shape_error where a letter has two extents; alias_error where the result shares memory with an operand.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <otimes/adapt/strided/run_items.hpp>
#include <otimes/adapt/strided/tensor_assignment.hpp>
#include <otimes/adapt/strided/view.hpp>
#include <otimes/expr/mode_products.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {

/// The text of subscripts as a template argument.
template <std::size_t Length>
struct subscript_text {
    char text[Length] = {};
    // NOLINTNEXTLINE(google-explicit-constructor): a string literal is written where this is expected
    consteval subscript_text(const char (&from)[Length]) {
        for (std::size_t i = 0; i < Length; ++i) {
            text[i] = from[i];
        }
    }
};

namespace detail {

/// What is wrong with subscripts.
enum class subscript_flaw : std::uint8_t {
    none,
    character,     ///< something else than letters, blanks, one comma and one arrow
    form,          ///< not "first,second->result"
    repeated,      ///< a letter twice in one operand or in the result
    unknown,       ///< a letter of the result that no operand has
    dropped,       ///< a letter of one operand alone that the result lacks
    not_summed,    ///< no letter to sum over
    summed_twice,  ///< several letters to sum over
    no_factor,     ///< each operand has several letters of its own
    no_result      ///< a number
};

inline constexpr std::size_t most_letters = 16;

struct letters {
    char name[most_letters] = {};
    std::size_t count = 0;
    [[nodiscard]] constexpr std::size_t find(char c) const {
        for (std::size_t k = 0; k < count; ++k) {
            if (name[k] == c) {
                return k;
            }
        }
        return most_letters;
    }
    [[nodiscard]] constexpr bool has(char c) const { return find(c) < most_letters; }
};

/// Subscripts taken apart.
struct subscripts {
    letters operand[2];
    letters result;
    char summed = 0;
    std::size_t factor = 0;  ///< which operand is the factor
    char replaced_by = 0;    ///< the factor's own letter; 0: it has none
    subscript_flaw flaw = subscript_flaw::none;
};

template <std::size_t Length>
consteval subscripts parse_subscripts(const subscript_text<Length>& given) {
    subscripts s;
    letters* part = &s.operand[0];
    for (std::size_t i = 0; i + 1 < Length; ++i) {
        const char c = given.text[i];
        if (c == ' ') {
            continue;
        }
        if (c == ',') {
            if (part != &s.operand[0]) {
                s.flaw = subscript_flaw::form;
                return s;
            }
            part = &s.operand[1];
        } else if (c == '-' && given.text[i + 1] == '>') {
            if (part != &s.operand[1]) {
                s.flaw = subscript_flaw::form;
                return s;
            }
            part = &s.result;
            ++i;
        } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            if (part->has(c)) {
                s.flaw = subscript_flaw::repeated;
                return s;
            }
            if (part->count == most_letters) {
                s.flaw = subscript_flaw::form;
                return s;
            }
            part->name[part->count++] = c;
        } else {
            s.flaw = subscript_flaw::character;
            return s;
        }
    }
    if (part != &s.result) {
        s.flaw = subscript_flaw::form;
        return s;
    }
    for (std::size_t k = 0; k < s.result.count; ++k) {
        if (!s.operand[0].has(s.result.name[k]) && !s.operand[1].has(s.result.name[k])) {
            s.flaw = subscript_flaw::unknown;
            return s;
        }
    }
    std::size_t own[2] = {0, 0};
    char own_letter[2] = {0, 0};
    for (std::size_t o = 0; o < 2; ++o) {
        for (std::size_t k = 0; k < s.operand[o].count; ++k) {
            const char c = s.operand[o].name[k];
            const bool shared = s.operand[1 - o].has(c);
            const bool kept = s.result.has(c);
            if (!shared && !kept) {
                s.flaw = subscript_flaw::dropped;
                return s;
            }
            if (!shared) {
                ++own[o];
                own_letter[o] = c;
            } else if (!kept && o == 0) {
                if (s.summed != 0) {
                    s.flaw = subscript_flaw::summed_twice;
                    return s;
                }
                s.summed = c;
            }
        }
    }
    if (s.summed == 0) {
        s.flaw = subscript_flaw::not_summed;
    } else if (own[0] > 1 && own[1] > 1) {
        s.flaw = subscript_flaw::no_factor;
    } else if (s.result.count == 0) {
        s.flaw = subscript_flaw::no_result;
    } else {
        s.factor = own[0] > 1 || (own[1] <= 1 && s.operand[1].count < s.operand[0].count) ? 1 : 0;
        s.replaced_by = own_letter[s.factor];
    }
    return s;
}

[[noreturn]] OTIMES_COLD inline void throw_extents(const char* text, char letter, std::int64_t first,
                                                   std::int64_t second) {
    throw shape_error("otimes: einsum<\"" + std::string(text) + "\">: index " + std::string(1, letter) + " is " +
                      std::to_string(first) + " in the first operand, but " + std::to_string(second) +
                      " in the second. An index has one extent.");
}
[[noreturn]] OTIMES_COLD inline void throw_destination(const char* text, const std::string& given,
                                                       const std::string& wanted) {
    throw shape_error("otimes: einsum<\"" + std::string(text) + "\">: the destination is " + given +
                      ", but the result is " + wanted + ". A view is not resized.");
}
/// Elements in host memory without an address; those of a device are found where they are launched.
template <class View>
bool is_null(const View& v) {
    bool some = v.home() == nullptr && v.data() == nullptr;
    for (const std::int64_t extent : v.extents()) {
        some = some && extent > 0;
    }
    return some;
}
[[noreturn]] OTIMES_COLD inline void throw_null_view(const char* text, const char* which) {
    throw shape_error("otimes: einsum<\"" + std::string(text) + "\">: " + which + " is at a null pointer.");
}
[[noreturn]] OTIMES_COLD inline void throw_contraction_alias(const char* text, const char* with) {
    throw alias_error("otimes: einsum<\"" + std::string(text) + "\">: the destination shares memory with " + with +
                      ". Evaluate by .eval() first, or give it memory of its own.");
}

/// The bytes from the first to the last element; none: empty.
template <class View>
std::pair<std::intptr_t, std::intptr_t> bytes_of(const View& v) {
    const auto begin = reinterpret_cast<std::intptr_t>(v.data());
    if (v.empty()) {
        return {begin, begin};
    }
    std::int64_t last = 0;
    for (std::size_t k = 0; k < View::order; ++k) {
        last += (v.extent(k) - 1) * v.stride(k);
    }
    return {begin, begin + static_cast<std::intptr_t>((last + 1) * static_cast<std::int64_t>(sizeof(*v.data())))};
}
/// Do two views share an element?
template <class First, class Second>
bool elements_meet(const First& a, const Second& b) {
    const auto x = bytes_of(a);
    const auto y = bytes_of(b);
    if (x.second <= y.first || y.second <= x.first) {
        return false;
    }
    index_differences differences;
    for (std::size_t k = 0; k < First::order; ++k) {
        differences.add(a.stride(k), 0, a.extent(k) - 1);
    }
    for (std::size_t k = 0; k < Second::order; ++k) {
        differences.add(b.stride(k), 1 - b.extent(k), 0);
    }
    const auto size = static_cast<std::intptr_t>(sizeof(*a.data()));
    return (y.first - x.first) % size != 0 || differences.reach((y.first - x.first) / size);
}

/// `view(t)`, but of one index where there is one letter and t is a vector of Eigen.
template <std::size_t Letters, class Operand>
[[nodiscard]] auto view_of_letters(Operand&& t) {
    using type = std::remove_cvref_t<Operand>;
    if constexpr (requires {
                      requires Letters == 1 && bool(type::IsVectorAtCompileTime) && strides_hold<type>;
                      t.data();
                  }) {
        using element = std::remove_pointer_t<decltype(t.data())>;
        return strided_view<element, 1>(t.data(), {static_cast<std::int64_t>(t.size())},
                                        {static_cast<std::int64_t>(t.innerStride())});
    } else if constexpr (requires { view(t); }) {
        return view(t);
    } else {
        static_assert(
            Letters > 99,
            "otimes: einsum: an operand or a destination is no matrix or tensor in memory. Evaluate an expression "
            "first, as (X + Z).eval(); a Kronecker product is multiplied by X * K.");
        return strided_view<const double, Letters>(nullptr, {}, {});
    }
}

/// A matrix of one row or column as the vector that it holds; of another: its rows, and `false`.
template <class Element>
std::pair<strided_view<Element, 1>, bool> as_vector(const strided_view<Element, 2>& m) {
    const std::size_t along = m.extent(0) == 1 ? 1 : 0;
    return {strided_view<Element, 1>(m.data(), {m.extent(along)}, {m.stride(along)}), m.extent(1 - along) == 1};
}

/// True where two indices of a view mean one element; of one with several strides that do not nest, where they may.
template <class View>
bool meets_itself(const View& v) {
    std::array<std::size_t, View::order> sorted{};
    std::size_t count = 0;
    for (std::size_t k = 0; k < View::order && !v.empty(); ++k) {
        if (v.extent(k) > 1) {
            std::size_t at = count++;
            for (; at > 0 && v.stride(sorted[at - 1]) > v.stride(k); --at) {
                sorted[at] = sorted[at - 1];
            }
            sorted[at] = k;
        }
    }
    std::int64_t reach = 0;  // of the indices with smaller strides
    bool nested = true;
    for (std::size_t n = 0; n < count && nested; ++n) {
        nested = v.stride(sorted[n]) > reach;
        reach += (v.extent(sorted[n]) - 1) * v.stride(sorted[n]);
    }
    bool meets = false;
    for (std::size_t n = 0; n < count && !nested && !meets; ++n) {
        index_differences differences;
        for (std::size_t k = 0; k < count; ++k) {
            const std::int64_t most = v.extent(sorted[k]) - 1;
            differences.add(v.stride(sorted[k]), k == n ? 1 : -most, most);
        }
        meets = differences.reach(0);
    }
    return meets;
}

/// Gives a matrix of Eigen its shape. @throws shape_error its type has another
template <class Matrix>
void resize_result(Matrix& m, const char* text, const std::array<std::int64_t, 2>& extents) {
    const std::array<std::int64_t, 2> most{Matrix::MaxRowsAtCompileTime, Matrix::MaxColsAtCompileTime};
    const std::array<std::int64_t, 2> fixed{Matrix::RowsAtCompileTime, Matrix::ColsAtCompileTime};
    std::array<std::int64_t, 2> held = extents;
    for (std::size_t k = 0; k < 2; ++k) {
        held[k] = fixed[k] >= 0 ? fixed[k] : most[k] >= 0 ? (std::min)(most[k], extents[k]) : extents[k];
    }
    if (held != extents) {
        throw_destination(text, extents_text(held.data(), 2), extents_text(extents.data(), 2));
    }
    m.resize(static_cast<typename Matrix::Index>(extents[0]), static_cast<typename Matrix::Index>(extents[1]));
}

}  // namespace detail

inline namespace OTIMES_TARGET {

/// An Eigen-like tensor that can be resized, as the target of a conversion.
template <class Tensor, std::size_t Order>
concept resizable_tensor = requires(Tensor& t, const typename Tensor::Dimensions& extents) {
    t.resize(extents);
    requires static_cast<std::size_t>(Tensor::NumDimensions) == Order;
};

/// A matrix of Eigen that can be given its shape.
template <class Matrix>
concept resizable_matrix = requires(Matrix& m) {
    m.resize(m.rows(), m.cols());
    m.outerStride();
    Matrix::IsRowMajor;
};

/// A contraction, lazy; see the file comment.
template <subscript_text Text, class ScalarType, std::size_t FirstOrder, std::size_t SecondOrder>
class einsum_expr {
    static constexpr detail::subscripts subscripts = detail::parse_subscripts(Text);

public:
    using Scalar = ScalarType;
    static constexpr std::size_t order = subscripts.result.count;
    using extents_type = std::array<std::int64_t, order>;

    /// @throws shape_error a letter with two extents
    einsum_expr(const strided_view<const Scalar, FirstOrder>& first,
                const strided_view<const Scalar, SecondOrder>& second)
        : first_(first), second_(second) {
        for (std::size_t k = 0; k < FirstOrder; ++k) {
            const char c = subscripts.operand[0].name[k];
            const std::size_t other = subscripts.operand[1].find(c);
            if (other < detail::most_letters && second.extent(other) != first.extent(k)) {
                detail::throw_extents(Text.text, c, first.extent(k), second.extent(other));
            }
        }
        for (std::size_t k = 0; k < order; ++k) {
            extents_[k] = extent_of(subscripts.result.name[k]);
        }
    }

    /// The contraction times a number.
    [[nodiscard]] einsum_expr scaled(const Scalar& by) const {
        einsum_expr result(*this);
        result.alpha_ = by * alpha_;
        return result;
    }

    /// Of the result, in the order of its letters.
    [[nodiscard]] const extents_type& extents() const noexcept { return extents_; }
    [[nodiscard]] std::int64_t extent(std::size_t k) const { return extents_[k]; }

    /// The value, its first index running fastest.
    [[nodiscard]] dense_tensor<Scalar, order> eval() const {
        dense_tensor<Scalar, order> result(extents_);
        write_to(result.view(), Scalar(1), false);
        return result;
    }
    operator dense_tensor<Scalar, order>() const { return eval(); }
    /// An Eigen::Tensor of that order and scalar, in its own layout.
    template <class Tensor>
    requires resizable_tensor<Tensor, order>
    operator Tensor() const {
        Tensor result;
        typename Tensor::Dimensions extents;
        for (std::size_t k = 0; k < order; ++k) {
            extents[k] = static_cast<typename Tensor::Index>(extents_[k]);
        }
        result.resize(extents);
        write_to(otimes::view(result), Scalar(1), false);
        return result;
    }

    /// A vector of Eigen, where the result has one index.
    template <class Vector>
    requires(order == 1 && resizable_matrix<Vector> && bool(Vector::IsVectorAtCompileTime)) operator Vector() const {
        Vector result;
        constexpr bool row = int(Vector::RowsAtCompileTime) == 1;
        detail::resize_result(
            result, Text.text,
            row ? std::array<std::int64_t, 2>{1, extents_[0]} : std::array<std::int64_t, 2>{extents_[0], 1});
        write_to(result, Scalar(1), false);
        return result;
    }
    /// A matrix of Eigen, where the result has two indices.
    template <class Matrix>
    requires(order == 2 && resizable_matrix<Matrix>) operator Matrix() const {
        Matrix result;
        detail::resize_result(result, Text.text, extents_);
        write_to(otimes::view(result), Scalar(1), false);
        return result;
    }

    /// destination (+)= alpha * value. Anything that view() takes; for a result of one index, a matrix of one row or column too.
    /// @throws shape_error, alias_error
    template <class Destination>
    void write_to(Destination&& destination, const Scalar& alpha, bool add, const batches::planned& by = {}) const {
        const auto to = detail::view_of_letters<order>(destination);
        using target = std::remove_cvref_t<decltype(to)>;
        if constexpr (order == 1 && target::order == 2) {  // view(y) of a vector y
            const auto [vector, fits] = detail::as_vector(to);
            if (!fits) {
                detail::throw_destination(Text.text, detail::extents_text(to.extents().data(), 2),
                                          detail::extents_text(extents_.data(), order));
            }
            write_to(to.home() != nullptr ? vector.in(*to.home()) : vector, alpha, add, by);
            return;
        } else {
            write_elements(to, alpha, add, by);
        }
    }
    template <class Destination>
    void assign_to(Destination&& destination) const {
        write_to(destination, Scalar(1), false);
    }

    /// @name What the assignment of Eigen's tensors asks for (adapt/strided/tensor_assignment.hpp).
    /// @{
    [[nodiscard]] const einsum_expr& derived() const noexcept { return *this; }
    /// @throws alias_error an operand shares memory with these bytes
    void refuse_operands(const void* data, std::int64_t bytes) const {
        const auto count = bytes / static_cast<std::int64_t>(sizeof(Scalar));
        if (data != nullptr && count > 0) {
            refuse_operands_in(strided_view<const Scalar, 1>(static_cast<const Scalar*>(data), {count}, {1}));
        }
    }
    /// @}

    /// The plan for a result that is stored as `destination` is. @throws shape_error
    template <class Destination>
    [[nodiscard]] plan make_plan_into(const Destination& destination, const options& wishes) const {
        const auto to = detail::view_of_letters<order>(destination);
        using target = std::remove_cvref_t<decltype(to)>;
        if constexpr (order == 1 && target::order == 2) {
            const auto [vector, fits] = detail::as_vector(to);
            if (!fits) {
                detail::throw_destination(Text.text, detail::extents_text(to.extents().data(), 2),
                                          detail::extents_text(extents_.data(), order));
            }
            return make_plan_into(vector, wishes);
        } else {
            if (to.extents() != extents_) {
                detail::throw_destination(Text.text, detail::extents_text(to.extents().data(), order),
                                          detail::extents_text(extents_.data(), order));
            }
            return plan_into(to.strides(), to.home(), wishes, nullptr);
        }
    }
    /// The plan, for a result without gaps whose first index runs fastest. `items`: how often it is run, if asked for.
    [[nodiscard]] plan make_plan(const options& wishes = {}, std::int64_t* items = nullptr) const {
        return plan_into(strided_view<Scalar, order>::packed_strides(extents_, false), first_.home(), wishes, items);
    }

    /// The contraction as products along the modes of the operand that is not the factor: one factor.
    [[nodiscard]] detail::mode_products<Scalar> describe(Scalar* y, const extents_type& y_strides) const {
        if constexpr (subscripts.factor == 0) {
            return describe(first_, second_, y, y_strides);
        } else {
            return describe(second_, first_, y, y_strides);
        }
    }

private:
    [[nodiscard]] plan plan_into(const extents_type& y_strides, const executor* home, const options& wishes,
                                 std::int64_t* items) const {
        detail::mode_products<Scalar> product = describe(nullptr, y_strides);
        if (home != nullptr) {
            batches::require_device(*home, "einsum");
            product.space = product.factors[0].space = memory_space::device;
        }
        std::int64_t count = 1;
        const plan result = batches::plan_of(product, wishes, count, home);
        if (items != nullptr) {
            *items = count;
        }
        return result;
    }
    template <class View>
    void refuse_operands_in(const View& to) const {
        if (detail::elements_meet(to, first_)) {
            detail::throw_contraction_alias(Text.text, "the first operand");
        }
        if (detail::elements_meet(to, second_)) {
            detail::throw_contraction_alias(Text.text, "the second operand");
        }
    }
    template <class View>
    void write_elements(const View& to, const Scalar& alpha, bool add, const batches::planned& by) const {
        static_assert(View::order == order,
                      "otimes: einsum: the destination has another number of indices than the result.");
        static_assert(std::is_same_v<typename View::element_type, Scalar>,
                      "otimes: einsum: the destination must be writable and have the operands' scalar type.");
        if (to.extents() != extents_) {
            detail::throw_destination(Text.text, detail::extents_text(to.extents().data(), order),
                                      detail::extents_text(extents_.data(), order));
        }
        if (detail::is_null(to) || detail::is_null(first_) || detail::is_null(second_)) {
            detail::throw_null_view(Text.text, detail::is_null(to)       ? "the destination"
                                               : detail::is_null(first_) ? "the first operand"
                                                                         : "the second operand");
        }
        refuse_operands_in(to);
        if (detail::meets_itself(to)) {
            detail::throw_contraction_alias(Text.text, "itself: two indices may mean one element");
        }
        const executor* const home = to.home();
        if ((first_.home() == nullptr) != (home == nullptr) || (second_.home() == nullptr) != (home == nullptr)) {
            throw unsupported_error(
                "otimes: einsum: some operands or the destination are in device memory, others in host memory. Give "
                "all of them as "
                "views in one executor's memory: otimes::strided_view<Scalar, N>(pointer, extents, "
                "strides).in(otimes::gpu()).");
        }
        detail::mode_products<Scalar> product = describe(to.data(), to.strides());
        product.alpha = alpha * alpha_;
        product.add = add;
        if (home != nullptr) {
            batches::require_device(*home, "einsum");
            product.space = product.factors[0].space = memory_space::device;
        }
        batches::evaluate(product, home, by);
    }
    template <class Factor, class Tensor>
    [[nodiscard]] detail::mode_products<Scalar> describe(const Factor& f, const Tensor& x, Scalar* y,
                                                         const extents_type& y_strides) const {
        const detail::letters& f_letters = subscripts.operand[subscripts.factor];
        const detail::letters& x_letters = subscripts.operand[1 - subscripts.factor];
        detail::mode_products<Scalar> product;
        product.x = x.data();
        product.y = y;
        detail::axis_factor<Scalar> factor;
        factor.data = f.data();
        factor.p_stride = f.stride(f_letters.find(subscripts.summed));
        bool differs = false;
        const auto stride_in_result = [&](char c) {
            const std::size_t k = subscripts.result.find(c);
            return k < order ? y_strides[k] : std::int64_t{0};
        };
        for (std::size_t k = 0; k < Tensor::order; ++k) {
            const char c = x_letters.name[k];
            if (c == subscripts.summed) {
                factor.axis = static_cast<std::int32_t>(k);
                std::int64_t extent = 1;
                if (subscripts.replaced_by != 0) {
                    const std::size_t q = f_letters.find(subscripts.replaced_by);
                    extent = f.extent(q);
                    factor.q_stride = f.stride(q);
                }
                product.axes.push_back({x.extent(k), extent, x.stride(k), stride_in_result(subscripts.replaced_by)});
                factor.item_strides.push_back(0);
                continue;
            }
            const std::size_t item = f_letters.find(c);
            factor.item_strides.push_back(item < detail::most_letters ? f.stride(item) : 0);
            differs = differs || factor.item_strides.back() != 0;
            product.axes.push_back({x.extent(k), x.extent(k), x.stride(k), stride_in_result(c)});
        }
        if (!differs) {
            factor.item_strides.clear();
        }
        product.factors.push_back(std::move(factor));
        return product;
    }
    [[nodiscard]] std::int64_t extent_of(char c) const {
        const std::size_t k = subscripts.operand[0].find(c);
        return k < detail::most_letters ? first_.extent(k) : second_.extent(subscripts.operand[1].find(c));
    }

    strided_view<const Scalar, FirstOrder> first_;
    strided_view<const Scalar, SecondOrder> second_;
    extents_type extents_{};
    Scalar alpha_ = Scalar(1);
};

namespace batches {
template <class Type>
concept matrix_of_eigen = requires(std::remove_cvref_t<Type>& m) {
    std::remove_cvref_t<Type>::RowsAtCompileTime;
    m.innerStride();
    m.data();
};
}  // namespace batches

/// @name Scalar multiples, sums into a matrix.
/// @{
template <subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder, class Amount>
requires(detail::scales<Amount, Scalar>&& std::is_convertible_v<Amount, Scalar>) [[nodiscard]] auto operator*(
    const Amount& amount, const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e) {
    return e.scaled(detail::amount_as<Scalar>(amount));
}
template <subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder, class Amount>
requires(detail::scales<Amount, Scalar>&& std::is_convertible_v<Amount, Scalar>) [[nodiscard]] auto operator*(
    const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e, const Amount& amount) {
    return amount * e;
}
template <subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
[[nodiscard]] auto operator-(const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e) {
    return e.scaled(Scalar(-1));
}
template <subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder, class Amount>
requires(detail::scales<Amount, Scalar>&& std::is_convertible_v<Amount, Scalar>) [[nodiscard]] auto operator/(
    const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e, const Amount& amount) {
    static_assert(!std::is_integral_v<Scalar>,
                  "otimes: einsum: contractions of integers cannot be divided, since 1 / n is 0.");
    return (Scalar(1) / static_cast<Scalar>(amount)) * e;
}
/// Y += einsum<..>(A, B), Y -= ..: added where Y lies. @throws shape_error, alias_error
template <class Matrix, subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
requires batches::matrix_of_eigen<Matrix> Matrix && operator+=(
    Matrix&& y, const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e) {
    e.write_to(y, Scalar(1), true);
    return std::forward<Matrix>(y);
}
template <class Matrix, subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
requires batches::matrix_of_eigen<Matrix> Matrix && operator-=(
    Matrix&& y, const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e) {
    e.write_to(y, Scalar(-1), true);
    return std::forward<Matrix>(y);
}
/// @}

/// See the file comment. @throws shape_error a letter with two extents
template <subscript_text Text, class First, class Second>
[[nodiscard]] auto einsum(const First& first, const Second& second) {
    constexpr detail::subscripts s = detail::parse_subscripts(Text);
    using detail::subscript_flaw;
    static_assert(s.flaw != subscript_flaw::character,
                  "otimes: einsum: subscripts are letters, one comma and one arrow, as in \"mk,pkn->mnp\".");
    static_assert(s.flaw != subscript_flaw::form,
                  "otimes: einsum: subscripts have the form \"first,second->result\", as in \"mk,pkn->mnp\".");
    static_assert(s.flaw != subscript_flaw::repeated,
                  "otimes: einsum: a letter occurs twice in one operand or in the result; diagonals are not taken.");
    static_assert(s.flaw != subscript_flaw::unknown, "otimes: einsum: a letter of the result is in neither operand.");
    static_assert(s.flaw != subscript_flaw::dropped,
                  "otimes: einsum: a letter of one operand is neither in the other nor in the result; sums over one "
                  "operand are not taken.");
    static_assert(s.flaw != subscript_flaw::not_summed,
                  "otimes: einsum: no letter is summed over; one must be in both operands and not in the result.");
    static_assert(s.flaw != subscript_flaw::summed_twice,
                  "otimes: einsum: several letters are summed over; one contraction has one.");
    static_assert(s.flaw != subscript_flaw::no_factor,
                  "otimes: einsum: both operands have several letters of their own; one of them must be a matrix.");
    static_assert(s.flaw != subscript_flaw::no_result,
                  "otimes: einsum: the result has no letter; for a number use otimes::dot.");
    if constexpr (s.flaw == subscript_flaw::none) {
        const auto a = detail::view_of_letters<s.operand[0].count>(first);
        const auto b = detail::view_of_letters<s.operand[1].count>(second);
        using first_view = std::remove_cvref_t<decltype(a)>;
        using second_view = std::remove_cvref_t<decltype(b)>;
        static_assert(first_view::order == s.operand[0].count && second_view::order == s.operand[1].count,
                      "otimes: einsum: an operand has another number of indices than letters.");
        using scalar = typename first_view::Scalar;
        static_assert(std::is_same_v<scalar, typename second_view::Scalar>,
                      "otimes: einsum: the operands have different scalar types; convert one of them.");
        return einsum_expr<Text, scalar, first_view::order, second_view::order>(a, b);
    }
}

/// @name Refused: another number of operands, subscripts that are no template argument.
/// @{
template <subscript_text Text, class... Operands>
requires(sizeof...(Operands) != 2) int einsum(const Operands&...) {
    static_assert(
        sizeof...(Operands) == 2,
        "otimes: einsum: two operands. Contract more of them one pair after the other; transpose a single one by "
        "X.transpose().");
    return 0;
}
template <class... Operands>
int einsum(const char*, const Operands&...) {
    static_assert(sizeof...(Operands) > 99,
                  "otimes: einsum: the subscripts are a template argument: einsum<\"mk,kn->mn\">(A, B).");
    return 0;
}
/// @}

/// @name Plans of contractions, as of a product: made once, run many times, for a result without gaps whose first index runs fastest, or stored as
/// `destination` is. @throws shape_error, budget_error
/// @{
template <subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
[[nodiscard]] plan make_plan(const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e, const options& wishes = {}) {
    return e.make_plan(wishes);
}
template <class Destination, subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
[[nodiscard]] plan make_plan(const Destination& destination,
                             const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e, const options& wishes = {}) {
    return e.make_plan_into(destination, wishes);
}
/// Body of plan::run(Y, einsum<..>(A, B)).
template <class Destination, subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
void run_bound_plan(const plan& p, Destination& destination,
                    const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e, void* workspace,
                    std::int64_t available_bytes) {
    e.write_to(destination, Scalar(1), false, {&p, workspace, available_bytes});
}
/// @}

/// The plan of a contraction as text.
template <subscript_text Text, class Scalar, std::size_t FirstOrder, std::size_t SecondOrder>
[[nodiscard]] std::string explain(const einsum_expr<Text, Scalar, FirstOrder, SecondOrder>& e,
                                  const options& wishes = {}) {
    std::int64_t items = 1;
    const plan p = e.make_plan(wishes, &items);
    return batches::explain_items(p, items);
}

}  // namespace OTIMES_TARGET
}  // namespace otimes
