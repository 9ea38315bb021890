// SPDX-License-Identifier: MIT
/// @file cuda.hpp
/// Public face of the GPU executors: matrices in device memory, `dY = dX * kron(dA, dB)`, and the executors that evaluate
/// them. Link otimes::cuda. Needs neither a CUDA header nor Eigen; any C++20 compiler will do.
///
/// Everything is asynchronous and in the order of a stream: an assignment returns when its kernels are queued.
/// `to_host()` and `synchronize()` wait. Errors of the device are `otimes::device_error` with the CUDA error's name.
/// An expression runs on the executor that `otimes::on` or the default executor names if that one is a GPU, else on the
/// executor of its destination.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/exec/executor.hpp>
#include <otimes/expr/batch_operand.hpp>
#include <otimes/expr/dense_factors.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/identity.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/product.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/half.hpp>
#include <otimes/program/overlap.hpp>
#include <otimes/program/signature.hpp>

#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
#include <otimes/exec/cpu.hpp>
#endif

struct CUstream_st;  // cudaStream_t and CUstream point to it

namespace Eigen {
template <typename, int, int, int, int, int>
class Matrix;
}

namespace otimes {

/// Supplies device memory for workspaces and DeviceMatrix. `stream` is the one on which the memory is used next and was
/// used last; both calls may be asynchronous in its order.
class device_memory_resource {
public:
    virtual ~device_memory_resource() = default;
    /// At least `bytes` bytes, aligned to 256. @throws anything
    virtual void* allocate(std::size_t bytes, CUstream_st* stream) = 0;
    virtual void deallocate(void* memory, std::size_t bytes, CUstream_st* stream) noexcept = 0;
};

/// Host memory as a list of modes, outermost first, in elements of `element_bytes` bytes.
struct host_tensor {
    void* data = nullptr;
    std::int64_t element_bytes = 0;
    std::vector<mode> modes;
};

/// How otimes::tune measures.
struct tuning_options {
    std::int32_t most_candidates = 12;  ///< plans that are measured, the planner's own among them
    std::int32_t repetitions = 7;       ///< medians of so many
    bool keep_on_disk = true;           ///< in the cache folder, for later processes too
};

/// One measured plan.
struct tuned_candidate {
    std::string choice;      ///< text form of the passes
    double seconds = 0;      ///< of one evaluation; 0: not measured
    double difference = -1;  ///< from the generic kernels' result, Frobenius, relative; negative: not compared
    bool valid = false;      ///< ran, and agrees
};

/// What otimes::tune found; `candidates` begins with the planner's own choice.
struct tuning_report {
    std::vector<tuned_candidate> candidates;
    std::size_t best = 0;  ///< position of the winner
};

/// An executor whose operands may be in device memory. Any thread may use it at any time; work is queued in the order of
/// the calls. It lives as long as the process.
class device_executor : public executor {
public:
    /// The stream that everything is queued on.
    [[nodiscard]] virtual CUstream_st* stream() const noexcept = 0;
    /// Waits until everything queued so far is done. @throws device_error also for what failed since the last wait.
    virtual void synchronize() const = 0;
    /// Evaluates a lowered expression with default options.
    virtual void evaluate(const program& p, const bindings& b) const = 0;
    /// The plan of a program for this executor.
    [[nodiscard]] virtual plan make_plan_for(const program& p, const options& wishes) const = 0;
    /// Which kernels a plan launches and where their code came from (core_set, cache, nvrtc, generic), one per line.
    /// Loads the kernels. The text is for people; its form may change.
    [[nodiscard]] virtual std::string describe(const plan& p) const = 0;
    /// Measures the planner's best candidates for a program and keeps the winner; see otimes::tune. `b` holds the inputs; its
    /// output is not touched.
    virtual tuning_report tune(const program& p, const bindings& b, const options& wishes,
                               const tuning_options& how) const = 0;

    /// @throws device_error where the stream is being captured into a graph, for what cannot be part of one.
    virtual void require_no_capture(const char* /*what*/) const {}

    /// @name For matrices.
    /// @{
    [[nodiscard]] virtual void* allocate(std::int64_t bytes) const = 0;
    virtual void release(void* memory, std::int64_t bytes) const noexcept = 0;
    /// Copies host elements to contiguous device memory; the host may change them as soon as this returns.
    virtual void upload(void* to, const host_tensor& from) const = 0;
    /// Copies contiguous device memory to host elements, and waits for it.
    virtual void download(const host_tensor& to, const void* from) const = 0;
    /// Work queued here from now on comes after what `other` has queued so far.
    virtual void wait_for(const device_executor& other) const = 0;
    /// @}
};

/// The executor on a non-blocking stream of its own, on the device that is current in this thread.
/// @throws device_error there is no usable GPU; the text says why and what to do.
[[nodiscard]] const device_executor& gpu();
/// The executor on a stream of the caller (a cudaStream_t), which must outlive what is queued on it and the matrices made
/// on it. One executor per stream: calling again is cheap.
[[nodiscard]] const device_executor& gpu(CUstream_st* stream);
/// The same, with memory from `resource`, which must outlive the process's use of it.
[[nodiscard]] const device_executor& gpu(CUstream_st* stream, device_memory_resource& resource);
/// gpu(), or nullptr where there is none; `why` receives the reason.
[[nodiscard]] const device_executor* find_gpu(std::string* why = nullptr);

/// Evaluates products of host operands on several executors at once: an index that runs through all steps (the rows) is cut
/// evenly, each executor has a part, nothing is exchanged. Each part is planned by itself: with options{.deterministic = true}
/// the bits of a row depend on neither the number of parts nor on the part it is in.
/// Cost: a thread for each part of each run. A failure on one executor is thrown when all have stopped; Y then holds what the
/// others wrote.
class spreading_executor final : public executor {
public:
    /// @param target a machine with as many GPUs as there are parts, for which plans are made.
    /// @param part gives executor i; called from the thread that runs part i, first when it is needed. All that it gives must
    ///        outlive this, and all must plan for host operands.
    spreading_executor(std::string name, machine target, std::function<const executor&(std::size_t)> part);
    ~spreading_executor() override;
    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] const machine& target() const noexcept override { return machine_; }
    [[nodiscard]] placement where() const noexcept override { return placement::gpus; }
    /// @throws unsupported_error operands in device memory: they belong to one GPU (a DistributedMatrix to all).
    [[nodiscard]] plan plan_for(const program& p) const override;
    /// The workspace is not used: each part has its own. Returns when Y is written.
    void run(const plan& p, const bindings& b, workspace_view workspace) const override;

private:
    struct prepared;
    [[nodiscard]] std::shared_ptr<const prepared> prepare(const plan& p) const;

    std::string name_;
    machine machine_;
    std::function<const executor&(std::size_t)> part_;
    mutable std::mutex mutex_;
    mutable std::vector<std::shared_ptr<const prepared>> known_;  ///< the last ones that were run
};

/// The executor over all GPUs that this process sees, for operands in host memory; with one GPU it is as gpu().
/// @throws device_error there is no usable GPU; the text says why and what to do.
[[nodiscard]] const executor& gpus();
/// gpus() where a process that is no rank of several sees at least two GPUs, else nullptr: ranks share the GPUs of a host.
[[nodiscard]] const executor* find_gpus();

/// Pins host memory as long as it lives: operands in it are copied to and from GPUs at the full rate of the link and without the
/// help of the CPU. Without it they pass through pinned blocks of the library, which costs nothing to set up. Pinning takes
/// about as long as three products, so it is worth it for memory that is used often.
class pinned_scope {
public:
    /// @throws device_error there is no GPU, or the system pins no more memory.
    pinned_scope(const void* memory, std::int64_t bytes);
    /// The elements of a plain Eigen matrix, which must not be resized meanwhile.
    template <class Matrix>
    requires requires(const Matrix& m) {
        m.data();
        m.size();
    }
    explicit pinned_scope(const Matrix& m)
        : pinned_scope(m.data(), static_cast<std::int64_t>(m.size()) *
                                     static_cast<std::int64_t>(sizeof(typename Matrix::Scalar))) {}
    pinned_scope(const pinned_scope&) = delete;
    pinned_scope& operator=(const pinned_scope&) = delete;
    ~pinned_scope();

private:
    void* memory_ = nullptr;
};

/// The plan that costs least on a machine, transfers included.
[[nodiscard]] plan plan_by_cost(const program& p, const machine& where);

/// Places each expression by cost between a CPU executor, a GPU and, for operands in host memory, all GPUs.
class placing_executor final : public executor {
public:
    /// @param several an executor of placement::gpus, or nullptr
    placing_executor(const executor& host, const device_executor& device, const executor* several = nullptr)
        : host_(host), device_(device), several_(several), machine_(host.target()) {
        machine_.gpus = several != nullptr ? several->target().gpus : device.target().gpus;
        name_ = std::string(host.name()) + " or " + std::string(device.name());
        if (several != nullptr) {
            name_ += " or " + std::string(several->name());
        }
    }
    [[nodiscard]] std::string_view name() const noexcept override { return name_; }
    [[nodiscard]] const machine& target() const noexcept override { return machine_; }
    [[nodiscard]] placement where() const noexcept override { return placement::automatic; }
    [[nodiscard]] plan plan_for(const program& p) const override { return plan_by_cost(p, machine_); }
    void run(const plan& p, const bindings& b, workspace_view workspace) const override {
        if (p.where == placement::cpu) {
            host_.run(p, b, workspace);
        } else if (p.where == placement::gpus && several_ != nullptr) {
            several_->run(p, b, workspace);
        } else {
            device_.run(p, b, workspace);
        }
    }
    [[nodiscard]] const device_executor& device() const noexcept { return device_; }

private:
    const executor& host_;
    const device_executor& device_;
    const executor* several_;
    machine machine_;
    std::string name_;
};

#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
inline namespace OTIMES_TARGET {
/// What this machine has: an executor that places each expression by cost when there is a GPU (products of large host operands
/// on all GPUs by rows, where there are several), else `cpu()`. Use:
/// `otimes::set_default_executor(otimes::make_executor());`
[[nodiscard]] inline const executor& make_executor() {
    static const executor* const chosen = []() -> const executor* {
        const device_executor* const device = find_gpu();
        if (device == nullptr) {
            return &cpu();
        }
        return new placing_executor(cpu(), *device, find_gpus());  // as long as the process
    }();
    return *chosen;
}
}  // namespace OTIMES_TARGET
#endif

template <class Scalar, int Order>
class DeviceMatrix;
template <class Scalar, int Order>
class DeviceMap;
template <class Scalar>
class device_product;
template <class Scalar>
class device_sum;
template <class Scalar>
class device_kron;
template <class Scalar>
class device_operator;

template <class Scalar, int Order>
inline constexpr bool is_device_operand<DeviceMatrix<Scalar, Order>> = true;
template <class Scalar, int Order>
inline constexpr bool is_device_operand<DeviceMap<Scalar, Order>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_product<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_sum<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_kron<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_operator<Scalar>> = true;

