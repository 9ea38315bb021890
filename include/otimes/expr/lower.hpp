// SPDX-License-Identifier: MIT
/// @file lower.hpp
/// From nodes to programs. A product becomes a chain of contract steps, one per factor that is not an identity; a sum
/// becomes its terms' chains one after the other, the later ones adding. A factor with structure becomes the step that its
/// kind costs (structured.hpp); a product of factors becomes one step where forming it takes fewer flops, else several.
///
/// Scalars. A complex X with real factors and a real scalar is a real problem of twice the innermost extent: the program
/// is real, with one more free mode of extent 2. Otherwise a complex program takes real factors as they are (they are
/// promoted when packed) and promotes a real X once, by an accumulate step into a temporary.
#pragma once

#include <atomic>
#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <otimes/expr/product.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

/// What lowering asks of a scalar type, as a value.
struct scalar_facts {
    dtype type = dtype::other;
    dtype real_type = dtype::other;  ///< of the real type that belongs to a complex one; of a real one: its own
    bool complex = false;
    std::uint16_t bytes = 0;
    std::uint16_t real_bytes = 0;
    std::uint8_t alignment_log2 = 0;
    std::uint8_t real_alignment_log2 = 0;
    const structured_writers* structured = nullptr;
};

template <class Scalar>
scalar_facts facts_of() noexcept {
    using real = detail::real_of<Scalar>;
    scalar_facts facts;
    facts.type = dtype_of<Scalar>();
    facts.real_type = dtype_of<real>();
    facts.complex = detail::is_complex_scalar<Scalar>;
    facts.bytes = static_cast<std::uint16_t>(sizeof(Scalar));
    facts.real_bytes = static_cast<std::uint16_t>(sizeof(real));
    // The alignment class of a type with a dtype is the size of a real number of it; of any other what the type demands.
    const auto log2_of = [](std::size_t bytes) {
        return static_cast<std::uint8_t>(bytes > 64 || !std::has_single_bit(bytes) ? 0 : std::countr_zero(bytes));
    };
    std::size_t alignment = alignof(Scalar);
    std::size_t real_alignment = alignof(real);
    if (facts.type != dtype::other) {
        alignment = real_alignment = sizeof(real);
    }
    facts.alignment_log2 = log2_of(alignment);
    facts.real_alignment_log2 = log2_of(real_alignment);
    facts.structured = &structured_hooks<Scalar>::writers;
    return facts;
}

class formed_factor;  // factor_sum.hpp

/// Writes products into a program and its bindings: all of lowering that needs no scalar type but its facts.
class program_writer {
public:
    program_writer(program& target, bindings& bound, const scalar_facts& facts)
        : program_(target), bindings_(bound), facts_(facts) {
        program_.clear();
        bindings_.clear();
    }
    program_writer(const program_writer&) = delete;
    program_writer& operator=(const program_writer&) = delete;

    /// y (+)= node, without its scalar: the last step gets none. `doubled`: as the real problem of the file comment.
    OTIMES_OUT_OF_LINE void write_product(const product_operands& node, const matrix_view& y, bool add, bool doubled) {
        const dtype type = doubled ? facts_.real_type : facts_.type;
        const matrix_view x = node.x.view();
        const bool promote_x = facts_.complex && node.x.real_elements();

        std::int32_t current = describe_matrix(node, x, promote_x ? facts_.real_type : type, tensor_role::input,
                                               /*of_result=*/false, doubled);
        program_.tensors.back().conjugate = node.x.conjugated();
        program_.tensors.back().space = node.x.space();
        bind(x.data, /*is_x=*/true);
        if (promote_x) {
            const std::int32_t promoted = add_temporary(current, type, -1, 0);
            program_.steps.push_back(make_step(step_kind::accumulate, current, -1, promoted, -1));
            current = promoted;
        }

        std::int32_t position = 0;
        const std::size_t steps_before = program_.steps.size();
        const lower_chain_function products = facts_.structured->chain.load(std::memory_order_relaxed);
        if (products == nullptr || !products(*this, node, type, current)) {
            for (const bool from_left : {true, false}) {
                const factor_list& factors = from_left ? node.left : node.right;
                bool after_identity = false;
                if (from_left ? node.has_left : node.has_right) {
                    for (const leaf& factor : factors) {
                        if (after_identity && factor.is_identity()) {
                            program_.rewritten.add(rewrite::identity_runs_merged);  // by the planner, as neighbours
                        }
                        after_identity = factor.is_identity();
                        current = add_factor(current, type, factor, from_left, position);
                        ++position;
                    }
                }
                if (from_left && (!node.has_left || factors.empty())) {
                    ++position;
                }
            }
        }
        program_.rewritten.add(node.rewritten);

        const bool has_steps = program_.steps.size() > steps_before;
        if (has_steps) {
            drop_last_tensor();  // the temporary of the last step was described last: the result takes its number
        }
        const std::int32_t result = describe_matrix(node, y, type, tensor_role::output, /*of_result=*/true, doubled);
        program_.tensors.back().space = node.x.space();
        bind(y.data);
        if (!has_steps) {
            program_.steps.push_back(make_step(step_kind::accumulate, current, -1, result, -1));
        }
        program_.steps.back().out = result;
        program_.steps.back().add = add;
    }

    /// @name Building blocks, for nodes that write their own steps.
    /// @{

    [[nodiscard]] program& target() noexcept { return program_; }

    /// All parts of one program compute in one type: with this, parts that are real by themselves are complex too.
    void compute_complex() noexcept { complex_ = true; }

    /// Keeps something alive as long as the bindings are.
    void keep(std::shared_ptr<const void> object) { memory_.push_back(std::move(object)); }
    /// Whether the bindings hold addresses of something that is kept so, of this lowering's own.
    [[nodiscard]] bool has_formed() const noexcept { return memory_.size() > formed_again_; }
    /// Keeps a factor that was formed of others and that knows those before it: who runs the program again has them formed again.
    void keep_formed(std::shared_ptr<const void> owner, formed_factor* factor) {
        keep(std::move(owner));
        formed_ = factor;
        ++formed_again_;
    }
    /// The last of them; null: there are none.
    [[nodiscard]] formed_factor* formed() const noexcept { return formed_; }

    /// Applies `factor` along mode `position` of tensor `current`; returns the tensor of the result: `current` for an
    /// identity, else a new temporary, described last and written by the last step.
    OTIMES_OUT_OF_LINE std::int32_t add_factor(std::int32_t current, dtype type, const leaf& factor, bool from_left,
                                               std::int32_t position) {
        switch (factor.kind()) {
            case factor_kind::identity: return current;
            case factor_kind::dense: {
                const matrix_view f = factor.view();
                const std::int32_t matrix = describe_factor(factor, f, from_left);
                return add_step(step_kind::contract, current, matrix, type, position, from_left ? f.rows : f.cols);
            }
            default: break;
        }
        const lower_structured_function structured = facts_.structured->lower.load(std::memory_order_relaxed);
        if (structured == nullptr) {
            throw unsupported_error(
                "otimes: a factor with structure reached a product that was compiled without them. "
                "Include otimes/otimes.hpp where the factor is made.");
        }
        return structured(*this, current, type, factor, from_left, position);
    }

    /// Multiplies by a vector over all indices but those of mode `free`, without gaps; returns the tensor of the result.
    std::int32_t add_scale(std::int32_t current, const void* values, dtype type, std::int32_t free) {
        const tensor in = program_.at(current);
        const std::int32_t factor = program_.add_tensor(make_tensor(type, tensor_role::factor));
        program_.tensors.back().kind = factor_kind::diagonal;
        for (std::int32_t k = 0; k < in.mode_count; ++k) {
            program_.add_mode(program_.modes[static_cast<std::size_t>(in.first_mode + k)].extent, 0);
        }
        std::int64_t stride = 1;
        for (std::int32_t k = in.mode_count; k-- > 0;) {
            mode& m = program_.modes[static_cast<std::size_t>(program_.at(factor).first_mode + k)];
            m.stride = k == free ? 0 : stride;
            stride *= k == free ? 1 : m.extent;
        }
        bind(values);
        return add_step(step_kind::scale, current, factor, type, -1, 0);
    }