namespace device {

template <class Type>
using bare = std::remove_cvref_t<Type>;
template <class Type>
inline constexpr bool always_false = false;

template <class Type>
inline constexpr bool is_matrix = false;
template <class Scalar, int Order>
inline constexpr bool is_matrix<DeviceMatrix<Scalar, Order>> = true;
template <class Scalar, int Order>
inline constexpr bool is_matrix<DeviceMap<Scalar, Order>> = true;
template <class Type>
inline constexpr bool is_product = false;
template <class Scalar>
inline constexpr bool is_product<device_product<Scalar>> = true;
template <class Type>
inline constexpr bool is_sum = false;
template <class Scalar>
inline constexpr bool is_sum<device_sum<Scalar>> = true;
template <class Type>
inline constexpr bool is_kron = false;
template <class Scalar>
inline constexpr bool is_kron<device_kron<Scalar>> = true;
template <class Type>
inline constexpr bool is_operator = false;
template <class Scalar>
inline constexpr bool is_operator<device_operator<Scalar>> = true;
/// Products of krons one after the other: device/sparse.hpp.
template <class Type>
inline constexpr bool is_composite = false;
template <class Type>
inline constexpr bool is_shift = detail::identity_like<Type>;

/// What multiplies a kron: a matrix, its transpose, a scaled one.
template <class Type>
concept factor_or_x = is_matrix<bare<Type>> || is_product<bare<Type>>;
/// What can be added and subtracted.
template <class Type>
concept summand = factor_or_x<Type> || is_sum<bare<Type>>;

/// A sparse matrix in host memory, as Eigen's and its expressions; recognised by the members of its plain type.
template <class Type>
concept host_sparse =
    std::is_class_v<bare<Type>> && !any_device_operand<Type> && requires(const typename bare<Type>::PlainObject& m) {
    typename bare<Type>::StorageIndex;
    m.outerIndexPtr();
    m.innerIndexPtr();
    m.valuePtr();
    m.innerNonZeroPtr();
    m.outerSize();
};
/// A dense matrix expression in host memory, as Eigen's; recognised by its members, so that no header of Eigen is needed.
template <class Type>
concept host_matrix =
    std::is_class_v<bare<Type>> && !any_device_operand<Type> && !host_sparse<Type> && requires(const bare<Type>& m) {
    typename bare<Type>::Scalar;
    typename bare<Type>::PlainObject;
    bare<Type>::Flags;
    m.rows();
    m.cols();
    m.eval();
};
/// A kron of host matrices only, as the Eigen front end makes it.
template <class Type>
concept host_kron = std::is_class_v<bare<Type>> && !any_device_operand<Type> && requires(const bare<Type>& k) {
    typename bare<Type>::Scalar;
    k.node().factors();
    k.node().alpha();
    k.factor_count();
};
/// Eigen's flag of expressions that are pointer and strides.
inline constexpr int direct_access_flag = 0x40;

/// `identity(n)` and `s * identity(n)`.
template <class Type>
inline constexpr bool is_identity_like = detail::identity_like<Type> && !std::is_same_v<bare<Type>, identity_operator>;

/// A matrix in host memory with structure, as `d.asDiagonal()` or a sparse one, by what the Eigen front end says of it (adapt/eigen/kron.hpp).
template <class Type>
concept host_structure = !any_device_operand<Type> && requires(const kron_node<double>* node, const bare<Type>* m) {
    scalar_of_structure(node, m);
};

/// What scales an expression of `Scalar`.
template <class Amount, class Scalar>
concept amount = !any_device_operand<Amount> && !host_matrix<Amount> && !host_kron<Amount> &&
                 (detail::scales<bare<Amount>, Scalar> ||
                  (std::is_arithmetic_v<bare<Amount>> && std::is_constructible_v<Scalar, float>));

template <class Scalar, class Amount>
Scalar scalar_from(const Amount& value) {
    if constexpr (std::is_arithmetic_v<Amount> && detail::is_complex_scalar<Scalar>) {
        return Scalar(static_cast<detail::real_of<Scalar>>(value));
    } else if constexpr (std::is_convertible_v<Amount, Scalar>) {
        return static_cast<Scalar>(value);
    } else {
        return Scalar(static_cast<float>(value));
    }
}

/// The executors that own operands of an expression, each once.
using homes = inline_vector<const device_executor*, 3>;
inline void add_home(homes& list, const device_executor* home) {
    for (const device_executor* const known : list) {
        if (known == home) {
            return;
        }
    }
    if (home != nullptr) {
        list.push_back(home);
    }
}

struct operand {
    leaf matrix;
    const device_executor* home = nullptr;
};

/// A leaf with direct access to a host matrix: lvalues and views are borrowed by pointer and strides, the rest is owned.
template <class Matrix>
leaf host_leaf(Matrix&& m) {
    using type = bare<Matrix>;
    const auto view_of = [](const auto& direct) {
        const std::int64_t inner = direct.innerStride();
        const std::int64_t outer = direct.outerStride();
        const bool row_major = bool(int(bare<decltype(direct)>::Flags) & 1);
        return matrix_view{direct.data(), direct.rows(), direct.cols(), row_major ? outer : inner,
                           row_major ? inner : outer};
    };
    constexpr bool plain = std::is_same_v<type, typename type::PlainObject>;
    if constexpr (bool(int(type::Flags) & direct_access_flag) && (!plain || std::is_lvalue_reference_v<Matrix>)) {
        return leaf::borrowed(view_of(m));
    } else {
        auto kept = std::make_shared<const typename type::PlainObject>(std::forward<Matrix>(m));
        const matrix_view view = view_of(*kept);
        return leaf::owned(std::move(kept), view);
    }
}

/// The executor that evaluates: the one that is set if it reaches a GPU, else the operands' own.
inline const device_executor& executor_for(const device_executor* home) {
    if (const executor* const chosen = default_executor()) {
        if (const auto* const direct = dynamic_cast<const device_executor*>(chosen)) {
            return *direct;
        }
        if (const auto* const placing = dynamic_cast<const placing_executor*>(chosen)) {
            return home != nullptr ? *home : placing->device();
        }
    }
    return home != nullptr ? *home : gpu();
}

struct scratch {
    otimes::program program;
    otimes::bindings bindings;
};
/// Kept per thread, so that a second evaluation allocates nothing. No code of the user runs while it is in use.
inline scratch& thread_scratch() {
    thread_local scratch kept;
    return kept;
}

/// Everything in a program that is bound, except host factors, lies in device memory.
inline void mark_result_on_device(program& p) {
    for (tensor& t : p.tensors) {
        if (t.binding >= 0 && t.role != tensor_role::factor) {
            t.space = memory_space::device;
        }
    }
}

template <class Scalar>
void evaluate(const device_product<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
              const device_executor* home);

/// @name Defined in device_algebra.hpp.
/// @{
template <class Scalar>
detail::real_of<Scalar> squared_norm_of(const device_product<Scalar>& y);
template <class First, class Second>
typename First::Scalar dot_of(const First& x, const Second& y);
template <class Scalar, class Rhs>
auto solve_with_copies(const std::vector<device_kron<Scalar>>& terms, const Rhs& b);
/// @}
/// @name Defined in device/diagonals.hpp.
/// @{
template <class Vector>
auto diagonal_of(Vector&& d);
template <class Scalar>
void enable_diagonals();
/// @}

}  // namespace device

template <class Scalar>
auto squared_norm(const device_sum<Scalar>& y);  // device_algebra.hpp

/// `alpha * L * X * R` over device memory, lazy; also a transpose or a scalar multiple of a device matrix alone. Copying it
/// is cheap. Lifetimes as in expr/leaf.hpp: lvalue matrices are borrowed, rvalues owned.
template <class ScalarType>
class device_product {
public:
    using Scalar = ScalarType;

    explicit device_product(device::operand x) {
        node_.x = std::move(x.matrix);
        device::add_home(homes_, x.home);
    }
    device_product(product_node<Scalar> node, device::homes homes) : node_(std::move(node)), homes_(std::move(homes)) {}

    [[nodiscard]] std::int64_t rows() const { return node_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node_.cols(); }
    [[nodiscard]] const product_node<Scalar>& node() const noexcept { return node_; }
    [[nodiscard]] const device::homes& homes() const noexcept { return homes_; }
    /// True for a matrix without a kron beside it.
    [[nodiscard]] bool is_matrix() const noexcept { return !node_.has_left && !node_.has_right; }

    /// (alpha * L * X * R)^T = alpha * R^T * X^T * L^T.
    [[nodiscard]] device_product transpose() const {
        device_product result(*this);
        result.node_.x.transpose();
        std::swap(result.node_.left, result.node_.right);
        std::swap(result.node_.has_left, result.node_.has_right);
        for (factor_list* const list : {&result.node_.left, &result.node_.right}) {
            for (leaf& f : *list) {
                f.transpose();
            }
        }
        return result;
    }
    [[nodiscard]] device_product conjugate() const {
        device_product result(*this);
        if constexpr (detail::is_complex_scalar<Scalar>) {
            result.node_.x.conjugate();
            result.node_.alpha = detail::conjugate_of(result.node_.alpha);
            for (factor_list* const list : {&result.node_.left, &result.node_.right}) {
                for (leaf& f : *list) {
                    f.conjugate();
                }
            }
        }
        return result;
    }
    [[nodiscard]] device_product adjoint() const { return transpose().conjugate(); }
    /// A row or a column as a diagonal matrix; what is a product is evaluated now.
    [[nodiscard]] auto asDiagonal() const { return device::diagonal_of(*this); }

    /// The value in memory of its own.
    template <int Order = 0>
    [[nodiscard]] DeviceMatrix<Scalar, Order> eval() const {
        return DeviceMatrix<Scalar, Order>(*this);
    }
    /// The value on the host; waits. See DeviceMatrix::to_host.
    template <class Host = Eigen::Matrix<Scalar, -1, -1, 0, -1, -1>>
    [[nodiscard]] Host to_host() const {
        return eval().template to_host<Host>();
    }

    /// A host matrix cannot be assigned from device memory by accident.
    template <device::host_matrix Matrix>
    operator Matrix() const {
        static_assert(device::always_false<Matrix>,
                      "otimes: X is in device memory and Y in host memory; X and Y must share a memory space. Write "
                      "Y = (dX * K).to_host(), or assign to a DeviceMatrix.");
        return Matrix();
    }

    /// @name Numbers, without the value itself: see device_algebra.hpp. They wait for the device.
    /// @{
    [[nodiscard]] auto squaredNorm() const { return device::squared_norm_of(*this); }
    [[nodiscard]] auto norm() const { return std::sqrt(squaredNorm()); }
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        return device::dot_of(*this, y);
    }
    /// @}

    /// May evaluation read memory of `written`?
    [[nodiscard]] bool reads(const matrix_view& written) const {
        const auto meets = [&](const leaf& f) {
            const auto bytes =
                static_cast<std::int64_t>(f.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
            return f.space() == memory_space::device && !f.is_identity() &&
                   overlap(memory_of(f.view(), bytes), memory_of(written, static_cast<std::int64_t>(sizeof(Scalar))));
        };
        bool any = meets(node_.x);
        for (const factor_list* const list : {&node_.left, &node_.right}) {
            for (const leaf& f : *list) {
                any = any || meets(f);
            }
        }
        return any;
    }

    product_node<Scalar>& edit() noexcept { return node_; }
    device::homes& edit_homes() noexcept { return homes_; }

private:
    product_node<Scalar> node_;
    device::homes homes_;
};

/// A sum of products and matrices in device memory, lazy: `dX * K1 + 2 * dZ - dX * K2`. Float and double: one program, whose launches share
/// reads and writes of the same X and Y where they can; other types: one plan a term. The first is assigned, the others are added, and
/// matrices come first. Where Y is an operand of any term, into a temporary. Storage of 16 bits is rounded after every term.
template <class ScalarType>
class device_sum {
public:
    using Scalar = ScalarType;
    using term = device_product<Scalar>;

    explicit device_sum(term first) { terms_.push_back(std::move(first)); }

    [[nodiscard]] std::int64_t rows() const { return terms_.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().cols(); }
    [[nodiscard]] const std::vector<term>& terms() const noexcept { return terms_; }
    [[nodiscard]] const device_executor* home() const noexcept {
        for (const term& t : terms_) {
            if (!t.homes().empty()) {
                return t.homes()[0];
            }
        }
        return nullptr;
    }

    /// Appends `sign` times the terms of another sum. @throws shape_error when the shapes differ.
    void append(const device_sum& other, int sign) {
        if (other.rows() != rows() || other.cols() != cols()) {
            throw shape_error("otimes: sum of products in device memory: the first term is " +
                              detail::shape_text(rows(), cols()) + ", term " + std::to_string(terms_.size() + 1) +
                              " is " + detail::shape_text(other.rows(), other.cols()) + "; they must be equal.");
        }
        for (const term& t : other.terms_) {
            terms_.push_back(t);
            if (sign < 0) {
                terms_.back().edit().alpha = -terms_.back().node().alpha;
            }
        }
    }
    [[nodiscard]] device_sum scaled(const Scalar& amount) const {
        return each([&amount](term t) {
            t.edit().alpha = t.node().alpha * amount;
            return t;
        });
    }
    [[nodiscard]] device_sum transpose() const {
        return each([](const term& t) { return t.transpose(); });
    }
    [[nodiscard]] device_sum conjugate() const {
        return each([](const term& t) { return t.conjugate(); });
    }
    [[nodiscard]] device_sum adjoint() const { return transpose().conjugate(); }

    /// The value in memory of its own.
    template <int Order = 0>
    [[nodiscard]] DeviceMatrix<Scalar, Order> eval() const {
        return DeviceMatrix<Scalar, Order>(*this);
    }
    /// The value on the host; waits. See DeviceMatrix::to_host.
    template <class Host = Eigen::Matrix<Scalar, -1, -1, 0, -1, -1>>
    [[nodiscard]] Host to_host() const {
        return eval().template to_host<Host>();
    }
    template <device::host_matrix Matrix>
    operator Matrix() const {
        static_assert(device::always_false<Matrix>,
                      "otimes: X is in device memory and Y in host memory; X and Y must share a memory space. Write "
                      "Y = (dX * K).to_host(), or assign to a DeviceMatrix.");
        return Matrix();
    }

    /// Refused by a sentence: a norm needs the sum's value.
    [[nodiscard]] auto squaredNorm() const { return otimes::squared_norm(*this); }
    [[nodiscard]] auto norm() const { return otimes::squared_norm(*this); }

    /// Checks every term again. @throws shape_error an operand was resized since.
    void check() const {
        for (const term& t : terms_) {
            t.node().check();
            if (t.rows() != rows() || t.cols() != cols()) {
                throw shape_error("otimes: sum of products in device memory: a term is " +
                                  detail::shape_text(t.rows(), t.cols()) + ", the first is " +
                                  detail::shape_text(rows(), cols()) + "; an operand was resized.");
            }
        }
    }
    [[nodiscard]] bool reads(const matrix_view& written) const {
        for (const term& t : terms_) {
            if (t.reads(written)) {
                return true;
            }
        }
        return false;
    }

private:
    template <class Change>
    [[nodiscard]] device_sum each(const Change& change) const {
        device_sum result(change(terms_.front()));
        for (std::size_t i = 1; i < terms_.size(); ++i) {
            result.terms_.push_back(change(terms_[i]));
        }
        return result;
    }
    std::vector<term> terms_;
};

/// A Kronecker product with at least one factor in device memory, lazy. Mathematics and laws: expr/kron.hpp.
template <class ScalarType>
class device_kron {
public:
    using Scalar = ScalarType;

    device_kron() = default;
    device_kron(kron_node<Scalar> node, device::homes homes) : node_(std::move(node)), homes_(std::move(homes)) {}

    [[nodiscard]] std::int64_t rows() const { return node_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node_.cols(); }
    [[nodiscard]] std::size_t factor_count() const noexcept { return node_.factors().size(); }
    [[nodiscard]] const kron_node<Scalar>& node() const noexcept { return node_; }
    [[nodiscard]] const device::homes& homes() const noexcept { return homes_; }

    [[nodiscard]] device_kron transpose() const {
        device_kron result(*this);
        result.node_.transpose();
        return result;
    }
    [[nodiscard]] device_kron conjugate() const {
        device_kron result(*this);
        result.node_.conjugate();
        return result;
    }
    [[nodiscard]] device_kron adjoint() const { return transpose().conjugate(); }

    /// X with K X = B, B in device memory; copies the factors to the host and decomposes them there (otimes/algebra.hpp: include it).
    template <class Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        return device::solve_with_copies(std::vector<device_kron>{*this}, b);
    }

    template <class Matrix>
    requires device::factor_or_x<Matrix> || device::host_matrix<Matrix> || device::is_kron<device::bare<Matrix>> ||
        device::host_kron<Matrix> || device::host_structure<Matrix> || device::is_identity_like<Matrix>
    void append(Matrix&& factor);

    kron_node<Scalar>& edit() noexcept { return node_; }

private:
    kron_node<Scalar> node_;
    device::homes homes_;
};

/// A sum of Kronecker products with factors in device memory, lazy: `K1 + 2 * K2`, `K - s * identity()`, `kron_sum(dA, dB)`.
/// `dX * S` and `S * dX` are sums of products (device_sum). A multiple of the identity adds to Y without a copy of X. Factors that
/// several terms share are applied in each of them.
template <class ScalarType>
class device_operator {
public:
    using Scalar = ScalarType;

    explicit device_operator(device_kron<Scalar> first) { terms_.push_back(std::move(first)); }

    [[nodiscard]] std::int64_t rows() const { return terms_.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().cols(); }
    [[nodiscard]] std::size_t term_count() const noexcept { return terms_.size(); }
    [[nodiscard]] const std::vector<device_kron<Scalar>>& terms() const noexcept { return terms_; }

    /// Appends `sign` times the terms of another sum. @throws shape_error when the shapes differ.
    void append(const device_operator& other, int sign) {
        if (other.rows() != rows() || other.cols() != cols()) {
            throw shape_error("otimes: sum of Kronecker products in device memory: the first term is " +
                              detail::shape_text(rows(), cols()) + ", term " + std::to_string(terms_.size() + 1) +
                              " is " + detail::shape_text(other.rows(), other.cols()) + "; they must be equal.");
        }
        for (const device_kron<Scalar>& k : other.terms_) {
            terms_.push_back(k);
            if (sign < 0) {
                terms_.back().edit().set_alpha(-k.node().alpha());
            }
        }
    }
    /// Appends `amount` times the identity of this order. @throws shape_error when the operator is not square.
    void append_identity(const Scalar& amount, std::int64_t order) {
        detail::check_shift(rows(), cols(), order);
        kron_node<Scalar> node;
        node.append(leaf::identity(rows()));
        node.set_alpha(amount);
        terms_.emplace_back(std::move(node), device::homes());
    }
    [[nodiscard]] device_operator scaled(const Scalar& amount) const {
        return each([&amount](device_kron<Scalar> k) {
            k.edit().set_alpha(k.node().alpha() * amount);
            return k;
        });
    }
    [[nodiscard]] device_operator transpose() const {
        return each([](const device_kron<Scalar>& k) { return k.transpose(); });
    }
    [[nodiscard]] device_operator conjugate() const {
        return each([](const device_kron<Scalar>& k) { return k.conjugate(); });
    }
    [[nodiscard]] device_operator adjoint() const { return transpose().conjugate(); }

    /// X with S X = B, B in device memory, by the factors' eigenvectors; as device_kron::solve.
    template <class Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        return device::solve_with_copies(terms_, b);
    }

private:
    template <class Change>
    [[nodiscard]] device_operator each(const Change& change) const {
        device_operator result(*this);
        for (device_kron<Scalar>& k : result.terms_) {
            k = change(k);
        }
        return result;
    }
    std::vector<device_kron<Scalar>> terms_;
};