    /// A step that writes a new temporary: tensor `in` with the extent of mode `position` replaced.
    std::int32_t add_step(step_kind kind, std::int32_t in, std::int32_t factor, dtype type, std::int32_t position,
                          std::int64_t extent) {
        const std::int32_t out = add_temporary(in, type, position, extent);
        program_.steps.push_back(make_step(kind, in, factor, out, position));
        return out;
    }

    /// Forgets the tensor that was described last, and its modes.
    void drop_last_tensor() {
        program_.modes.resize(static_cast<std::size_t>(program_.tensors.back().first_mode));
        program_.tensors.pop_back();
    }

    /// `real`: the elements are of the real type that belongs to a complex scalar.
    [[nodiscard]] tensor make_tensor(dtype type, tensor_role role, bool real = false) const {
        tensor t;
        t.type = type;
        t.role = role;
        real = type == dtype::other ? real : type == facts_.real_type;
        t.scalar_bytes = real ? facts_.real_bytes : facts_.bytes;
        t.alignment_log2 = real ? facts_.real_alignment_log2 : facts_.alignment_log2;
        return t;
    }

    static step make_step(step_kind kind, std::int32_t in, std::int32_t factor, std::int32_t out,
                          std::int32_t mode_number) {
        step s;
        s.kind = kind;
        s.in = in;
        s.factor = factor;
        s.out = out;
        s.mode = mode_number;
        return s;
    }

    /// Whether the products written from here on have one X, as a sum's terms have: it is bound once.
    void share_x(bool shared) noexcept {
        shares_x_ = shared;
        shared_x_ = -1;
    }

    /// Binds the tensor that was described last to an address. `is_x`: it is X of a product, see share_x.
    void bind(const void* data, bool is_x = false) {
        tensor& described = program_.tensors.back();
        if (is_x && shares_x_ && shared_x_ >= 0) {
            described.binding = shared_x_;
            return;
        }
        described.binding = static_cast<std::int32_t>(bindings_.pointers.size());
        shared_x_ = is_x ? described.binding : shared_x_;
        const std::uint64_t bit = described.binding < 64 ? std::uint64_t{1} << described.binding : 0;
        for (int k = 0; k < scratch_count_; ++k) {
            program_.noted.scratch_bindings |= scratch_[k] == data ? bit : 0;
        }
        if (described.role == tensor_role::input) {
            program_.noted.repeated_bindings |= first_input_ == data ? bit : 0;
            first_input_ = first_input_ == nullptr ? data : first_input_;
        }
        bindings_.pointers.push_back(const_cast<void*>(data));
    }

    /// X or Y of a product as the tensor [left factors | rows][right factors | columns][2 if doubled].
    OTIMES_OUT_OF_LINE std::int32_t describe_matrix(const product_operands& node, const matrix_view& m, dtype type,
                                                    tensor_role role, bool of_result, bool doubled) {
        const std::int32_t id = program_.add_tensor(make_tensor(type, role, !of_result && node.x.real_elements()));
        const std::int64_t unit = doubled ? 2 : 1;
        add_side_modes(node.has_left, node.left, m.rows, m.row_stride * unit,
                       of_result ? detail::side::rows : detail::side::cols);
        add_side_modes(node.has_right, node.right, m.cols, m.col_stride * unit,
                       of_result ? detail::side::cols : detail::side::rows);
        if (doubled) {
            program_.add_mode(2, 1);
        }
        return id;
    }

    std::int32_t describe_plain(const matrix_view& m, tensor_role role) {
        const std::int32_t id = program_.add_tensor(make_tensor(facts_.type, role));
        program_.add_mode(m.rows, m.row_stride);
        program_.add_mode(m.cols, m.col_stride);
        bind(m.data);
        return id;
    }