namespace device {

/// `use(scratch)` after the work that `others` have queued; they wait for it in turn.
template <class Use>
void run_on(const device_executor& where, const homes& others, const Use& use) {
    for (const device_executor* const other : others) {
        if (other != &where) {
            where.wait_for(*other);
        }
    }
    scratch& s = thread_scratch();
    struct clear_at_end {
        scratch& kept;
        ~clear_at_end() { kept.bindings.clear(); }
    } const clear{s};
    use(s);
    for (const device_executor* const other : others) {
        if (other != &where) {
            other->wait_for(where);
        }
    }
}

/// Assignment shared by matrices and maps: shapes have been made equal, `y` is the destination's memory.
template <class Scalar>
void evaluate(const device_product<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
              const device_executor* home) {
    const device_executor& where = executor_for(home != nullptr         ? home
                                                : value.homes().empty() ? nullptr
                                                                        : value.homes()[0]);
    device::homes others = value.homes();
    add_home(others, home);
    run_on(where, others, [&](scratch& s) {
        lowering<Scalar> low(s.program, s.bindings);
        low.add_product(value.node(), y, add, scale);
        mark_result_on_device(s.program);
        where.evaluate(s.program, s.bindings);
    });
}

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

/// Matrices first, then products, then products with one diagonal, each added to those before. float and double: as one program, whose launches share reads and writes
/// of what they have in common; other types: one program for each term. @pre Y is no operand of any of them.
template <class Scalar>
void evaluate(const device_sum<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
              const device_executor* home) {
    const auto turn_of = [](const device_product<Scalar>& term) {
        const product_node<Scalar>& node = term.node();
        const bool one = node.left.size() + node.right.size() == 1;
        return term.is_matrix()                                                                     ? 0
               : one && (node.has_left ? node.left : node.right)[0].kind() == factor_kind::diagonal ? 2
                                                                                                    : 1;
    };
    inline_vector<const device_product<Scalar>*, 8> order;
    for (const int turn : {0, 1, 2}) {
        for (const device_product<Scalar>& term : value.terms()) {
            if (turn_of(term) == turn) {
                order.push_back(&term);
            }
        }
    }
    constexpr bool together = std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double>;
    if (!together || order.size() > 8) {
        for (const device_product<Scalar>* const term : order) {
            evaluate(*term, y, add, scale, home);
            add = true;
        }
        return;
    }
    const device_executor& where = executor_for(home != nullptr ? home : value.home());
    device::homes others;
    add_home(others, home);
    for (const device_product<Scalar>* const term : order) {
        for (const device_executor* const other : term->homes()) {
            add_home(others, other);
        }
    }
    run_on(where, others, [&](scratch& s) {
        lowering<Scalar> low(s.program, s.bindings);
        for (const device_product<Scalar>* const term : order) {
            low.add_product(term->node(), y, add, scale);
            add = true;
        }
        share_bindings(s.program, s.bindings);
        mark_result_on_device(s.program);
        where.evaluate(s.program, s.bindings);
    });
}

template <class Scalar>
void check_shapes(const device_product<Scalar>& value) {
    value.node().check();
}
template <class Scalar>
void check_shapes(const device_sum<Scalar>& value) {
    value.check();
}
template <class Scalar>
const device_executor* home_of(const device_product<Scalar>& value) {
    return value.homes().empty() ? nullptr : value.homes()[0];
}
template <class Scalar>
const device_executor* home_of(const device_sum<Scalar>& value) {
    return value.home();
}

/// The value of a destination's `=`, `+=`, `-=`: products and sums of its own scalar. Others are refused by a sentence.
template <class Value, class Scalar>
concept value_of = std::is_same_v<Value, device_product<Scalar>> || std::is_same_v<Value, device_sum<Scalar>>;
template <class Value, class Scalar>
concept value_of_another = (is_product<Value> || is_sum<Value> ||
                            is_matrix<Value>)&&!std::is_same_v<typename Value::Scalar, Scalar>;

template <class Value>
constexpr void refuse_another_scalar() {
    static_assert(always_false<Value>,
                  "otimes: Y = expression in device memory: the expression has another scalar type than Y. Give Y the "
                  "type of the expression; a real Y takes no complex one, and there is no conversion on the device.");
}

template <class Value>
void require_shape(const Value& value, std::int64_t rows, std::int64_t cols, const char* what) {
    if (value.rows() != rows || value.cols() != cols) {
        throw shape_error("otimes: " + std::string(what) + ": Y is " + detail::shape_text(rows, cols) +
                          " and cannot be resized, the expression is " +
                          detail::shape_text(value.rows(), value.cols()) + ".");
    }
}

/// Y (+)= scale * value where Y has the right shape; through a temporary where Y overlaps an operand.
template <int Order, class Value, class Scalar>
void assign(const Value& value, const matrix_view& y, bool add, const Scalar& scale, const device_executor* home) {
    check_shapes(value);
    if (value.reads(y)) {
        const DeviceMatrix<Scalar, Order> copy(value);
        evaluate(device_product<Scalar>(copy.operand()), y, add, scale, home);
    } else {
        evaluate(value, y, add, scale, home);
    }
}

/// What `y.noalias()` returns: assignment without a temporary.
template <class Destination>
class without_alias {
public:
    using Scalar = typename Destination::Scalar;
    explicit without_alias(Destination& y) : y_(y) {}
    template <value_of<Scalar> Value>
    void operator=(const Value& value) const {
        run(value, false, Scalar(1), true);
    }
    template <value_of<Scalar> Value>
    void operator+=(const Value& value) const {
        run(value, true, Scalar(1), false);
    }
    template <value_of<Scalar> Value>
    void operator-=(const Value& value) const {
        run(value, true, -Scalar(1), false);
    }
    template <class Matrix>
    requires is_matrix<Matrix>
    void operator=(const Matrix& x) const { *this = x.expression(); }
    template <class Matrix>
    requires is_matrix<Matrix>
    void operator+=(const Matrix& x) const { *this += x.expression(); }
    template <class Matrix>
    requires is_matrix<Matrix>
    void operator-=(const Matrix& x) const { *this -= x.expression(); }

private:
    template <class Value>
    void run(const Value& value, bool add, const Scalar& scale, bool may_resize) const {
        check_shapes(value);
        if (value.reads(y_.view())) {
            throw alias_error(
                "otimes: Y.noalias() = expression: Y overlaps an operand of the expression. Write Y = expression, "
                "which takes a temporary, or another Y.");
        }
        if (may_resize) {
            y_.take_shape(value);
        }
        require_shape(value, y_.rows(), y_.cols(), "Y.noalias() op= expression");
        evaluate(value, y_.view(), add, scale, y_.home());
    }
    Destination& y_;
};

}  // namespace device

/// Device memory that somebody else owns, as a matrix. Order: 0 column-major, 1 row-major (Eigen's numbers). Assigning to
/// it writes through; it is never resized.
template <class ScalarType, int Order>
class DeviceMap {
public:
    using Scalar = ScalarType;
    static constexpr bool IsRowMajor = Order == 1;

    /// @pre data is device memory of the executor's device; outer_stride >= the inner extent, in elements.
    DeviceMap(Scalar* data, std::int64_t rows, std::int64_t cols, std::int64_t outer_stride)
        : data_(data), rows_(rows), cols_(cols), outer_stride_(outer_stride) {
        const std::int64_t inner = IsRowMajor ? cols : rows;
        if (rows < 0 || cols < 0 || outer_stride < inner) {
            throw shape_error("otimes: device_map: " + detail::shape_text(rows, cols) + " with an outer stride of " +
                              std::to_string(outer_stride) +
                              "; the extents must not be negative and the stride at least " + std::to_string(inner) +
                              ".");
        }
    }
    DeviceMap(const DeviceMap&) = default;

    [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }
    [[nodiscard]] std::int64_t size() const noexcept { return rows_ * cols_; }
    [[nodiscard]] std::int64_t outer_stride() const noexcept { return outer_stride_; }
    [[nodiscard]] Scalar* data() const noexcept { return data_; }
    [[nodiscard]] matrix_view view() const noexcept {
        return {data_, rows_, cols_, IsRowMajor ? outer_stride_ : 1, IsRowMajor ? 1 : outer_stride_};
    }
    [[nodiscard]] const device_executor* home() const noexcept { return nullptr; }
    [[nodiscard]] device::operand operand() const {
        device::operand o{leaf::borrowed(view()), nullptr};
        o.matrix.set_space(memory_space::device);
        return o;
    }
    [[nodiscard]] device_product<Scalar> expression() const { return device_product<Scalar>(operand()); }
    [[nodiscard]] device_product<Scalar> transpose() const { return expression().transpose(); }
    [[nodiscard]] device_product<Scalar> conjugate() const { return expression().conjugate(); }
    [[nodiscard]] device_product<Scalar> adjoint() const { return expression().adjoint(); }
    /// A row or a column as the diagonal of a square factor or term: kron(A, d.asDiagonal()), K + d.asDiagonal(). Borrowed like a view.
    [[nodiscard]] auto asDiagonal() const { return device::diagonal_of(*this); }
    /// @name Numbers: see device_algebra.hpp. They wait for the device.
    /// @{
    [[nodiscard]] auto squaredNorm() const { return expression().squaredNorm(); }
    [[nodiscard]] auto norm() const { return expression().norm(); }
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        return expression().dot(y);
    }
    /// @}
    template <class Host = Eigen::Matrix<Scalar, -1, -1, Order, -1, -1>>
    [[nodiscard]] Host to_host() const {
        return DeviceMatrix<Scalar, Order>(expression()).template to_host<Host>();
    }

    /// Y = expression, and the sums. Safe when Y overlaps operands. @throws shape_error when the shapes differ.
    template <device::value_of<ScalarType> Value>
    const DeviceMap& operator=(const Value& value) const {
        device::require_shape(value, rows_, cols_, "Y = expression");
        device::assign<Order>(value, view(), false, Scalar(1), nullptr);
        return *this;
    }
    const DeviceMap& operator=(const DeviceMap& other) const { return *this = other.expression(); }
    template <int Other>
    const DeviceMap& operator=(const DeviceMatrix<Scalar, Other>& other) const {
        return *this = other.expression();
    }
    template <device::value_of<ScalarType> Value>
    const DeviceMap& operator+=(const Value& value) const {
        device::require_shape(value, rows_, cols_, "Y += expression");
        device::assign<Order>(value, view(), true, Scalar(1), nullptr);
        return *this;
    }
    template <device::value_of<ScalarType> Value>
    const DeviceMap& operator-=(const Value& value) const {
        device::require_shape(value, rows_, cols_, "Y -= expression");
        device::assign<Order>(value, view(), true, -Scalar(1), nullptr);
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    const DeviceMap& operator=(const Other&) const {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    const DeviceMap& operator+=(const Other&) const {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    const DeviceMap& operator-=(const Other&) const {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    /// Promises that Y overlaps no operand. @throws alias_error when it does.
    [[nodiscard]] device::without_alias<const DeviceMap> noalias() const {
        return device::without_alias<const DeviceMap>(*this);
    }
    template <class Value>
    void take_shape(const Value&) const noexcept {}

private:
    Scalar* data_;
    std::int64_t rows_;
    std::int64_t cols_;
    std::int64_t outer_stride_;
};

/// Borrowed device memory of any alignment as a matrix. Order: Eigen::ColMajor (0) or Eigen::RowMajor (1).
template <class Scalar, int Order = 0>
[[nodiscard]] DeviceMap<Scalar, Order> device_map(Scalar* data, std::int64_t rows, std::int64_t cols,
                                                  std::int64_t outer_stride) {
    return {data, rows, cols, outer_stride};
}
template <class Scalar, int Order = 0>
[[nodiscard]] DeviceMap<Scalar, Order> device_map(Scalar* data, std::int64_t rows, std::int64_t cols) {
    return {data, rows, cols, Order == 1 ? cols : rows};
}

/// A matrix that owns device memory. Allocated, used and freed in the order of its executor's stream, so no call waits
/// except `to_host`. Order: 0 column-major, 1 row-major.
template <class ScalarType, int Order = 0>
class DeviceMatrix {
    static_assert(dtype_of<ScalarType>() != dtype::other,
                  "otimes: a DeviceMatrix holds float, double, their complex types, otimes::half or otimes::bfloat16.");
    static_assert(Order == 0 || Order == 1,
                  "otimes: the order of a DeviceMatrix is 0 (column-major) or 1 (row-major).");

public:
    using Scalar = ScalarType;
    static constexpr bool IsRowMajor = Order == 1;

    /// 0 x 0; the first assignment gives it a shape.
    DeviceMatrix() = default;
    explicit DeviceMatrix(const device_executor& where) : home_(&where) {}
    /// Uninitialised. @throws shape_error for negative or overflowing extents, device_error when memory is short.
    DeviceMatrix(std::int64_t rows, std::int64_t cols) { resize(rows, cols); }
    DeviceMatrix(std::int64_t rows, std::int64_t cols, const device_executor& where) : home_(&where) {
        resize(rows, cols);
    }
    /// Copy of a host matrix or expression.
    template <device::host_matrix Matrix>
    explicit DeviceMatrix(const Matrix& host) {
        assign_host(host);
    }
    template <device::host_matrix Matrix>
    DeviceMatrix(const Matrix& host, const device_executor& where) : home_(&where) {
        assign_host(host);
    }
    /// Evaluates an expression: `DeviceMatrix<double> dY = dX * K`.
    template <device::value_of<ScalarType> Value>
    DeviceMatrix(const Value& value) {
        *this = value;
    }
    DeviceMatrix(const DeviceMatrix& other) : home_(other.home_) { copy_elements(other); }
    template <int Other>
    explicit DeviceMatrix(const DeviceMatrix<Scalar, Other>& other) : home_(other.home()) {
        *this = other.expression();
    }
    DeviceMatrix(DeviceMatrix&& other) noexcept { swap(other); }
    ~DeviceMatrix() { free(); }

    DeviceMatrix& operator=(const DeviceMatrix& other) {
        if (this != &other) {
            copy_elements(other);
        }
        return *this;
    }
    DeviceMatrix& operator=(DeviceMatrix&& other) noexcept {
        swap(other);
        return *this;
    }
    template <int Other>
    DeviceMatrix& operator=(const DeviceMatrix<Scalar, Other>& other) {
        return *this = other.expression();
    }
    template <int Other>
    DeviceMatrix& operator=(const DeviceMap<Scalar, Other>& other) {
        return *this = other.expression();
    }
    template <device::host_matrix Matrix>
    DeviceMatrix& operator=(const Matrix& host) {
        static_assert(
            !requires { host.node(); },
            "otimes: X is in host memory and Y in device memory; X and Y must share a memory space. Write "
            "dY = dX * K with DeviceMatrix<Scalar> dX(X), or dY = (X * K).eval() to compute on the host.");
        assign_host(host);
        return *this;
    }

    /// Y = expression: takes its shape. Safe when Y is one of its operands.
    template <device::value_of<ScalarType> Value>
    DeviceMatrix& operator=(const Value& value) {
        device::check_shapes(value);
        if (home_ == nullptr) {
            home_ = &device::executor_for(device::home_of(value));
        }
        if (value.reads(view())) {
            DeviceMatrix result(*home_);
            result = value;
            swap(result);
        } else {
            take_shape(value);
            device::evaluate(value, view(), false, Scalar(1), home_);
        }
        return *this;
    }
    template <device::value_of<ScalarType> Value>
    DeviceMatrix& operator+=(const Value& value) {
        device::require_shape(value, rows_, cols_, "Y += expression");
        device::assign<Order>(value, view(), true, Scalar(1), home_);
        return *this;
    }
    template <device::value_of<ScalarType> Value>
    DeviceMatrix& operator-=(const Value& value) {
        device::require_shape(value, rows_, cols_, "Y -= expression");
        device::assign<Order>(value, view(), true, -Scalar(1), home_);
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    DeviceMatrix& operator=(const Other&) {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    DeviceMatrix& operator+=(const Other&) {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    DeviceMatrix& operator-=(const Other&) {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    /// Promises that Y overlaps no operand. @throws alias_error when it does.
    [[nodiscard]] device::without_alias<DeviceMatrix> noalias() { return device::without_alias<DeviceMatrix>(*this); }

    [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }
    [[nodiscard]] std::int64_t size() const noexcept { return rows_ * cols_; }
    [[nodiscard]] std::int64_t outer_stride() const noexcept { return IsRowMajor ? cols_ : rows_; }
    [[nodiscard]] Scalar* data() noexcept { return data_; }
    [[nodiscard]] const Scalar* data() const noexcept { return data_; }
    /// The executor in whose stream's order the memory is used; nullptr before there is any.
    [[nodiscard]] const device_executor* home() const noexcept { return home_; }
    [[nodiscard]] matrix_view view() const noexcept {
        return {data_, rows_, cols_, IsRowMajor ? cols_ : 1, IsRowMajor ? 1 : rows_};
    }
    [[nodiscard]] DeviceMap<Scalar, Order> map() noexcept { return {data_, rows_, cols_, outer_stride()}; }

    [[nodiscard]] device::operand operand() const& {
        device::operand o{
            leaf::borrowed(this, [](const void* m) { return static_cast<const DeviceMatrix*>(m)->view(); }), home_};
        o.matrix.set_space(memory_space::device);
        return o;
    }
    [[nodiscard]] device::operand operand() && {
        const device_executor* const home = home_;
        auto kept = std::make_shared<const DeviceMatrix>(std::move(*this));
        const matrix_view where = kept->view();
        device::operand o{leaf::owned(std::move(kept), where), home};
        o.matrix.set_space(memory_space::device);
        return o;
    }
    [[nodiscard]] device_product<Scalar> expression() const { return device_product<Scalar>(operand()); }
    [[nodiscard]] device_product<Scalar> transpose() const { return expression().transpose(); }
    [[nodiscard]] device_product<Scalar> conjugate() const { return expression().conjugate(); }
    [[nodiscard]] device_product<Scalar> adjoint() const { return expression().adjoint(); }
    /// A row or a column as the diagonal of a square factor or term: kron(A, d.asDiagonal()), K + d.asDiagonal(). Borrowed like a view.
    [[nodiscard]] auto asDiagonal() const& { return device::diagonal_of(*this); }
    [[nodiscard]] auto asDiagonal() && { return device::diagonal_of(std::move(*this)); }
    /// @name Numbers: see device_algebra.hpp. They wait for the device.
    /// @{
    [[nodiscard]] auto squaredNorm() const { return expression().squaredNorm(); }
    [[nodiscard]] auto norm() const { return expression().norm(); }
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        return expression().dot(y);
    }
    /// @}

    /// A copy on the host, an Eigen matrix unless said otherwise; waits for the device. `Host` needs a constructor from rows
    /// and columns, and data(), innerStride(), outerStride().
    template <class Host = Eigen::Matrix<Scalar, -1, -1, Order, -1, -1>>
    [[nodiscard]] Host to_host() const {
        Host host(rows_, cols_);
        copy_to(host);
        return host;
    }
    /// The same into a matrix of the right shape. @throws shape_error when it differs.
    template <device::host_matrix Host>
    void copy_to(Host& host) const {
        if (host.rows() != rows_ || host.cols() != cols_) {
            throw shape_error("otimes: DeviceMatrix::copy_to: the host matrix is " +
                              detail::shape_text(host.rows(), host.cols()) + ", the device matrix " +
                              detail::shape_text(rows_, cols_) + ".");
        }
        if (rows_ != 0 && cols_ != 0) {
            home_->download(host_side(device::host_leaf(host).view()), data_);
        }
    }

    /// Changes the shape; the elements are lost. Keeps the memory when the size stays.
    void resize(std::int64_t rows, std::int64_t cols) {
        std::int64_t count = 0;
        std::int64_t bytes = 0;
        if (rows < 0 || cols < 0 || !checked_multiply(rows, cols, count) ||
            !checked_multiply(count, static_cast<std::int64_t>(sizeof(Scalar)), bytes)) {
            throw shape_error("otimes: DeviceMatrix: " + detail::shape_text(rows, cols) +
                              " is no shape; extents must not be negative and the bytes fit in 63 bits.");
        }
        if (home_ == nullptr) {
            home_ = &device::executor_for(nullptr);
        }
        if (bytes != bytes_) {
            free();
            data_ = bytes == 0 ? nullptr : static_cast<Scalar*>(home_->allocate(bytes));
            bytes_ = bytes;
        }
        rows_ = rows;
        cols_ = cols;
    }
    template <class Value>
    void take_shape(const Value& value) {
        resize(value.rows(), value.cols());
    }

    void swap(DeviceMatrix& other) noexcept {
        std::swap(home_, other.home_);
        std::swap(data_, other.data_);
        std::swap(rows_, other.rows_);
        std::swap(cols_, other.cols_);
        std::swap(bytes_, other.bytes_);
    }

private:
    void free() noexcept {
        if (data_ != nullptr) {
            home_->release(data_, bytes_);
        }
        data_ = nullptr;
        bytes_ = 0;
        rows_ = cols_ = 0;
    }
    /// The host matrix's modes in this matrix's memory order.
    [[nodiscard]] static host_tensor host_side(const matrix_view& m) {
        host_tensor t;
        t.data = const_cast<void*>(m.data);
        t.element_bytes = static_cast<std::int64_t>(sizeof(Scalar));
        if constexpr (IsRowMajor) {
            t.modes = {{m.rows, m.row_stride}, {m.cols, m.col_stride}};
        } else {
            t.modes = {{m.cols, m.col_stride}, {m.rows, m.row_stride}};
        }
        return t;
    }
    template <class Matrix>
    void assign_host(const Matrix& host) {
        static_assert(std::is_same_v<typename Matrix::Scalar, Scalar>,
                      "otimes: the host matrix has another scalar type; convert it with .cast<Scalar>().");
        resize(host.rows(), host.cols());
        if (rows_ != 0 && cols_ != 0) {
            const leaf kept = device::host_leaf(host);
            home_->upload(data_, host_side(kept.view()));
        }
    }
    void copy_elements(const DeviceMatrix& other) {
        if (other.data_ == nullptr) {
            free();
            rows_ = other.rows_;
            cols_ = other.cols_;
        } else {
            *this = other.expression();
        }
    }

    const device_executor* home_ = nullptr;
    Scalar* data_ = nullptr;
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t bytes_ = 0;
};

namespace device {

template <class Matrix>
requires is_matrix<bare<Matrix>> operand operand_of(Matrix&& m) { return std::forward<Matrix>(m).operand(); }

/// Lists of factors, as kron() takes them alone.
template <class Type>
inline constexpr bool is_factor_range = false;
template <class Matrix, class Allocator>
inline constexpr bool is_factor_range<std::vector<Matrix, Allocator>> = true;
template <class Matrix, std::size_t Extent>
inline constexpr bool is_factor_range<std::span<Matrix, Extent>> = true;

/// Scalar of an argument of kron(); void for an identity.
template <class Argument>
struct argument_scalar {
    static_assert(
        is_identity_like<Argument>,
        "otimes: kron() takes device matrices and their transposes, Eigen matrices, otimes::identity(n) and other "
        "krons; of Eigen's diagonal, sparse, triangular and permutation matrices when otimes/otimes.hpp is included.");
    using type = void;
};
template <class Argument>
requires(factor_or_x<Argument> || is_kron<Argument> || host_matrix<Argument> ||
         host_kron<Argument>) struct argument_scalar<Argument> {
    using type = typename Argument::Scalar;
};
template <class Argument>
requires(host_structure<Argument> && !host_matrix<Argument> && !host_kron<Argument>) struct argument_scalar<Argument> {
    using type = std::remove_pointer_t<decltype(scalar_of_structure(static_cast<const kron_node<double>*>(nullptr),
                                                                    static_cast<const Argument*>(nullptr)))>;
};

template <class First, class Second>
struct combined_scalar {
    static_assert(detail::scalars_mix<First, Second>,
                  "otimes: the operands have different scalar types. Only a real type and its own complex type mix.");
    using type = detail::common_scalar<First, Second>;
};
template <class Second>
struct combined_scalar<void, Second> {
    using type = Second;
};
template <class First>
struct combined_scalar<First, void> {
    using type = First;
};
template <>
struct combined_scalar<void, void> {
    using type = void;
};
template <class... Scalars>
struct scalar_of_all {
    using type = void;
};
template <class First, class... Rest>
struct scalar_of_all<First, Rest...> {
    using type = typename combined_scalar<First, typename scalar_of_all<Rest...>::type>::type;
};

/// The same leaf in an expression over `To`.
template <class To, class From>
leaf promoted(leaf f) {
    if constexpr (!std::is_same_v<To, From>) {
        f.set_real_elements(true);
    }
    return f;
}

template <class To, class From>
device_product<To> promote(const device_product<From>& from) {
    if constexpr (std::is_same_v<To, From>) {
        return from;
    } else {
        product_node<To> node;
        node.x = promoted<To, From>(from.node().x);
        for (const leaf& f : from.node().left) {
            node.left.push_back(promoted<To, From>(f));
        }
        for (const leaf& f : from.node().right) {
            node.right.push_back(promoted<To, From>(f));
        }
        node.has_left = from.node().has_left;
        node.has_right = from.node().has_right;
        node.alpha = To(from.node().alpha);
        return {std::move(node), from.homes()};
    }
}

template <class Matrix>
auto to_product(Matrix&& m) {
    if constexpr (is_product<bare<Matrix>>) {
        return bare<Matrix>(std::forward<Matrix>(m));
    } else {
        return device_product<typename bare<Matrix>::Scalar>(operand_of(std::forward<Matrix>(m)));
    }
}

template <class Kron>
const homes* homes_of(const Kron& k) {
    if constexpr (is_kron<bare<Kron>>) {
        return &k.homes();
    } else {
        return nullptr;
    }
}

/// A product's value in memory of its own, by rows where its X is: an intermediate that is laid out otherwise would be transposed
/// twice, by kernels that do not read whole lines.
template <class Scalar>
operand evaluated(const device_product<Scalar>& value) {
    const matrix_view x = value.node().x.view();
    return x.row_stride > x.col_stride || (x.row_stride == x.col_stride && x.rows == 1)
               ? operand_of(DeviceMatrix<Scalar, 1>(value))
               : operand_of(DeviceMatrix<Scalar, 0>(value));
}

/// True when F * G can be formed factor by factor in device memory: as many of both, inner extents equal, all dense and there.
inline bool multiply_by_factors(const factor_list& first, const factor_list& second) {
    const auto usable = [](const leaf& f) {
        return f.is_identity() || (f.is_dense() && f.space() == memory_space::device && !f.real_elements());
    };
    bool all = first.size() == second.size();
    for (std::size_t i = 0; all && i < first.size(); ++i) {
        all = usable(first[i]) && usable(second[i]) && first[i].cols() == second[i].rows();
    }
    return all;
}

/// F_i * G_i for each i: the factors of kron(F..) * kron(G..). @pre multiply_by_factors
template <class Scalar>
factor_list products_of_factors(const factor_list& first, const factor_list& second, const homes& where) {
    factor_list result;
    for (std::size_t i = 0; i < first.size(); ++i) {
        if (first[i].is_identity() || second[i].is_identity()) {
            result.push_back(first[i].is_identity() ? second[i] : first[i]);
            continue;
        }
        product_node<Scalar> node;
        node.x = first[i];
        node.right.push_back(second[i]);
        node.has_right = true;
        result.push_back(evaluated(device_product<Scalar>(std::move(node), where)).matrix);
    }
    return result;
}

/// Multiply-adds of a chain over `others` indices that no factor touches.
inline double multiply_adds(const factor_list& factors, bool from_left, double others) {
    double elements = others;
    for (const leaf& f : factors) {
        elements *= static_cast<double>(from_left ? f.cols() : f.rows());
    }
    double sum = 0;
    for (const leaf& f : factors) {
        const auto p = static_cast<double>((std::max)(std::int64_t{1}, from_left ? f.cols() : f.rows()));
        const auto q = static_cast<double>(from_left ? f.rows() : f.cols());
        sum += f.is_identity() ? 0 : elements * q;
        elements = elements / p * q;
    }
    return sum;
}

/// Whether X * kron(F..) * kron(G..) takes fewer multiply-adds as X * kron(F * G..). It then also goes over X once instead of twice.
inline bool pays_by_factors(const factor_list& first, const factor_list& second, bool from_left, double others) {
    double products = 0;
    double elements = others;
    for (std::size_t i = 0; i < first.size(); ++i) {
        elements *= static_cast<double>(from_left ? second[i].cols() : first[i].rows());
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
        const auto r = static_cast<double>(first[i].rows());
        const auto c = static_cast<double>(second[i].cols());
        const double p = (std::max)(1.0, from_left ? c : r);
        const double q = from_left ? r : c;
        products +=
            first[i].is_identity() || second[i].is_identity() ? 0 : r * static_cast<double>(first[i].cols()) * c;
        products += first[i].is_identity() && second[i].is_identity() ? 0 : elements * q;
        elements = elements / p * q;
    }
    const factor_list& inner = from_left ? second : first;  // is applied to X first
    const factor_list& outer = from_left ? first : second;
    return products <= multiply_adds(inner, from_left, others) + multiply_adds(outer, from_left, others);
}

/// X * K (`from_left` false) or K * X. A second kron on the same side is multiplied into the first one factor by factor where that
/// costs less, else the first product is evaluated.
template <bool FromLeft, class Matrix, class Kron>
auto multiply(Matrix&& x, const Kron& k) {
    using scalar = typename combined_scalar<typename bare<Matrix>::Scalar, typename Kron::Scalar>::type;
    auto result = promote<scalar>(to_product(std::forward<Matrix>(x)));
    if (FromLeft ? result.node().has_left : result.node().has_right) {
        if constexpr (is_kron<Kron> && std::is_same_v<typename Kron::Scalar, scalar>) {
            const factor_list& known = FromLeft ? result.node().left : result.node().right;
            const factor_list& first = FromLeft ? k.node().factors() : known;
            const factor_list& second = FromLeft ? known : k.node().factors();
            const auto others = static_cast<double>(FromLeft ? result.cols() : result.rows());
            if (multiply_by_factors(first, second) && pays_by_factors(first, second, FromLeft, others)) {
                homes where = result.homes();
                for (const device_executor* const home : k.homes()) {
                    add_home(where, home);
                }
                factor_list merged = products_of_factors<scalar>(first, second, where);
                (FromLeft ? result.edit().left : result.edit().right) = std::move(merged);
                result.edit().alpha = result.node().alpha * k.node().alpha();
                result.edit_homes() = where;
                result.node().check();
                return result;
            }
        }
        result = device_product<scalar>(evaluated(result));
    }
    kron_node<scalar> given;
    given.append(k.node());
    const kron_node<scalar> converted = detail::with_dense_factors(given, is_kron<Kron> ? 0 : detail::most_written_out);
    product_node<scalar>& node = result.edit();
    (FromLeft ? node.left : node.right) = converted.factors();
    (FromLeft ? node.has_left : node.has_right) = true;
    node.alpha = node.alpha * converted.alpha();
    if (const homes* const list = homes_of(k)) {
        for (const device_executor* const home : *list) {
            add_home(result.edit_homes(), home);
        }
    }
    node.check();
    return result;
}

}  // namespace device

template <class ScalarType>
template <class Matrix>
requires device::factor_or_x<Matrix> || device::host_matrix<Matrix> || device::is_kron<device::bare<Matrix>> ||
    device::host_kron<Matrix> || device::host_structure<Matrix> || device::is_identity_like<Matrix>
void device_kron<ScalarType>::append(Matrix&& factor) {
    using type = device::bare<Matrix>;
    if constexpr (device::is_identity_like<type>) {
        const auto identity = detail::shift_of(factor);
        detail::check_factor_order(identity.order);
        node_.append(leaf::identity(identity.order));
        node_.set_alpha(node_.alpha() * device::scalar_from<ScalarType>(identity.scale));
    } else if constexpr (device::is_kron<type>) {
        node_.append(factor.node());
        for (const device_executor* const home : factor.homes()) {
            device::add_home(homes_, home);
        }
    } else if constexpr (device::host_kron<type>) {
        node_.append(factor.node());
        node_ = detail::with_dense_factors(node_, detail::most_written_out);
    } else if constexpr (device::host_structure<type>) {
        append_structure(node_, std::forward<Matrix>(factor));
        node_ = detail::with_dense_factors(node_, detail::most_written_out);
    } else if constexpr (device::host_matrix<type>) {
        node_.append(
            device::promoted<ScalarType, typename type::Scalar>(device::host_leaf(std::forward<Matrix>(factor))));
    } else {
        const auto product = device::to_product(std::forward<Matrix>(factor));
        if (product.is_matrix()) {
            node_.append(device::promoted<ScalarType, typename type::Scalar>(product.node().x));
            node_.set_alpha(node_.alpha() * ScalarType(product.node().alpha));
        } else {
            device::operand value = device::operand_of(DeviceMatrix<typename type::Scalar>(product));
            node_.append(device::promoted<ScalarType, typename type::Scalar>(std::move(value.matrix)));
        }
        for (const device_executor* const home : product.homes()) {
            device::add_home(homes_, home);
        }
    }
}

/// kron(F1, ..., FN) with at least one factor in device memory; host (Eigen) factors are copied to the device when the
/// expression is evaluated, as diagonals of more than 256 rows; others with structure (shorter diagonals, sparse, ..) written out as dense ones
/// now. @throws shape_error when extents overflow; unsupported_error another factor with structure of more than 256 rows or columns
template <class... Factors>
requires(any_device_operand<Factors...> && !any_batch_operand<Factors...> &&
         !(sizeof...(Factors) == 1 && (device::is_factor_range<device::bare<Factors>> && ...)))
    [[nodiscard]] auto kron(Factors&&... factors) {
    using scalar =
        typename device::scalar_of_all<typename device::argument_scalar<device::bare<Factors>>::type...>::type;
    device_kron<scalar> k;
    (k.append(std::forward<Factors>(factors)), ...);
    k.node().check_extents();
    return k;
}
/// The Kronecker product of the elements of a vector or span, their number known at run time. An rvalue vector is owned as a whole; of an
/// lvalue vector or a span each element is borrowed.
template <class Range>
requires(any_device_operand<Range>&& device::is_factor_range<device::bare<Range>>)
    [[nodiscard]] auto kron(Range&& factors) {
    using element = std::remove_cv_t<typename device::bare<Range>::value_type>;
    device_kron<typename device::argument_scalar<element>::type> k;
    constexpr bool owned = !std::is_reference_v<Range> && requires { factors.get_allocator(); };
    for (auto& factor : factors) {
        if constexpr (owned) {
            k.append(element(std::move(factor)));  // copies where the vector is const
        } else {
            k.append(std::as_const(factor));
        }
    }
    k.node().check_extents();
    return k;
}
/// kron(F, F, ..., F) with `count` factors; count 0 is the 1 x 1 one. An rvalue F is stored once.
/// @throws shape_error for a negative count or when extents overflow.
template <class Factor>
requires any_device_operand<Factor>
[[nodiscard]] auto kron_power(Factor&& factor, std::int64_t count) {
    const auto one = kron(std::forward<Factor>(factor));
    using scalar = typename std::remove_const_t<decltype(one)>::Scalar;
    return device_kron<scalar>(detail::power_of(one.node(), count), one.homes());
}

/// @name Products. Shapes are checked here and again at evaluation.
/// @{
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const device_kron<Scalar>& k) {
    return device::multiply<false>(std::forward<Matrix>(x), k);
}
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const device_kron<Scalar>& k, Matrix&& x) {
    return device::multiply<true>(std::forward<Matrix>(x), k);
}
/// X on the device, all factors on the host.
template <class Matrix, class Kron>
requires(device::factor_or_x<Matrix>&& device::host_kron<Kron>) [[nodiscard]] auto operator*(Matrix&& x,
                                                                                             const Kron& k) {
    return device::multiply<false>(std::forward<Matrix>(x), k);
}
template <class Kron, class Matrix>
requires(device::factor_or_x<Matrix>&& device::host_kron<Kron>) [[nodiscard]] auto operator*(const Kron& k,
                                                                                             Matrix&& x) {
    return device::multiply<true>(std::forward<Matrix>(x), k);
}
template <class Matrix, class Scalar>
requires device::host_matrix<Matrix>
auto operator*(Matrix&&, const device_kron<Scalar>&) {
    static_assert(device::always_false<Matrix>,
                  "otimes: X is in host memory, but the Kronecker product has factors in device memory. Copy X first: "
                  "otimes::DeviceMatrix<Scalar> dX(X); dX * K.");
}
template <class Scalar, class Matrix>
requires device::host_matrix<Matrix>
auto operator*(const device_kron<Scalar>&, Matrix&&) {
    static_assert(device::always_false<Matrix>,
                  "otimes: X is in host memory, but the Kronecker product has factors in device memory. Copy X first: "
                  "otimes::DeviceMatrix<Scalar> dX(X); K * dX.");
}
/// @}

namespace device {

/// The same kron over `To`.
template <class To, class From>
device_kron<To> promoted_kron(const device_kron<From>& k) {
    kron_node<To> node;
    node.append(k.node());
    return {std::move(node), k.homes()};
}
template <class To, class Kron>
device_operator<To> to_operator(const Kron& k) {
    if constexpr (is_kron<Kron>) {
        return device_operator<To>(promoted_kron<To>(k));
    } else {
        device_operator<To> result(promoted_kron<To>(k.terms().front()));
        for (std::size_t i = 1; i < k.terms().size(); ++i) {
            result.append(device_operator<To>(promoted_kron<To>(k.terms()[i])), 1);
        }
        return result;
    }
}

/// X * S (`from_left` false) or S * X, term by term; identities alone leave X as it is.
template <bool FromLeft, class Matrix, class From>
auto multiply_by_terms(Matrix&& x, const device_operator<From>& s) {
    using scalar = typename combined_scalar<typename bare<Matrix>::Scalar, From>::type;
    auto value = promote<scalar>(to_product(std::forward<Matrix>(x)));
    if (FromLeft ? value.node().has_left : value.node().has_right) {
        value = device_product<scalar>(evaluated(value));  // once, not for each term
    }
    const auto term = [&](const device_kron<From>& k) {
        bool identity = true;
        for (const leaf& f : k.node().factors()) {
            identity = identity && f.is_identity();
        }
        if (!identity || k.rows() != (FromLeft ? value.rows() : value.cols())) {
            return multiply<FromLeft>(value, k);
        }
        device_product<scalar> multiple = value;
        multiple.edit().alpha = multiple.node().alpha * scalar(k.node().alpha());
        return multiple;
    };
    device_sum<scalar> result(term(s.terms().front()));
    for (std::size_t i = 1; i < s.terms().size(); ++i) {
        result.append(device_sum<scalar>(term(s.terms()[i])), 1);
    }
    return result;
}

}  // namespace device

/// kron(A, B) * kron(C, D) = kron(A * C, B * D), formed at once: as many small products as there are factors. Cost: those of the
/// factors alone. @throws shape_error the inner extents differ, unsupported_error they agree as a whole but not factor by factor
template <class First, class Second>
requires(std::is_same_v<First, Second>) [[nodiscard]] device_kron<First> operator*(const device_kron<First>& a,
                                                                                   const device_kron<Second>& b) {
    const auto text = [](const device_kron<First>& k) {
        std::string parts;
        for (const leaf& f : k.node().factors()) {
            parts += (parts.empty() ? "" : ", ") + detail::shape_text(f.rows(), f.cols());
        }
        return "kron of " + parts;
    };
    if (a.cols() != b.rows()) {
        throw shape_error("otimes: K1 * K2 in device memory: K1 is " + detail::shape_text(a.rows(), a.cols()) +
                          ", K2 is " + detail::shape_text(b.rows(), b.cols()) +
                          "; the columns of K1 must equal the rows of K2.");
    }
    if (!device::multiply_by_factors(a.node().factors(), b.node().factors())) {
        throw unsupported_error("otimes: K1 * K2 in device memory is formed factor by factor; K1 is a " + text(a) +
                                ", K2 a " + text(b) +
                                ". Give them factors that match, all in device memory, or multiply one after the "
                                "other: (dX * K1) * K2.");
    }
    device::homes where = a.homes();
    for (const device_executor* const home : b.homes()) {
        device::add_home(where, home);
    }
    kron_node<First> node;
    for (const leaf& f : device::products_of_factors<First>(a.node().factors(), b.node().factors(), where)) {
        node.append(f);
    }
    node.set_alpha(a.node().alpha() * b.node().alpha());
    return {std::move(node), where};
}

/// @name Multiples of sums of Kronecker products, and products with them. The sums: device/operator_sums.hpp.
/// @{
template <class Scalar>
[[nodiscard]] device_operator<Scalar> operator-(const device_operator<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(-1));
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const device_operator<Scalar>& s, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    return device::to_operator<scalar>(s).scaled(device::scalar_from<scalar>(amount));
}
template <class Amount, class Scalar>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const device_operator<Scalar>& s) { return s * amount; }
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const device_operator<Scalar>& s) {
    return device::multiply_by_terms<false>(std::forward<Matrix>(x), s);
}
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const device_operator<Scalar>& s, Matrix&& x) {
    return device::multiply_by_terms<true>(std::forward<Matrix>(x), s);
}