    /// A temporary shaped like `like`, with the extent of one mode replaced (none for position -1).
    OTIMES_OUT_OF_LINE std::int32_t add_temporary(std::int32_t like, dtype type, std::int32_t position,
                                                  std::int64_t extent) {
        const std::int32_t first = program_.at(like).first_mode;
        const std::int32_t count = program_.at(like).mode_count;
        const std::int32_t id = program_.add_tensor(make_tensor(type, tensor_role::temporary));
        const std::size_t at = program_.modes.size();
        program_.modes.resize(at + static_cast<std::size_t>(count));
        program_.tensors.back().mode_count = count;
        const mode* const from = program_.modes.data() + first;
        mode* const to = program_.modes.data() + at;
        for (std::int32_t k = 0; k < count; ++k) {
            to[k].extent = k == position ? extent : from[k].extent;
        }
        return id;
    }

    /// A factor as (p, q): contracted index first. On the left of X the columns are contracted.
    OTIMES_OUT_OF_LINE std::int32_t describe_factor(const leaf& factor, const matrix_view& f, bool from_left) {
        const bool real = facts_.complex && factor.real_elements();
        const std::int32_t id =
            program_.add_tensor(make_tensor(real ? facts_.real_type : facts_.type, tensor_role::factor, real));
        program_.tensors.back().kind = factor.kind();
        program_.tensors.back().space = factor.space();
        program_.tensors.back().conjugate = factor.conjugated() && !real;
        if (from_left) {
            program_.add_mode(f.cols, f.col_stride);
            program_.add_mode(f.rows, f.row_stride);
        } else {
            program_.add_mode(f.rows, f.row_stride);
            program_.add_mode(f.cols, f.col_stride);
        }
        bind(f.data);
        return id;
    }
    /// @}

private:
    OTIMES_OUT_OF_LINE void add_side_modes(bool has_kron, const factor_list& factors, std::int64_t extent,
                                           std::int64_t stride, detail::side which) {
        if (!has_kron || factors.empty()) {
            program_.add_mode(extent, stride);
            return;
        }
        for (const leaf& factor : factors) {
            program_.add_mode(detail::extent_of(factor, which), 0);
        }
        std::size_t at = program_.modes.size();
        for (std::size_t k = factors.size(); k-- > 0;) {
            mode& m = program_.modes[--at];
            m.stride = stride;
            stride *= m.extent;  // no overflow: the node has checked the whole matrix
        }
    }

protected:
    program& program_;
    bindings& bindings_;
    bool shares_x_ = false;       ///< see share_x
    std::int32_t shared_x_ = -1;  ///< its binding
    static constexpr int most_scratch_noted = 8;
    const void* scratch_[most_scratch_noted] = {};  ///< by which bind knows it again, for explain
    int scratch_count_ = 0;
    const void* first_input_ = nullptr;
    scalar_facts facts_;
    bool complex_ = false;

private:
    std::vector<std::shared_ptr<const void>> memory_;  // what lowering has formed
    std::size_t formed_again_ = 0;                     // how many of them can be formed again
    formed_factor* formed_ = nullptr;
};

/// All operands complex but the factors, and a real scalar: see the file comment.
template <class Scalar>
bool is_real_problem(const product_operands& node, const Scalar& alpha) {
    if constexpr (!detail::is_complex_scalar<Scalar> || dtype_of<Scalar>() == dtype::other) {
        static_cast<void>(node);
        static_cast<void>(alpha);
        return false;
    } else {
        if (node.x.real_elements() || node.x.conjugated() || alpha.imag() != detail::real_of<Scalar>(0)) {
            return false;
        }
        for (const factor_list* list : {&node.left, &node.right}) {
            for (const leaf& factor : *list) {
                if (!factor.is_identity() && !factor.real_elements()) {
                    return false;
                }
            }
        }
        return true;
    }
}