/// The Kronecker sum of square matrices, at least one of them in device memory: kron(A, I, I) + kron(I, B, I) + kron(I, I, C).
/// Applying it takes one mode product for each factor. @throws shape_error a factor that is not square
template <class... Factors>
requires any_device_operand<Factors...>
[[nodiscard]] auto kron_sum(Factors&&... factors) {
    using scalar =
        typename device::scalar_of_all<typename device::argument_scalar<device::bare<Factors>>::type...>::type;
    const auto order_of = [](const auto& factor) -> std::int64_t {
        if constexpr (device::is_identity_like<decltype(factor)>) {
            return detail::shift_of(factor).order;
        } else {
            if (factor.rows() != factor.cols()) {
                throw shape_error("otimes: kron_sum in device memory: a factor is " +
                                  detail::shape_text(factor.rows(), factor.cols()) +
                                  "; the terms of a Kronecker sum are square.");
            }
            return factor.rows();
        }
    };
    const std::int64_t orders[] = {order_of(factors)...};
    std::vector<device_kron<scalar>> terms;
    const auto add_term = [&](auto&& factor) {
        device_kron<scalar> k;
        for (std::size_t at = 0; at < sizeof...(Factors); ++at) {
            if (at == terms.size()) {
                k.append(std::forward<decltype(factor)>(factor));
            } else {
                k.edit().append(leaf::identity(orders[at]));
            }
        }
        k.node().check_extents();
        terms.push_back(std::move(k));
    };
    (add_term(std::forward<Factors>(factors)), ...);
    device_operator<scalar> result(terms.front());
    for (std::size_t i = 1; i < terms.size(); ++i) {
        result.append(device_operator<scalar>(terms[i]), 1);
    }
    return result;
}
/// @}