/// A scalar as programs are bound to it. @pre its type has a dtype
template <class Scalar>
std::complex<double> bound_scalar(const Scalar& alpha) {
    if constexpr (detail::is_complex_scalar<Scalar>) {
        return {static_cast<double>(alpha.real()), static_cast<double>(alpha.imag())};
    } else {
        return {static_cast<double>(alpha), 0.0};
    }
}

/// What the program of an expression may depend on.
enum class signature : std::uint8_t {
    by_value,  ///< also on whether a scalar of a complex type happens to be real: the quickest program of this value
    by_type    ///< on types and shapes alone, so that a plan stays valid when its scalars change
};

/// Writes terms into a program and its bindings. Use: construct, `add_product` / `add_dense` per term, done.
/// The operands and this object must outlive the use of the bindings, which hold addresses of both.
template <class Scalar>
class lowering : public program_writer {
public:
    lowering(program& target, bindings& bound, signature depends = signature::by_value)
        : program_writer(target, bound, facts_of<Scalar>()), depends_(depends) {}

    /// y (+)= scale * node. `y` must have the node's shape. Cost: O(N^2) words for N factors, no allocation once the
    /// program's vectors have grown.
    void add_product(const product_node<Scalar>& node, const matrix_view& y, bool add,
                     const Scalar& scale = Scalar(1)) {
        const Scalar alpha = scale * node.alpha;
        write_product(node, y, add, is_doubled(node, alpha));
        const std::int32_t number = add_scalar(alpha);
        program_.steps.back().scalar = number;
    }

    /// y (+)= alpha * x for a matrix in memory. Shapes equal.
    void add_dense(const matrix_view& x, const matrix_view& y, const Scalar& alpha, bool add) {
        const std::int32_t in = describe_plain(x, tensor_role::input);
        const std::int32_t out = describe_plain(y, tensor_role::output);
        program_.steps.push_back(make_step(step_kind::accumulate, in, -1, out, -1));
        program_.steps.back().add = add;
        program_.steps.back().scalar = add_scalar(alpha);
    }

    [[nodiscard]] signature depends() const noexcept { return depends_; }
    /// Whether the product with that scalar is lowered as a real problem.
    [[nodiscard]] bool is_doubled(const product_operands& node, const Scalar& alpha) const {
        return !complex_ && is_real_problem(node, alpha) && !(depends_ == signature::by_type && node.complex_scale);
    }

    /// A packed rows x cols matrix of scratch memory, kept with the bindings; its layout is that of `like`.
    matrix_view scratch(std::int64_t rows, std::int64_t cols, const matrix_view& like) {
        const bool by_rows = like.row_stride > like.col_stride;
        auto memory = std::make_shared<std::vector<Scalar>>(static_cast<std::size_t>(rows * cols), Scalar(0));
        const matrix_view result{memory->data(), rows, cols, by_rows ? cols : 1, by_rows ? 1 : rows};
        if (scratch_count_ < most_scratch_noted) {
            scratch_[scratch_count_++] = result.data;
        }
        keep(std::move(memory));
        return result;
    }

    /// The number of a scalar of the program.
    std::int32_t add_scalar(const Scalar& alpha) {
        if constexpr (dtype_of<Scalar>() == dtype::other) {
            kept_.push_back(std::make_unique<Scalar>(alpha));
            bindings_.opaque_scalars.push_back(kept_.back().get());
        } else {
            bindings_.scalars.push_back(bound_scalar(alpha));
        }
        if constexpr (requires { static_cast<bool>(alpha == Scalar(1)); }) {
            if (program_.scalar_count < 64 && alpha == Scalar(1)) {
                program_.noted.unit_scalars |= std::uint64_t{1} << program_.scalar_count;
            }
        }
        return program_.scalar_count++;
    }

private:
    signature depends_;
    std::vector<std::unique_ptr<Scalar>> kept_;  // scalars of dtype::other, whose addresses are bound
};

}  // namespace otimes