/// @name Scalar multiples: kept beside the operands, no pass over memory.
/// @{
template <class Matrix, class Amount>
requires(device::factor_or_x<Matrix>&& device::amount<Amount, typename device::bare<Matrix>::Scalar>) [[nodiscard]] auto
operator*(Matrix&& x, const Amount& amount) {
    using from = typename device::bare<Matrix>::Scalar;
    using scalar = detail::scaled_scalar<Amount, from>;
    auto result = device::promote<scalar>(device::to_product(std::forward<Matrix>(x)));
    result.edit().alpha = result.node().alpha * device::scalar_from<scalar>(amount);
    return result;
}
template <class Amount, class Matrix>
requires(device::factor_or_x<Matrix>&& device::amount<Amount, typename device::bare<Matrix>::Scalar>) [[nodiscard]] auto
operator*(const Amount& amount, Matrix&& x) {
    return std::forward<Matrix>(x) * amount;
}
template <class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator-(Matrix&& x) { return std::forward<Matrix>(x) * -1; }
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const device_kron<Scalar>& k, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    kron_node<scalar> node;
    node.append(k.node());
    node.set_alpha(node.alpha() * device::scalar_from<scalar>(amount));
    return device_kron<scalar>(std::move(node), k.homes());
}
template <class Amount, class Scalar>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const device_kron<Scalar>& k) { return k * amount; }
/// @}

/// @name Quotients by a number.
/// @{
template <class Matrix, class Amount>
requires(device::factor_or_x<Matrix>&& device::amount<Amount, typename device::bare<Matrix>::Scalar>) [[nodiscard]] auto
operator/(Matrix&& x, const Amount& amount) {
    using from = typename device::bare<Matrix>::Scalar;
    using scalar = detail::scaled_scalar<Amount, from>;
    auto result = device::promote<scalar>(device::to_product(std::forward<Matrix>(x)));
    result.edit().alpha = result.node().alpha / device::scalar_from<scalar>(amount);
    return result;
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const device_kron<Scalar>& k, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    kron_node<scalar> node;
    node.append(k.node());
    node.set_alpha(node.alpha() / device::scalar_from<scalar>(amount));
    return device_kron<scalar>(std::move(node), k.homes());
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const device_operator<Scalar>& s, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    return device::to_operator<scalar>(s).scaled(scalar(1) / device::scalar_from<scalar>(amount));
}
template <class Scalar>
[[nodiscard]] auto operator-(const device_kron<Scalar>& k) {
    return k * -1;
}
/// @}

/// @name Sums. Shapes are checked here and again at evaluation.
/// @{
namespace device {
template <class To, class Value>
device_sum<To> to_sum(Value&& value) {
    if constexpr (!is_sum<bare<Value>>) {
        return device_sum<To>(promote<To>(to_product(std::forward<Value>(value))));
    } else if constexpr (std::is_same_v<typename bare<Value>::Scalar, To>) {
        return std::forward<Value>(value);
    } else {
        device_sum<To> result(promote<To>(value.terms().front()));
        for (std::size_t i = 1; i < value.terms().size(); ++i) {
            result.append(device_sum<To>(promote<To>(value.terms()[i])), 1);
        }
        return result;
    }
}
template <class First, class Second>
auto sum_of(First&& a, Second&& b, int sign) {
    using scalar = typename combined_scalar<typename bare<First>::Scalar, typename bare<Second>::Scalar>::type;
    device_sum<scalar> result = to_sum<scalar>(std::forward<First>(a));
    result.append(to_sum<scalar>(std::forward<Second>(b)), sign);
    return result;
}
}  // namespace device

template <class First, class Second>
requires(device::summand<First>&& device::summand<Second>) [[nodiscard]] auto operator+(First&& a, Second&& b) {
    return device::sum_of(std::forward<First>(a), std::forward<Second>(b), 1);
}
template <class First, class Second>
requires(device::summand<First>&& device::summand<Second>) [[nodiscard]] auto operator-(First&& a, Second&& b) {
    return device::sum_of(std::forward<First>(a), std::forward<Second>(b), -1);
}
template <class Scalar>
[[nodiscard]] device_sum<Scalar> operator-(const device_sum<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(-1));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_sum<Scalar>
    operator*(const device_sum<Scalar>& s, const Amount& amount) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_sum<Scalar>
    operator/(const device_sum<Scalar>& s, const Amount& amount) {
    return s.scaled(device::scalar_from<Scalar>(1) / device::scalar_from<Scalar>(amount));
}
template <class Amount, class Scalar>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_sum<Scalar>
    operator*(const Amount& amount, const device_sum<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Matrix, class Destination>
requires(device::is_matrix<Matrix>&& device::is_matrix<device::bare<Destination>>&&
             std::is_same_v<typename Matrix::Scalar, typename device::bare<Destination>::Scalar>) Destination &&
operator+=(Destination&& y, const Matrix& x) {
    y += x.expression();
    return std::forward<Destination>(y);
}
template <class Matrix, class Destination>
requires(device::is_matrix<Matrix>&& device::is_matrix<device::bare<Destination>>&&
             std::is_same_v<typename Matrix::Scalar, typename device::bare<Destination>::Scalar>) Destination &&
operator-=(Destination&& y, const Matrix& x) {
    y -= x.expression();
    return std::forward<Destination>(y);
}
/// @}

/// @name In place: `X *= K` is X = X * K, `X *= 2` and `X /= 2` are multiples; through a temporary.
/// @{
template <class Destination, class Other>
requires(device::is_matrix<device::bare<Destination>> &&
         (device::is_kron<Other> || device::is_operator<Other> || device::host_kron<Other> ||
          device::amount<Other, typename device::bare<Destination>::Scalar>)) Destination &&
operator*=(Destination&& x, const Other& other) {
    x = x * other;
    return std::forward<Destination>(x);
}
template <class Destination, class Amount>
requires(device::is_matrix<device::bare<Destination>>&&
             device::amount<Amount, typename device::bare<Destination>::Scalar>) Destination &&
operator/=(Destination&& x, const Amount& amount) {
    x = x / amount;
    return std::forward<Destination>(x);
}
/// @}

/// @name What is not there, by a sentence.
/// @{
template <class First, class Second>
requires(device::factor_or_x<First>&& device::factor_or_x<Second>) auto operator*(First&&, Second&&) {
    static_assert(device::always_false<First>,
                  "otimes: the product of two device matrices. First matrix multiplies a Kronecker product: write "
                  "dX * kron(dA) where dA is one factor.");
}
template <class First, class Second>
requires(device::is_sum<device::bare<First>>&& device::is_kron<device::bare<Second>>) auto operator*(First&&,
                                                                                                     Second&&) {
    static_assert(device::always_false<First>,
                  "otimes: a sum in device memory times a Kronecker product. Evaluate the sum first: "
                  "DeviceMatrix<Scalar> dZ; dZ = dX * K1 + dX * K2; dZ * K.");
}
template <class First, class Second>
requires(device::is_kron<device::bare<First>>&& device::is_sum<device::bare<Second>>) auto operator*(First&&,
                                                                                                     Second&&) {
    static_assert(device::always_false<First>,
                  "otimes: a Kronecker product times a sum in device memory. Evaluate the sum first: "
                  "DeviceMatrix<Scalar> dZ; dZ = dX * K1 + dX * K2; K * dZ.");
}
/// @}

/// @name Plans.
/// @{
namespace device {
template <class Scalar, class Use>
void with_program(const device_product<Scalar>& value, const matrix_view& y, const Use& use) {
    value.node().check();
    program p;
    bindings b;
    lowering<Scalar> low(p, b);
    low.add_product(value.node(), y, false, Scalar(1));
    mark_result_on_device(p);
    use(p, b);
}
}  // namespace device

/// The plan for `Y = expression` with a contiguous Y of `Order`, on the executor that would evaluate it.
template <int Order = 0, class Scalar>
[[nodiscard]] plan make_plan(const device_product<Scalar>& value, const options& wishes = {}) {
    plan result;
    const matrix_view y{nullptr, value.rows(), value.cols(), Order == 1 ? value.cols() : 1,
                        Order == 1 ? 1 : value.rows()};
    const device_executor& where = device::executor_for(value.homes().empty() ? nullptr : value.homes()[0]);
    device::with_program(value, y, [&](const program& p, const bindings&) { result = where.make_plan_for(p, wishes); });
    return result;
}
/// The plan as text, see plan/explain.hpp; which kernels it launches is device_executor::describe.
template <int Order = 0, class Scalar>
[[nodiscard]] std::string explain(const device_product<Scalar>& value, const options& wishes = {}) {
    return explain(make_plan<Order>(value, wishes));
}
/// A sum is evaluated by one plan for each term.
template <int Order = 0, class Scalar>
plan make_plan(const device_sum<Scalar>&, const options& = {}) {
    static_assert(device::always_false<Scalar>,
                  "otimes: a sum in device memory has one plan for each term: make_plan(dX * K1), make_plan(dX * K2).");
    return {};
}
template <int Order = 0, class Scalar>
std::string explain(const device_sum<Scalar>& value, const options& wishes = {}) {
    return explain(make_plan<Order>(value, wishes));
}
/// Measures the planner's best few plans for `Y = expression` (a contiguous Y of `Order`) on the executor that would evaluate
/// it, each one first compared with the generic kernels' result, and makes the fastest right one the plan of this expression's
/// signature from now on, in this process and (`how.keep_on_disk`) by the cache folder in later ones. Nothing else searches:
/// an expression that was never tuned has the planner's deterministic plan, and options::deterministic ignores what was tuned.
/// Blocks. Cost: seconds (each candidate's kernels are compiled), and device memory for two more results.
/// @throws unsupported_error the expression is not one chain of products; device_error as evaluation.
template <int Order = 0, class Scalar>
tuning_report tune(const device_product<Scalar>& value, const options& wishes = {}, const tuning_options& how = {}) {
    tuning_report report;
    const matrix_view y{nullptr, value.rows(), value.cols(), Order == 1 ? value.cols() : 1,
                        Order == 1 ? 1 : value.rows()};
    const device_executor& where = device::executor_for(value.homes().empty() ? nullptr : value.homes()[0]);
    device::with_program(value, y,
                         [&](const program& p, const bindings& b) { report = where.tune(p, b, wishes, how); });
    return report;
}
/// Body of plan::run for device expressions. @throws unsupported_error another signature, alias_error Y overlaps an operand.
template <class Destination, class Scalar>
void run_bound_plan(const plan& p, Destination& y, const device_product<Scalar>& value, void* workspace,
                    std::int64_t available_bytes) {
    value.node().check();
    y.take_shape(value);
    device::require_shape(value, y.rows(), y.cols(), "plan::run");
    if (value.reads(y.view())) {
        throw alias_error(
            "otimes: plan::run: the destination overlaps an operand of the expression. A plan has no temporary "
            "for it; run into another matrix, or write Y = expression.");
    }
    device::scratch& s = device::thread_scratch();
    lowering<Scalar> low(s.program, s.bindings);
    low.add_product(value.node(), y.view(), false, Scalar(1));
    device::mark_result_on_device(s.program);
    if (!(s.program == p.source)) {
        throw unsupported_error("otimes: plan::run: the plan was made for another expression: " +
                                describe_difference(p.source, s.program) + ". Make a plan for this one.");
    }
    device::executor_for(y.home()).run(p, s.bindings, {workspace, available_bytes});
    s.bindings.clear();
}
/// @}

namespace device {
/// What `on(executor, dY)` returns.
template <class Destination>
class on_executor {
public:
    on_executor(const executor& e, Destination& y) : executor_(e), y_(y) {
        if (e.where() == placement::cpu) {
            throw unsupported_error("otimes::on(): executor '" + std::string(e.name()) +
                                    "' cannot reach device memory; name a GPU, or copy by to_host().");
        }
        if (e.where() == placement::gpus) {
            throw unsupported_error("otimes::on(): executor '" + std::string(e.name()) +
                                    "' cuts matrices in host memory; name one GPU, or use DistributedMatrix "
                                    "(otimes/distributed.hpp).");
        }
    }
    template <class Expression>
    void operator=(const Expression& value) const {
        const scoped_executor scope(executor_);
        y_ = value;
    }
    template <class Expression>
    void operator+=(const Expression& value) const {
        const scoped_executor scope(executor_);
        y_ += value;
    }
    template <class Expression>
    void operator-=(const Expression& value) const {
        const scoped_executor scope(executor_);
        y_ -= value;
    }

private:
    const executor& executor_;
    Destination& y_;
};
}  // namespace device

/// Names the executor of one assignment to device memory.
template <class Destination>
requires device::is_matrix<device::bare<Destination>>
[[nodiscard]] auto on(const executor& e, Destination&& y) {
    return device::on_executor<std::remove_reference_t<Destination>>(e, y);
}

}  // namespace otimes

#include <otimes/device_algebra.hpp>
