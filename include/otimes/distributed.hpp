// SPDX-License-Identifier: MIT
/// @file distributed.hpp
/// Public face of several GPUs and several processes: matrices that ranks hold parts of, and `dY = dX * kron(A, B, C)` on them.
/// Link otimes::distributed. Needs neither MPI's nor NCCL's headers nor Eigen.
///
///     auto ranks = otimes::make_communicator();            // the ranks of mpirun; or all GPUs of this process; or one CPU rank
///     otimes::DistributedMatrix<double> dX(ranks, M, P), dY(ranks);
///     dX.fill([](std::int64_t i, std::int64_t j) { return ...; });
///     dY = dX * kron(A, B, C);                             // every rank executes this line
///     dY -= 2 * dX * (kron(A, B, C) + kron(D, E, F)) - dX;  // sums: distributed_sums.hpp
///     Eigen::MatrixXd Y = dY.to_host();
///
/// Everything that touches a DistributedMatrix is collective, but filling it and reading a block: all processes make the same calls in
/// the same order. They compare what they are about to do first, and throw together where it differs, or where one of them cannot.
/// docs/distribution.md has the pictures.
#pragma once

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/exec/plan_cache.hpp>
#include <otimes/exec/transport.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/lower_tree.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/rank_factors.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distributed_planner.hpp>
#include <otimes/plan/distributed_text.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/signature.hpp>

#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
#include <otimes/exec/cpu.hpp>
#include <otimes/exec/evaluate.hpp>
#endif

namespace otimes {

/// How a communicator is made.
struct communicator_options {
    /// No call waits longer for other ranks; then it throws `device_error`.
    std::chrono::milliseconds deadline = std::chrono::minutes(1);
    /// GPUs where there are any; otherwise the ranks compute on the CPU.
    bool use_gpus = true;
    /// Of how many GPUs a communicator inside one process consists; 0: all. (A process of MPI has one.)
    std::int32_t gpu_count = 0;
    /// GPUs of one process that reach each other's memory store into it (large blocks beside other work go by their copy
    /// engines, so that the multiprocessors go on with the steps); false: NCCL's messages.
    bool exchange_by_copies = true;
    /// What the planner assumes of the links; 0 rates: from the machine.
    interconnect links{.bytes_per_second = 0};
    /// What every product is planned with. `workspace_limit_bytes` bounds what a rank takes beside X, Y and the factors.
    options wishes = {};
};

struct communicator_state;

/// A sum of which each rank evaluates its rows by itself.
struct sum_at_once {
    /// Which matrices its terms have in common, the same on all ranks: "X1 F1 F2, X1 F1 F3;". Empty: there is no such sum.
    std::string likeness;
    static constexpr char end_of_likeness = ';';
    /// Asked of rank 0 when it plans.
    std::function<programs_at_once()> programs;
};

/// The ranks that hold matrices together. A handle: copies mean the same ranks. They are used by one thread at a time: calls have an order,
/// the same on all ranks.
class communicator {
public:
    /// No ranks; what a default-constructed matrix has.
    communicator() = default;
    /// Ranks over a transport of your own. Collective. @throws unsupported_error no transport
    communicator(std::unique_ptr<transport> over, const communicator_options& how);

    /// Number of ranks.
    [[nodiscard]] std::int32_t size() const noexcept;
    /// The first (with MPI the only) rank of this process.
    [[nodiscard]] std::int32_t rank() const noexcept;
    /// Ranks of this process: 1 with MPI, all where one process has several GPUs.
    [[nodiscard]] std::int32_t local_count() const noexcept;
    /// Whether the parts of matrices lie on GPUs.
    [[nodiscard]] bool on_device() const noexcept;
    /// "4 ranks over mpi, each on cpu avx2 serial"
    [[nodiscard]] std::string name() const;
    /// What the ranks exchange by (exec/transport.hpp). @throws unsupported_error without ranks
    [[nodiscard]] transport& over() const;
    /// What assignments are planned with (communicator_options).
    [[nodiscard]] const options& wishes() const;
    /// Waits for all ranks, and for their queued work. @throws device_error; unsupported_error another rank makes another call
    void barrier() const;
    /// The sum over all ranks of one number of each local rank, added in the order of the ranks: the same bits everywhere and
    /// each time. Collective. @param of what it is the sum: the same on all ranks
    /// @throws shape_error not one number of each local rank; unsupported_error another rank makes another call
    [[nodiscard]] double sum(std::span<const double> of_local_ranks,
                             const std::string& of = "one number of each rank") const;

    /// The plan of a problem: rank 0's, for all. Kept, so that asking again costs one agreement. Collective.
    /// @param beside what the ranks compare with it
    /// @throws unsupported_error the ranks ask for different things; the text says what differs
    [[nodiscard]] std::shared_ptr<const distributed_plan> plan_for(const distributed_problem& problem,
                                                                   const std::string& beside = {}) const;
    /// The plan of several problems one after another, at least one, while a rank holds `copied_bytes` more; of one it is that of the other
    /// function. Collective. @param whole the same as programs, where the problems are a sum that sends nothing
    [[nodiscard]] std::shared_ptr<const distributed_plan> plan_for(const std::vector<distributed_problem>& problems,
                                                                   std::int64_t copied_bytes,
                                                                   const std::string& beside = {},
                                                                   const sum_at_once& whole = {}) const;
    /// Says that this rank is about to do `what`, and waits for the others to say so. Collective.
    /// @throws unsupported_error another rank is about to do something else, device_error another one cannot make its call
    void agree(const std::string& what) const;
    /// A call that this rank cannot make: the other ranks learn of it where they would have agreed. @throws device_error there
    void refuse(const std::string& why) const noexcept;
    /// The body of an assignment. @pre the matrices have the plan's shapes and distributions, and Y's memory is not X's. Addresses are those of the local
    /// ranks' blocks; `factors[i]` those of factor i, one for each local rank. Collective.
    /// @throws unsupported_error a plan of several in turn, of which each is run by itself; a plan for other ranks; another number of addresses
    void run(const distributed_plan& plan, std::span<const void* const> x, std::span<void* const> y,
             std::span<const std::vector<const void*>> factors, std::complex<double> alpha) const;
    /// Changes where the elements of a matrix are. Collective. @throws unsupported_error the ranks ask for different moves, another number
    /// of addresses than local ranks; device_error another one cannot make this call
    void move(const distribution& from, std::span<const void* const> source, const distribution& to,
              std::span<void* const> target, std::int64_t rows, std::int64_t cols, std::int64_t element_bytes) const;

    friend bool operator==(const communicator&, const communicator&) = default;

private:
    std::shared_ptr<communicator_state> state_;
};

namespace detail {
/// Behind what the ranks compare of an assignment `-=`, which is planned as `+=` is.
inline constexpr std::string_view subtracted = " -=";

/// A host matrix before it has its shape; of fixed extents, which cannot wait for it, zeros.
template <class Host>
Host of_zeros() {
    Host host;
    if constexpr (requires { host.setZero(); }) {
        host.setZero();
    }
    return host;
}
/// Gives it a shape, which one of fixed extents has already.
template <class Host>
void take_shape(Host& host, std::int64_t rows, std::int64_t cols) {
    if constexpr (requires { Host::SizeAtCompileTime; }) {
        if constexpr (Host::SizeAtCompileTime >= 0) {  // it has that shape
            return;
        }
    }
    host = Host(rows, cols);
}

/// What a rank does by itself in a collective call: where it cannot, the ranks that would wait for it are told.
/// @throws device_error there is no memory left; what `what` throws
template <class Do>
void or_refuse(const communicator& ranks, const Do& what) {
    const auto no_memory = [&ranks] {
        ranks.refuse("no memory");
        throw device_error("otimes: this process has not enough memory left for its part of a collective call.");
    };
    try {
        what();
    } catch (const std::bad_alloc&) {
        no_memory();
    } catch (const std::length_error&) {
        no_memory();
    } catch (...) {
        ranks.refuse("it failed");
        throw;
    }
}
/// Ranks inside this process, on the CPU, one after another.
[[nodiscard]] communicator in_process_communicator(const executor& where, std::int32_t ranks,
                                                   const communicator_options& how);
/// What make_communicator does, with the CPU executor of its caller.
[[nodiscard]] communicator found_communicator(const executor& where, const communicator_options& how);
}  // namespace detail

/// True where this program was started by mpirun (or srun, ...) or has called MPI_Init. Where otimes was built without MPI: started so as one of
/// several processes, which make_communicator() then refuses.
[[nodiscard]] bool started_by_mpi();
/// The GPUs of this process, one rank each, over NCCL. @throws device_error there is none, or no NCCL; the text says why; unsupported_error a
/// negative gpu_count
[[nodiscard]] communicator gpu_communicator(const communicator_options& how = {});

#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
inline namespace OTIMES_TARGET {
/// What there is: the ranks of mpirun (each on a GPU of its host where there are some, exchanging by NCCL, else on the CPU by
/// MPI); without mpirun the GPUs of this process; without GPUs one rank on the CPU. Collective.
/// @throws device_error a rank that does not answer within the deadline; one of several processes of a launcher, where otimes was built without MPI
[[nodiscard]] inline communicator make_communicator(const communicator_options& how = {}) {
    return otimes::detail::found_communicator(cpu(), how);
}
/// `ranks` ranks inside this process on the CPU, one after another: for tests, and to try a distribution on a laptop.
[[nodiscard]] inline communicator in_process(std::int32_t ranks, const communicator_options& how = {}) {
    return otimes::detail::in_process_communicator(cpu(), ranks, how);
}
}  // namespace OTIMES_TARGET
#endif

template <class Scalar>
class DistributedMatrix;
template <class Scalar>
class distributed_sum;

/// The factors of a Kronecker product where the ranks compute: copied there once, so that products copy nothing. Made by
/// `replicate(ranks, kron(A, B, C))`.
template <class ScalarType>
class replicated_kron {
public:
    using Scalar = ScalarType;

    [[nodiscard]] std::int64_t rows() const { return node_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node_.cols(); }
    [[nodiscard]] const kron_node<Scalar>& node() const noexcept { return node_; }
    [[nodiscard]] const communicator& ranks() const noexcept { return ranks_; }
    /// Address of factor `i` for each local rank.
    [[nodiscard]] const std::vector<const void*>& addresses(std::size_t i) const { return addresses_[i]; }

    /// A factor that has been copied, and where to.
    struct copied_factor {
        leaf source;  ///< keeps what it owns, so that nothing else gets its address
        leaf copy;
        std::vector<const void*> addresses;
        std::vector<std::shared_ptr<void>> memory;
    };

    /// @param known the factors that other krons of the same sum have: they are copied once
    replicated_kron(const communicator& ranks, const kron_node<Scalar>& source, std::vector<copied_factor>& known)
        : ranks_(ranks) {
        detail::or_refuse(ranks, [&] {
            node_.set_alpha(source.alpha());
            const kron_node<Scalar> taken = detail::rank_factors<true>(ranks.on_device(), source);
            for (const leaf& f : taken.factors()) {
                const auto same = std::find_if(known.begin(), known.end(), [&](const copied_factor& one) {
                    return f.is_dense() && detail::reads_alike(one.source, f);
                });
                if (same == known.end()) {
                    const std::size_t before = memory_.size();
                    add(f);
                    known.push_back({f, node_.factors()[node_.factors().size() - 1], addresses_.back(),
                                     std::vector<std::shared_ptr<void>>(
                                         memory_.begin() + static_cast<std::ptrdiff_t>(before), memory_.end())});
                    continue;
                }
                node_.append(same->copy);
                addresses_.push_back(same->addresses);
                memory_.insert(memory_.end(), same->memory.begin(), same->memory.end());
            }
        });
    }
    replicated_kron(const communicator& ranks, const kron_node<Scalar>& source)
        : replicated_kron(ranks, source, std::vector<copied_factor>()) {}

private:
    replicated_kron(const communicator& ranks, const kron_node<Scalar>& source, std::vector<copied_factor>&& known)
        : replicated_kron(ranks, source, known) {}
    void add(const leaf& f) {
        if (f.is_identity()) {
            node_.append(f);
            addresses_.emplace_back(static_cast<std::size_t>(ranks_.local_count()), nullptr);
            return;
        }
        if (detail::applied_as_it_is(f)) {  // the indices of a permutation are its own
            node_.append(f.kind() != factor_kind::sparse ? f
                         : f.real_elements()             ? detail::copied_sparse<detail::real_of<Scalar>>(f)
                                                         : detail::copied_sparse<Scalar>(f));
            addresses_.emplace_back(static_cast<std::size_t>(ranks_.local_count()),
                                    node_.factors()[node_.factors().size() - 1].view().data);
            return;
        }
        const matrix_view view = f.view();
        const bool diagonal = f.kind() == factor_kind::diagonal;
        if (f.space() != memory_space::host) {
            throw unsupported_error("otimes: replicate(ranks, kron(...)): factor " +
                                    std::to_string(addresses_.size() + 1) +
                                    " is in device memory. Give it in host memory.");
        }
        const std::int64_t columns = diagonal ? 1 : view.cols;  // that are copied
        std::vector<Scalar> packed(static_cast<std::size_t>(view.rows * columns));
        for (std::int64_t i = 0; i < view.rows; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) {
                packed[static_cast<std::size_t>(i * columns + j)] =
                    kron_node<Scalar>::element(f, view, i, diagonal ? i : j);
            }
        }
        const auto bytes = static_cast<std::int64_t>(packed.size() * sizeof(Scalar));
        std::vector<const void*> where;
        for (std::int32_t local = 0; local < ranks_.local_count(); ++local) {
            void* const memory = ranks_.over().allocate(local, bytes);
            memory_.push_back(std::shared_ptr<void>(
                memory, [ranks = ranks_, local, bytes](void* m) { ranks.over().release(local, m, bytes); }));
            ranks_.over().upload(local, memory, packed.data(), bytes);
            where.push_back(memory);
        }
        addresses_.push_back(std::move(where));
        const void* const first = addresses_.back().front();
        leaf copy = diagonal ? detail::diagonal_leaf(first, view.rows, 1, nullptr)
                             : leaf::borrowed({first, view.rows, view.cols, view.cols, 1});
        copy.set_space(ranks_.on_device() ? memory_space::device : memory_space::host);
        node_.append(std::move(copy));
    }

    communicator ranks_;
    kron_node<Scalar> node_;
    std::vector<std::vector<const void*>> addresses_;
    std::vector<std::shared_ptr<void>> memory_;
};

/// Copies the factors of a kron of host matrices to every rank of this process. Later changes of the matrices are not seen.
template <class Kron>
requires device::host_kron<Kron>
[[nodiscard]] replicated_kron<typename Kron::Scalar> replicate(const communicator& ranks, const Kron& k) {
    return {ranks, k.node()};
}

namespace device {
template <class Type>
inline constexpr bool is_replicated = false;
template <class Scalar>
inline constexpr bool is_replicated<replicated_kron<Scalar>> = true;
/// What may stand beside a DistributedMatrix.
template <class Type>
concept any_kron = host_kron<Type> || is_kron<bare<Type>> || is_replicated<bare<Type>>;
}  // namespace device

/// `alpha * K1 * dX * K2`, lazy; either kron may be missing. Borrows dX and the factors: evaluate it in the same statement. Of
/// `dX * K1 * K2` and `K1 * (K2 * dX)` the inner product is evaluated where it is written, into a matrix that the outer one keeps.
///
/// With K1, X is planned as its rows one after another, one row with the modes of both sides: Y = K1 X K2 is
/// vec_r(Y) = vec_r(X) * kron(K1^T, K2), where the strides of a factor say that it is transposed and nothing is moved for it.
template <class ScalarType>
class distributed_product {
public:
    using Scalar = ScalarType;

    explicit distributed_product(const DistributedMatrix<Scalar>& x) : x_(&x) {}
    /// Of a matrix that it keeps.
    explicit distributed_product(std::shared_ptr<const DistributedMatrix<Scalar>> x)
        : x_(x.get()), kept_(std::move(x)) {}
    /// A second kron on a side multiplies the value of what is there, which all ranks evaluate now.
    template <class Kron>
    void multiply_right(const Kron& k) {
        multiply(right_, k, "dX * K");
    }
    template <class Kron>
    void multiply_left(const Kron& k) {
        multiply(left_, k, "K * dX");
    }
    void scale(const Scalar& amount) { alpha_ = alpha_ * amount; }
    /// The value of a product or a sum, evaluated now. Collective. @throws as the assignment, on all ranks
    template <class Value>
    [[nodiscard]] static std::shared_ptr<const DistributedMatrix<Scalar>> value_of(const Value& lazy) {
        const communicator& ranks = lazy.ranks();
        std::shared_ptr<DistributedMatrix<Scalar>> value;
        detail::or_refuse(ranks, [&] { value = std::make_shared<DistributedMatrix<Scalar>>(ranks); });
        *value = lazy;
        return value;
    }

    [[nodiscard]] const DistributedMatrix<Scalar>& x() const noexcept { return *x_; }
    [[nodiscard]] const communicator& ranks() const noexcept { return x_->ranks(); }
    [[nodiscard]] Scalar alpha() const { return alpha_ * left_.node.alpha() * right_.node.alpha(); }
    [[nodiscard]] bool has_left() const noexcept { return left_.there; }
    [[nodiscard]] bool has_right() const noexcept { return right_.there; }
    [[nodiscard]] std::int64_t rows() const { return has_left() ? left_.node.rows() : x_->rows(); }
    [[nodiscard]] std::int64_t cols() const { return has_right() ? right_.node.cols() : x_->cols(); }

    /// A kron that could not be multiplied with: said here, where the other ranks are told, and not where the product is written.
    /// @throws what it was
    void require_made() const {
        if (failure_ != nullptr) {
            std::rethrow_exception(failure_);
        }
    }
    /// Whether the product is made of a copy of X that is cut by columns.
    [[nodiscard]] bool copies_x() const { return has_left() && cuts_both(x_->layout()); }
    /// What is done for an assignment, one after another. With a left kron there may be several: a matrix that is cut both ways is no
    /// single row that is cut, so X then goes into a copy that is cut by columns, and the product comes out of one.
    struct turns {
        std::vector<distributed_problem>
            problems;  ///< X's copy, Y's copy where it is added to, the product, the copy to Y
        bool x_is_copied = false;
        bool y_is_copied = false;
        std::int64_t copied_bytes = 0;  ///< that a rank holds for both copies
    };
    /// @throws as problem
    [[nodiscard]] turns in_turn(bool add, const distribution* result, const options& wishes) const {
        turns t;
        t.x_is_copied = copies_x();
        t.y_is_copied = has_left() && result != nullptr && cuts_both(*result);
        const distribution columns = cut_columns(x_->ranks().size());
        const auto copy = [&](std::int64_t rows, std::int64_t cols, const distribution& from, const distribution& to) {
            distributed_problem p = shared_part(wishes);
            p.rows = rows;
            p.operand = from;
            p.result_is_fixed = true;
            p.result = to;
            p.factors.push_back({dtype_of<Scalar>(), cols, cols, 0, 0, false, true, p.space});
            return p;
        };
        const auto counted = [&](std::int64_t rows, std::int64_t cols) {  // rank 0 holds the most
            return block_of(columns, rows, cols, 0).elements() * static_cast<std::int64_t>(sizeof(Scalar));
        };
        distributed_problem product = problem(add, t.y_is_copied ? &columns : result, wishes);
        if (t.x_is_copied) {
            t.problems.push_back(copy(x_->rows(), x_->cols(), x_->layout(), columns));
            t.copied_bytes += counted(x_->rows(), x_->cols());
        }
        if (t.y_is_copied && add) {
            t.problems.push_back(copy(rows(), cols(), *result, columns));
        }
        t.problems.push_back(std::move(product));
        if (t.y_is_copied) {
            t.problems.push_back(copy(rows(), cols(), columns, *result));
            t.copied_bytes += counted(rows(), cols());
        }
        return t;
    }
    /// What all ranks must agree on; with a left kron X is cut by columns where it is cut both ways. @pre then `result` is not cut both
    /// ways. @throws shape_error, unsupported_error; as require_made
    [[nodiscard]] distributed_problem problem(bool add, const distribution* result, const options& wishes) const {
        require_made();
        distributed_problem p = shared_part(wishes);
        p.rows = has_left() ? 1 : x_->rows();
        p.add = add;
        p.operand = has_left() ? as_one_row(taken_layout(), x_->rows(), x_->cols()) : x_->layout();
        if (has_left()) {
            p.result_is_fixed = true;
            p.result = as_one_row(result != nullptr ? *result : free_result(), rows(), cols());
        } else if (result != nullptr) {
            p.result_is_fixed = true;
            p.result = *result;
        }
        const matrix_view x{nullptr, x_->rows(), x_->cols(), 1, 1};
        if (has_left() && left_.node.cols() != x_->rows()) {
            detail::throw_mismatch(x, left_.node.factors(), true);
        }
        if (has_right() && right_.node.rows() != x_->cols()) {
            detail::throw_mismatch(x, right_.node.factors(), false);
        }
        for (const leaf& f : left_.node.factors()) {
            distributed_factor d = factor_of(f, p.space);
            std::swap(d.p_extent, d.q_extent);
            std::swap(d.row_stride, d.col_stride);
            p.factors.push_back(d);
        }
        for (const leaf& f : right_.node.factors()) {
            p.factors.push_back(factor_of(f, p.space));
        }
        if (!has_right()) {  // the columns stay
            p.factors.push_back({dtype_of<Scalar>(), x_->cols(), x_->cols(), 0, 0, false, true, p.space});
        }
        return p;
    }
    /// The distribution of a new Y where there is a left kron: X's, as far as that has a meaning for Y.
    [[nodiscard]] distribution free_result() const {
        const distribution x = taken_layout();
        distribution y{.row_parts = x.row_parts, .col_parts = x.col_parts};
        y.first_rank = x.first_rank;
        return y.row_parts == 1 && cols() == x_->cols() ? x : y;
    }

    /// The product as a local rank evaluates it by itself, on `rows` rows of X at `x`. @pre they are the rows of its part of Y, or with a left
    /// kron all rows of X. @param copies as addresses(): the factors of all sides
    [[nodiscard]] product_node<Scalar> on_rank(std::int32_t local, const void* x, std::int64_t rows,
                                               const std::vector<std::vector<const void*>>& copies) const {
        const bool on_device = x_->ranks().on_device();
        product_node<Scalar> node;
        node.x = leaf::borrowed({x, rows, x_->cols(), x_->cols(), 1});
        node.x.set_space(on_device ? memory_space::device : memory_space::host);
        node.alpha = alpha();
        node.complex_scale = !(detail::real_part_of(node.alpha) == node.alpha);
        std::size_t at = 0;
        for (const side* s : {&left_, &right_}) {
            factor_list& factors = s == &left_ ? node.left : node.right;
            (s == &left_ ? node.has_left : node.has_right) = s->there;
            for (const leaf& f : s->node.factors()) {
                const void* const data = copies[at++][static_cast<std::size_t>(local)];
                factors.push_back(data == f.view().data ? f : moved_to(data, f));
            }
        }
        return node;
    }

    /// Address of each factor of `problem` for each local rank.
    [[nodiscard]] std::vector<std::vector<const void*>> addresses() const {
        std::vector<std::vector<const void*>> result;
        for (const side* s : {&left_, &right_}) {
            if (!s->addresses.empty()) {
                result.insert(result.end(), s->addresses.begin(), s->addresses.end());
                continue;
            }
            for (const leaf& f : s->node.factors()) {
                if (f.space() == memory_space::device && x_->ranks().local_count() > 1) {
                    throw unsupported_error(
                        "otimes: dX * kron(...): a factor lies in the memory of one GPU, but this process has " +
                        std::to_string(x_->ranks().local_count()) +
                        " of them. Use host factors, or K = otimes::replicate(ranks, kron(...)).");
                }
                result.emplace_back(static_cast<std::size_t>(x_->ranks().local_count()), f.view().data);
            }
        }
        if (!has_right()) {
            result.emplace_back(static_cast<std::size_t>(x_->ranks().local_count()), nullptr);
        }
        return result;
    }

private:
    struct side {
        kron_node<Scalar> node;
        std::vector<std::vector<const void*>> addresses;  ///< of replicated factors
        bool there = false;
    };
    /// How X is cut where a left kron takes it.
    [[nodiscard]] distribution taken_layout() const {
        return cuts_both(x_->layout()) ? cut_columns(x_->ranks().size()) : x_->layout();
    }
    [[nodiscard]] distributed_problem shared_part(const options& wishes) const {
        distributed_problem p;
        p.type = dtype_of<Scalar>();
        p.space = x_->ranks().on_device() ? memory_space::device : memory_space::host;
        p.ranks = x_->ranks().size();
        p.wishes = wishes;
        return p;
    }
    template <class Kron>
    void multiply(side& s, const Kron& k, const char* what) {
        if (s.there) {
            *this = distributed_product(value_of(*this));
        }
        s.there = true;
        try {
            append(s, k, what);
        } catch (...) {
            failure_ = failure_ != nullptr ? failure_ : std::current_exception();
        }
    }
    template <class Kron>
    void append(side& s, const Kron& k, const char* what) {
        s.node.append(k.node());
        s.node = detail::rank_factors<std::is_same_v<typename Kron::Scalar, Scalar>>(x_->ranks().on_device(), s.node);
        if constexpr (device::is_replicated<Kron>) {
            if (!(k.ranks() == x_->ranks())) {
                throw unsupported_error("otimes: " + std::string(what) +
                                        ": the factors were replicated on another communicator.");
            }
            for (std::size_t i = 0; i < k.node().factors().size(); ++i) {
                s.addresses.push_back(k.addresses(i));
            }
        }
    }
    /// A dense or diagonal factor that lies elsewhere.
    [[nodiscard]] static leaf moved_to(const void* data, const leaf& f) {
        matrix_view view = f.view();
        view.data = data;
        leaf moved = f.kind() == factor_kind::diagonal
                         ? detail::diagonal_leaf(data, view.rows, view.row_stride + view.col_stride, nullptr)
                         : leaf::borrowed(view);
        if (f.conjugated()) {
            moved.conjugate();
        }
        moved.set_real_elements(f.real_elements());
        moved.set_space(f.space());
        return moved;
    }
    [[nodiscard]] static distributed_factor factor_of(const leaf& f, memory_space space) {
        const matrix_view view = f.view();
        distributed_factor d;
        d.type = f.real_elements() ? dtype_of<detail::real_of<Scalar>>() : dtype_of<Scalar>();
        d.p_extent = view.rows;
        d.q_extent = view.cols;
        d.row_stride = view.row_stride;
        d.col_stride = view.col_stride;
        d.conjugate = f.conjugated() && !f.real_elements();
        d.identity = f.is_identity();
        d.diagonal = f.kind() == factor_kind::diagonal;
        if (f.kind() == factor_kind::sparse || f.kind() == factor_kind::permutation) {
            d.structure = f.kind();
            d.stored = f.kind() == factor_kind::sparse
                           ? static_cast<const sparse_operand*>(view.data)->elements().stored()
                           : 0;
        }
        d.space = f.is_identity() ? space : f.space();
        return d;
    }

    const DistributedMatrix<Scalar>* x_;
    std::shared_ptr<const DistributedMatrix<Scalar>> kept_;
    side left_;
    side right_;
    Scalar alpha_ = Scalar(1);
    std::exception_ptr failure_;
};

namespace detail {
/// Of each term, of each of its factors, the address for each local rank.
using factor_addresses = std::vector<std::vector<std::vector<const void*>>>;

/// What the ranks have agreed on before products are evaluated, one added to the other.
template <class Scalar>
struct agreed_terms {
    std::vector<typename distributed_product<Scalar>::turns> turns;  ///< of each term
    std::vector<distributed_problem> problems;                       ///< of all turns
    std::int64_t copied_bytes = 0;
    factor_addresses factors;
    std::shared_ptr<const distributed_plan> plan;
    distribution result;  ///< Y's

    /// @throws as distributed_product::in_turn; shape_error terms of unequal shapes; unsupported_error of two communicators
    void ask(std::span<const distributed_product<Scalar>> terms, bool add, const distribution* wanted,
             const options& wishes) {
        turns.clear();
        problems.clear();
        copied_bytes = 0;
        const distributed_product<Scalar>& first = terms.front();
        for (const distributed_product<Scalar>& term : terms) {
            const std::string position = std::to_string(turns.size() + 1);
            if (!(term.x().ranks() == first.x().ranks())) {
                throw unsupported_error("otimes: a sum over ranks: the first term and term " + position +
                                        " belong to different communicators.");
            }
            turns.push_back(term.in_turn(add || !turns.empty(), wanted, wishes));
            if (term.rows() != first.rows() || term.cols() != first.cols()) {
                throw shape_error("otimes: a sum over ranks: the first term is " +
                                  shape_text(first.rows(), first.cols()) + ", term " + position + " is " +
                                  shape_text(term.rows(), term.cols()) + "; they must be equal.");
            }
            for (const distributed_problem& one : turns.back().problems) {
                planning::check_problem(one);
                problems.push_back(one);
            }
            copied_bytes += turns.back().copied_bytes;
        }
    }
};

/// A sum of which each rank evaluates its rows of Y by itself, as it would be evaluated in one memory.
template <class Scalar>
class rows_at_once {
public:
    using product = distributed_product<Scalar>;

    /// @pre the terms have been asked for (agreed_terms) and are of equal shapes. @param y how Y is cut
    rows_at_once(std::span<const product> terms, const distribution& y) : terms_(terms), y_(y) {}

    /// Does nothing have to be sent, and is there something?
    [[nodiscard]] bool possible() const {
        if (terms_.size() < 2 || terms_.front().rows() == 0 || terms_.front().cols() == 0) {
            return false;
        }
        return std::all_of(terms_.begin(), terms_.end(), [this](const product& term) {
            const distribution& x = term.x().layout();
            return term.x().rows() > 0 && term.x().cols() > 0 && x.col_parts == 1 && y_.col_parts == 1 &&
                   x.row_parts == y_.row_parts && x.first_rank == y_.first_rank &&
                   (!term.has_left() || y_.row_parts == 1);
        });
    }
    /// See sum_at_once::likeness.
    [[nodiscard]] std::string likeness(const factor_addresses& factors) const {
        std::vector<const void*> known;
        const auto number_of = [&known](const void* object) {
            const auto at = std::find(known.begin(), known.end(), object);
            const auto number = at - known.begin();
            if (at == known.end()) {
                known.push_back(object);
            }
            return std::to_string(number + 1);
        };
        std::string text;
        for (std::size_t i = 0; i < terms_.size(); ++i) {
            text += (i == 0 ? "X" : ", X") + number_of(&terms_[i].x()) + (is_complex_number(i) ? " complex" : "");
            for (const std::vector<const void*>& copies : factors[i]) {
                text += " F" + (copies.front() == nullptr ? std::string("-") : number_of(copies.front()));
            }
        }
        return text + sum_at_once::end_of_likeness;
    }
    /// The programs of both forms, for each number of rows. Addresses stand for the matrices alone.
    [[nodiscard]] programs_at_once programs(const factor_addresses& factors, bool add) const {
        programs_at_once result;
        result.terms = static_cast<std::int64_t>(terms_.size());
        for (const std::int32_t part : {0, y_.row_parts - 1}) {
            const std::int64_t rows = part_of(terms_.front().rows(), y_.row_parts, part).size();
            if (rows > 0 && std::find(result.rows.begin(), result.rows.end(), rows) == result.rows.end()) {
                result.rows.push_back(rows);
            }
        }
        std::vector<const void*> x;
        for (const product& term : terms_) {
            x.push_back(&term.x());
        }
        Scalar y(0);
        for (const std::int64_t rows : result.rows) {
            bindings ignored;
            result.apart.emplace_back();
            lowering<Scalar> one_by_one(result.apart.back(), ignored);
            static_cast<void>(lower(one_by_one, factors, 0, rows, x, &y, add, Scalar(1), device::sum_form::apart,
                                    result.apart.back(), ignored));
            program shared;
            lowering<Scalar> together(shared, ignored);
            if (lower(together, factors, 0, rows, x, &y, add, Scalar(1), device::sum_form::shared, shared, ignored)) {
                result.shared.push_back(std::move(shared));
            }
        }
        if (result.shared.size() < result.rows.size()) {
            result.shared.clear();
        }
        return result;
    }
    /// Y (+)= scale * sum on the local ranks, by the plan that they have agreed on. @param y their blocks
    void run(const distributed_plan& by, const factor_addresses& factors, const std::vector<void*>& y, bool add,
             const Scalar& scale) const {
        const communicator& ranks = terms_.front().x().ranks();
        for (std::int32_t local = 0; local < ranks.local_count(); ++local) {
            const std::int64_t rows =
                block_of(y_, terms_.front().rows(), terms_.front().cols(), ranks.rank() + local).row_count();
            if (rows == 0) {
                continue;
            }
            std::vector<const void*> x;
            for (const product& term : terms_) {
                x.push_back(term.x().data(local));
            }
            program p;
            bindings b;
            lowering<Scalar> low(p, b);
            static_cast<void>(lower(low, factors, local, rows, x, y[static_cast<std::size_t>(local)], add, scale,
                                    by.shares_steps ? device::sum_form::shared : device::sum_form::apart, p, b));
            const auto at = std::find(by.rows_at_once.begin(), by.rows_at_once.end(), rows) - by.rows_at_once.begin();
            const plan& steps = by.at_once[static_cast<std::size_t>(at)];
            if (!(p == steps.source)) {
                throw unsupported_error("otimes: a sum over ranks: rank " + std::to_string(ranks.rank() + local) +
                                        " has another signature than the plan that rank 0 made: " +
                                        describe_difference(steps.source, p) + ".");
            }
            ranks.over().executor_of(local).run(steps, b, {});
        }
    }

private:
    [[nodiscard]] bool is_complex_number(std::size_t i) const {
        const Scalar alpha = terms_[i].alpha();
        return !(real_part_of(alpha) == alpha);
    }
    /// @param low into p and b; it keeps what the bindings point to. @return as device::lower_terms
    bool lower(lowering<Scalar>& low, const factor_addresses& factors, std::int32_t local, std::int64_t rows,
               const std::vector<const void*>& x, void* y, bool add, const Scalar& scale, device::sum_form form,
               program& p, bindings& b) const {
        const auto term = [&](std::size_t i) {
            return device_product<Scalar>(
                terms_[i].on_rank(local, x[i], terms_[i].has_left() ? terms_[i].x().rows() : rows, factors[i]), {});
        };
        device_sum<Scalar> sum(term(0));
        for (std::size_t i = 1; i < terms_.size(); ++i) {
            sum.append(device_sum<Scalar>(term(i)), 1);
        }
        const std::int64_t cols = terms_.front().cols();
        const bool on_device = terms_.front().x().ranks().on_device();
        // The cpu executor's programs are real or complex as a whole.
        if (is_complex_scalar<Scalar> && !on_device &&
            !std::all_of(sum.terms().begin(), sum.terms().end(), [](const device_product<Scalar>& one) {
                return is_real_problem(one.node(), one.node().alpha);
            })) {
            low.compute_complex();
        }
        if (!device::lower_terms(low, device::order_of_terms(sum), {y, rows, cols, cols, 1}, add, scale, form, p, b)) {
            return false;
        }
        if (on_device) {
            device::mark_result_on_device(p);
        }
        return true;
    }

    std::span<const product> terms_;
    distribution y_;
};

/// The distribution that a new Y gets from a product alone. Collective.
template <class Scalar>
distribution chosen_result(const distributed_product<Scalar>& term, const distributed_plan& plan) {
    return term.has_left() ? term.free_result() : plan.result;
}

/// Plans `Y = t1; Y += t2; ...`. A Y without a distribution gets, of those that the terms would give it, the one that costs least for all
/// of them. Collective. @throws as agreed_terms::ask, communicator::plan_for
template <class Scalar>
agreed_terms<Scalar> agree_on_terms(std::span<const distributed_product<Scalar>> terms, bool add,
                                    const distribution* wanted, const options& wishes, const std::string& beside) {
    const communicator ranks = terms.front().x().ranks();
    agreed_terms<Scalar> agreed;
    or_refuse(ranks, [&] {
        for (const distributed_product<Scalar>& term : terms) {
            term.require_made();
            agreed.factors.push_back(term.addresses());
        }
    });
    const auto plan = [&](std::span<const distributed_product<Scalar>> of, const distribution* result,
                          const options& within) {
        sum_at_once whole;
        or_refuse(ranks, [&] {
            agreed.ask(of, add, result, within);
            if (const rows_at_once<Scalar> rows(of, result != nullptr ? *result : distribution()); rows.possible()) {
                whole = {rows.likeness(agreed.factors),
                         [rows, &agreed, add] { return rows.programs(agreed.factors, add); }};
            }
        });
        agreed.plan = ranks.plan_for(agreed.problems, agreed.copied_bytes, beside, whole);
        agreed.result = result != nullptr ? *result : chosen_result(of.front(), *agreed.plan);
    };
    if (wanted != nullptr || terms.size() == 1) {
        plan(terms, wanted, wishes);
        return agreed;
    }
    or_refuse(ranks, [&] { agreed.ask(terms, add, nullptr, wishes); });  // all terms, before any is planned
    options unlimited = wishes;                                          // a limit is for all terms together
    unlimited.workspace_limit_bytes = options().workspace_limit_bytes;
    std::vector<distribution> candidates;
    // Which one costs least depends on the number of rows and on the limit: a deterministic sum gets the first term's.
    for (std::size_t i = 0; i < (wishes.deterministic ? 1 : terms.size()); ++i) {
        plan(terms.subspan(i, 1), nullptr, unlimited);
        if (std::find(candidates.begin(), candidates.end(), agreed.result) == candidates.end()) {
            candidates.push_back(agreed.result);
        }
    }
    agreed_terms<Scalar> best;
    std::exception_ptr refused;
    std::int64_t least = 0;
    for (const distribution& candidate : candidates) {
        try {
            plan(terms, &candidate, wishes);
        } catch (const budget_error& why) {  // on all ranks
            if (refused == nullptr || why.least_bytes() < least) {
                least = why.least_bytes();
                refused = std::current_exception();
            }
            continue;
        }
        if (best.plan == nullptr || agreed.plan->predicted_seconds < best.plan->predicted_seconds) {
            best = agreed;
        }
    }
    if (best.plan == nullptr) {
        std::rethrow_exception(refused);
    }
    return best;
}
}  // namespace detail

/// A dense matrix of which every rank holds a block (plan/distribution.hpp), row-major, in the memory of its executor.
template <class ScalarType>
class DistributedMatrix {
    static_assert(dtype_of<ScalarType>() != dtype::other,
                  "otimes: a DistributedMatrix holds float, double or their complex types.");

public:
    using Scalar = ScalarType;

    /// No ranks, no elements; the first assignment gives it both.
    DistributedMatrix() = default;
    /// No elements; the first assignment gives it a shape and the distribution that costs least.
    explicit DistributedMatrix(communicator ranks) : ranks_(std::move(ranks)) {}
    /// Uninitialised. Rows are cut over all ranks. @throws shape_error, device_error. Collective.
    DistributedMatrix(communicator ranks, std::int64_t rows, std::int64_t cols)
        : DistributedMatrix(ranks, rows, cols, cut_rows(ranks.size())) {}
    DistributedMatrix(communicator ranks, std::int64_t rows, std::int64_t cols, const distribution& layout)
        : ranks_(std::move(ranks)) {
        resize(rows, cols, layout);
    }
    DistributedMatrix(const DistributedMatrix& other) : ranks_(other.ranks_) { copy_from(other); }
    DistributedMatrix(DistributedMatrix&& other) noexcept { swap(other); }
    DistributedMatrix& operator=(const DistributedMatrix& other) {
        if (this != &other) {
            DistributedMatrix copy(other);
            swap(copy);
        }
        return *this;
    }
    DistributedMatrix& operator=(DistributedMatrix&& other) noexcept {
        swap(other);
        return *this;
    }
    ~DistributedMatrix() = default;

    /// Y = alpha * X * K. Takes the shape; a Y that has the right shape keeps its distribution, another gets the one that costs
    /// least. Safe when Y is X. Collective.
    DistributedMatrix& operator=(const distributed_product<Scalar>& value) {
        assign({&value, 1}, assignment::set);
        return *this;
    }
    /// @throws shape_error on every rank when the shapes differ
    DistributedMatrix& operator+=(const distributed_product<Scalar>& value) {
        assign({&value, 1}, assignment::add);
        return *this;
    }
    DistributedMatrix& operator-=(const distributed_product<Scalar>& value) {
        assign({&value, 1}, assignment::subtract);
        return *this;
    }
    /// Y = X1 * K1 + X2 * K2 + ...: as above, and safe when Y is among the operands. @throws shape_error terms of unequal shapes. Collective.
    DistributedMatrix& operator=(const distributed_sum<Scalar>& value) {
        assign(value.terms(), assignment::set);
        return *this;
    }
    DistributedMatrix& operator+=(const distributed_sum<Scalar>& value) {
        assign(value.terms(), assignment::add);
        return *this;
    }
    DistributedMatrix& operator-=(const distributed_sum<Scalar>& value) {
        assign(value.terms(), assignment::subtract);
        return *this;
    }
    DistributedMatrix& operator+=(const DistributedMatrix& other) { return *this += other.expression(); }
    DistributedMatrix& operator-=(const DistributedMatrix& other) { return *this -= other.expression(); }

    [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }
    [[nodiscard]] const communicator& ranks() const noexcept { return ranks_; }
    [[nodiscard]] const distribution& layout() const noexcept { return layout_; }
    [[nodiscard]] distributed_product<Scalar> expression() const { return distributed_product<Scalar>(*this); }

    /// @name The block of a local rank (from 0): row-major, in its executor's memory.
    /// @{
    /// @throws shape_error there is no such local rank
    [[nodiscard]] held_block block(std::int32_t local = 0) const {
        if (local < 0 || (local > 0 && local >= ranks_.local_count())) {
            throw shape_error("otimes: DistributedMatrix::block(" + std::to_string(local) + "): this process has " +
                              planning::counted(ranks_.local_count(), "rank") + ", counted from 0.");
        }
        return block_of(layout_, rows_, cols_, ranks_.rank() + local);
    }
    /// Null where the rank has no elements, and where there is no such rank.
    [[nodiscard]] Scalar* data(std::int32_t local = 0) noexcept { return static_cast<Scalar*>(address(local)); }
    [[nodiscard]] const Scalar* data(std::int32_t local = 0) const noexcept {
        return static_cast<const Scalar*>(address(local));
    }
    /// @}

    /// Sets element (i, j) to value(i, j); each process asks for its own elements only.
    template <class Function>
    void fill(const Function& value) {
        for (std::int32_t local = 0; local < ranks_.local_count(); ++local) {
            const held_block b = block(local);
            std::vector<Scalar> staged(static_cast<std::size_t>(b.elements()));
            for (std::int64_t i = 0; i < b.row_count(); ++i) {
                for (std::int64_t j = 0; j < b.col_count(); ++j) {
                    staged[static_cast<std::size_t>(i * b.col_count() + j)] = value(b.rows.begin + i, b.cols.global(j));
                }
            }
            upload(local, staged.data());
        }
    }
    /// Takes the elements of a host matrix of the same shape, which every process must have (each reads its part only, and none waits).
    template <device::host_matrix Host>
    void from_host(const Host& host) {
        static_assert(
            std::is_same_v<typename Host::Scalar, Scalar>,
            "otimes: DistributedMatrix: the host matrix has another scalar type. Convert it with .cast<Scalar>().");
        require_shape(host.rows(), host.cols());
        const leaf kept = device::host_leaf(host);
        const matrix_view v = kept.view();
        fill([&](std::int64_t i, std::int64_t j) {
            return static_cast<const Scalar*>(v.data)[i * v.row_stride + j * v.col_stride];
        });
    }
    /// Takes the elements of rank `root`'s host matrix; the others' is not looked at. Collective. @throws shape_error another shape,
    /// no such rank; the other ranks then throw too
    template <device::host_matrix Host>
    void scatter(const Host& host, std::int32_t root = 0) {
        distribution all;
        all.first_rank = root;
        DistributedMatrix whole(ranks_);
        detail::or_refuse(ranks_, [&] {
            whole.take(rows_, cols_, all);
            if (whole.holds_all()) {
                whole.from_host(host);
            }
        });
        ranks_.move(all, whole.sources(), layout_, targets(), rows_, cols_, sizeof(Scalar));
        ranks_.over().synchronize();
    }
    /// The whole matrix on rank `root`; elsewhere a host matrix of no elements, or of a type of fixed extents zeros. Collective. @throws shape_error a
    /// type of other fixed extents, on all ranks; no such rank
    template <class Host = Eigen::Matrix<Scalar, -1, -1, 0, -1, -1>>
    [[nodiscard]] Host gather(std::int32_t root = 0) const {
        static_assert(std::is_same_v<typename Host::Scalar, Scalar>,
                      "otimes: DistributedMatrix: the host matrix asked for has another scalar type. Write "
                      "dX.to_host().cast<Scalar>().");
        distribution all;
        all.first_rank = root;
        DistributedMatrix whole(ranks_);
        Host host = detail::of_zeros<Host>();
        std::vector<Scalar> staged;
        detail::or_refuse(ranks_, [&] {  // all memory before anything is sent
            device::require_host_shape<Host>("DistributedMatrix::gather, to_host", rows_, cols_);
            whole.take(rows_, cols_, all);
            if (whole.holds_all()) {
                detail::take_shape(host, rows_, cols_);
                staged.resize(static_cast<std::size_t>(rows_ * cols_));
            }
        });
        ranks_.move(layout_, sources(), all, whole.targets(), rows_, cols_, sizeof(Scalar));
        if (!staged.empty()) {
            const std::int32_t local = root - ranks_.rank();
            ranks_.over().download(local, staged.data(), whole.data(local), bytes_of(whole.block(local)));
            for (std::int64_t i = 0; i < rows_; ++i) {
                for (std::int64_t j = 0; j < cols_; ++j) {
                    host(i, j) = staged[static_cast<std::size_t>(i * cols_ + j)];
                }
            }
        }
        ranks_.over().synchronize();
        return host;
    }
    /// The whole matrix on every process. Collective. @throws as gather
    template <class Host = Eigen::Matrix<Scalar, -1, -1, 0, -1, -1>>
    [[nodiscard]] Host to_host() const {
        const Host at_root = gather<Host>(0);
        Host host = detail::of_zeros<Host>();
        std::string bytes;
        detail::or_refuse(ranks_, [&] {
            detail::take_shape(host, rows_, cols_);
            bytes.resize(static_cast<std::size_t>(rows_ * cols_) * sizeof(Scalar));
        });
        ranks_.agree("the whole matrix on every process");
        if (ranks_.rank() == 0) {
            auto* const out = reinterpret_cast<Scalar*>(bytes.data());
            for (std::int64_t i = 0; i < rows_; ++i) {
                for (std::int64_t j = 0; j < cols_; ++j) {
                    out[i * cols_ + j] = at_root(i, j);
                }
            }
        }
        ranks_.over().broadcast(bytes);
        const auto* const in = reinterpret_cast<const Scalar*>(bytes.data());
        for (std::int64_t i = 0; i < rows_; ++i) {
            for (std::int64_t j = 0; j < cols_; ++j) {
                host(i, j) = in[i * cols_ + j];
            }
        }
        return host;
    }
    /// A copy of a local rank's block on the host; waits for the rank. @throws as block
    [[nodiscard]] std::vector<Scalar> staged_block(std::int32_t local = 0) const {
        const held_block b = block(local);
        std::vector<Scalar> staged(static_cast<std::size_t>(b.elements()));
        if (!staged.empty()) {
            ranks_.over().download(local, staged.data(), data(local), bytes_of(b));
        }
        return staged;
    }

    /// Another distribution; the elements stay. Collective. @throws shape_error one that does not fit
    void redistribute(const distribution& layout) {
        DistributedMatrix moved(ranks_);
        detail::or_refuse(ranks_, [&] { moved.take(rows_, cols_, layout); });
        ranks_.move(layout_, sources(), layout, moved.targets(), rows_, cols_, sizeof(Scalar));
        swap(moved);
    }

    /// Changes shape and distribution; the elements are lost. Collective: a rank that cannot throws here, the others in what they call
    /// next. @throws shape_error, device_error
    void resize(std::int64_t rows, std::int64_t cols, const distribution& layout) {
        detail::or_refuse(ranks_, [&] { take(rows, cols, layout); });
    }

    void swap(DistributedMatrix& other) noexcept {
        std::swap(ranks_, other.ranks_);
        std::swap(rows_, other.rows_);
        std::swap(cols_, other.cols_);
        std::swap(layout_, other.layout_);
        std::swap(blocks_, other.blocks_);
    }

    /// Addresses of the local ranks' blocks; null where a rank has no elements.
    [[nodiscard]] std::vector<const void*> sources() const {
        const std::vector<void*> all = addresses();
        return {all.begin(), all.end()};
    }
    [[nodiscard]] std::vector<void*> targets() { return addresses(); }

private:
    /// resize() of which the other ranks are not told.
    void take(std::int64_t rows, std::int64_t cols, const distribution& layout) {
        std::int64_t count = 0;
        if (rows < 0 || cols < 0 || !checked_multiply(rows, cols, count) || !checked_multiply(count, 16, count)) {
            throw shape_error("otimes: DistributedMatrix: " + detail::shape_text(rows, cols) +
                              " is no shape; extents must not be negative and the bytes fit in 63 bits.");
        }
        if (ranks_.size() == 0) {
            throw unsupported_error(
                "otimes: DistributedMatrix: there are no ranks. Give it a communicator, e.g. "
                "otimes::make_communicator().");
        }
        require_fits(layout, cols, ranks_.size());
        std::vector<std::shared_ptr<void>> blocks;
        for (std::int32_t local = 0; local < ranks_.local_count(); ++local) {
            const std::int64_t bytes = bytes_of(block_of(layout, rows, cols, ranks_.rank() + local));
            if (bytes == 0) {
                blocks.emplace_back();
                continue;
            }
            blocks.emplace_back(ranks_.over().allocate(local, bytes), [ranks = ranks_, local, bytes](void* memory) {
                ranks.over().release(local, memory, bytes);
            });
        }
        blocks_ = std::move(blocks);
        rows_ = rows;
        cols_ = cols;
        layout_ = layout;
    }
    [[nodiscard]] void* address(std::int32_t local) const noexcept {
        const auto n = static_cast<std::size_t>(local);
        return n < blocks_.size() ? blocks_[n].get() : nullptr;
    }
    [[nodiscard]] std::vector<void*> addresses() const {  // a matrix that has no shape yet has no blocks either
        std::vector<void*> result;
        for (std::int32_t local = 0; local < ranks_.local_count(); ++local) {
            result.push_back(address(local));
        }
        return result;
    }
    [[nodiscard]] static std::int64_t bytes_of(const held_block& b) {
        return b.elements() * static_cast<std::int64_t>(sizeof(Scalar));
    }
    void upload(std::int32_t local, const Scalar* from) {
        const held_block b = block(local);
        if (b.elements() > 0) {
            ranks_.over().upload(local, data(local), from, bytes_of(b));
        }
    }
    [[nodiscard]] bool holds_all() const {
        for (std::int32_t local = 0; local < ranks_.local_count(); ++local) {
            if (ranks_.rank() + local == layout_.first_rank) {
                return true;
            }
        }
        return false;
    }
    void require_shape(std::int64_t rows, std::int64_t cols) const {
        if (rows != rows_ || cols != cols_) {
            throw shape_error("otimes: DistributedMatrix::from_host: the host matrix is " +
                              detail::shape_text(rows, cols) + ", the distributed one " +
                              detail::shape_text(rows_, cols_) + ".");
        }
    }
    void copy_from(const DistributedMatrix& other) {
        if (other.ranks_.size() == 0 || other.blocks_.empty()) {
            return;
        }
        detail::or_refuse(ranks_, [&] { take(other.rows_, other.cols_, other.layout_); });
        ranks_.move(layout_, other.sources(), layout_, targets(), rows_, cols_, sizeof(Scalar));
    }

    enum class assignment : std::uint8_t { set, add, subtract };

    void assign(std::span<const distributed_product<Scalar>> terms, assignment what) {
        const communicator ranks = terms.front().x().ranks();
#if !defined(__CUDACC__) && !defined(OTIMES_NO_CPU_EXECUTOR)
        if (!ranks.on_device()) {
            enable_kernels<Scalar>();
        }
#endif
        const distributed_product<Scalar>& first = terms.front();
        const bool add = what != assignment::set;
        bool same_shape = false;
        bool is_new = false;
        std::string beside;
        detail::or_refuse(ranks, [&] {
            for (const distributed_product<Scalar>& term : terms) {
                term.require_made();
            }
            if (ranks_.size() != 0 && !(ranks_ == ranks)) {
                throw unsupported_error("otimes: dY = dX * K: X and Y belong to different communicators.");
            }
            same_shape = ranks_.size() != 0 && !blocks_.empty() && rows_ == first.rows() && cols_ == first.cols();
            if (add && !same_shape) {
                detail::throw_other_shape(what == assignment::add ? "+=" : "-=", rows_, cols_, first.rows(),
                                          first.cols());
            }
            is_new = !same_shape;
            for (const distributed_product<Scalar>& term : terms) {
                // A copy of X is no alias of Y, but the copies of later terms are made when Y has been written.
                is_new = is_new || (&term.x() == this && !(term.copies_x() && terms.size() == 1));
            }
            beside = is_new ? "into new memory" : "";
            if (what == assignment::subtract) {
                beside += detail::subtracted;
            }
        });
        const detail::agreed_terms<Scalar> agreed =
            detail::agree_on_terms(terms, add, same_shape ? &layout_ : nullptr, ranks.wishes(), beside);
        DistributedMatrix fresh(ranks);
        std::vector<DistributedMatrix> x_copies(terms.size(), DistributedMatrix(ranks));
        std::vector<DistributedMatrix> y_copies(terms.size(), DistributedMatrix(ranks));
        if (is_new || agreed.copied_bytes > 0) {
            const distribution columns = cut_columns(ranks.size());
            detail::or_refuse(ranks, [&] {
                if (is_new) {
                    fresh.take(first.rows(), first.cols(), agreed.result);
                }
                for (std::size_t i = 0; i < terms.size(); ++i) {
                    if (agreed.turns[i].x_is_copied) {
                        x_copies[i].take(terms[i].x().rows(), terms[i].x().cols(), columns);
                    }
                    if (agreed.turns[i].y_is_copied) {
                        y_copies[i].take(first.rows(), first.cols(), columns);
                    }
                }
            });
            ranks.agree("memory for the result of a product");
        }
        DistributedMatrix& result = is_new ? fresh : *this;
        if (is_new && add) {  // Y += Y * K
            ranks.move(layout_, sources(), fresh.layout(), fresh.targets(), rows_, cols_, sizeof(Scalar));
        }
        const Scalar sign = what == assignment::subtract ? Scalar(-1) : Scalar(1);
        if (!agreed.plan->at_once.empty()) {
            detail::rows_at_once<Scalar>(terms, agreed.result)
                .run(*agreed.plan, agreed.factors, result.targets(), add, sign);
            if (is_new) {
                swap(fresh);
            }
            return;
        }
        std::size_t turn = 0;
        const auto next = [&]() -> const distributed_plan& {
            return agreed.plan->in_turn.empty() ? *agreed.plan : agreed.plan->in_turn[turn++];
        };
        const std::vector<std::vector<const void*>> none{
            std::vector<const void*>(static_cast<std::size_t>(ranks.local_count()), nullptr)};
        for (std::size_t i = 0; i < terms.size(); ++i) {
            const DistributedMatrix* x = &terms[i].x();
            DistributedMatrix* y = &result;
            if (agreed.turns[i].x_is_copied) {
                ranks.run(next(), x->sources(), x_copies[i].targets(), none, 1.0);
                x = &x_copies[i];
            }
            if (agreed.turns[i].y_is_copied) {
                y = &y_copies[i];
                if (add || i > 0) {
                    ranks.run(next(), result.sources(), y->targets(), none, 1.0);
                }
            }
            ranks.run(next(), x->sources(), y->targets(), agreed.factors[i],
                      std::complex<double>(sign * terms[i].alpha()));
            if (agreed.turns[i].y_is_copied) {
                ranks.run(next(), y->sources(), result.targets(), none, 1.0);
            }
        }
        if (is_new) {
            swap(fresh);
        }
    }

    communicator ranks_;
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    distribution layout_;
    std::vector<std::shared_ptr<void>> blocks_;
};

namespace device {
template <class Kron, class Scalar>
inline constexpr bool fits_scalar = std::is_same_v<typename Kron::Scalar, Scalar> ||
                                    std::is_same_v<typename Kron::Scalar, otimes::detail::real_of<Scalar>>;
}  // namespace device

/// alpha * dX * K, also of K1 * dX: lazy.
template <class Scalar, class Kron>
requires device::any_kron<Kron>
[[nodiscard]] distributed_product<Scalar> operator*(distributed_product<Scalar> value, const Kron& k) {
    static_assert(device::fits_scalar<Kron, Scalar>,
                  "otimes: dX * kron(...): the factors have another scalar type than the DistributedMatrix.");
    value.multiply_right(k);
    return value;
}
template <class Scalar, class Kron>
requires device::any_kron<Kron>
[[nodiscard]] distributed_product<Scalar> operator*(const DistributedMatrix<Scalar>& x, const Kron& k) {
    return x.expression() * k;
}
/// K * dX, also of alpha * dX * K2: lazy. Without communication where X is cut by columns; cut by rows, factors follow as they do
/// where columns are cut.
template <class Kron, class Scalar>
requires device::any_kron<Kron>
[[nodiscard]] distributed_product<Scalar> operator*(const Kron& k, distributed_product<Scalar> value) {
    static_assert(device::fits_scalar<Kron, Scalar>,
                  "otimes: kron(...) * dX: the factors have another scalar type than the DistributedMatrix.");
    value.multiply_left(k);
    return value;
}
template <class Kron, class Scalar>
requires device::any_kron<Kron>
[[nodiscard]] distributed_product<Scalar> operator*(const Kron& k, const DistributedMatrix<Scalar>& x) {
    return k * x.expression();
}
/// A number times dX or a product of it, from either side: lazy, no pass of its own.
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_product<Scalar> operator*(const Amount& amount, distributed_product<Scalar> value) {
    value.scale(device::scalar_from<Scalar>(amount));
    return value;
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_product<Scalar> operator*(distributed_product<Scalar> value, const Amount& amount) {
    return amount * std::move(value);
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_product<Scalar> operator*(const Amount& amount, const DistributedMatrix<Scalar>& x) {
    return amount * x.expression();
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_product<Scalar> operator*(const DistributedMatrix<Scalar>& x, const Amount& amount) {
    return amount * x.expression();
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_product<Scalar> operator/(distributed_product<Scalar> value, const Amount& amount) {
    value.scale(Scalar(1) / device::scalar_from<Scalar>(amount));
    return value;
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_product<Scalar> operator/(const DistributedMatrix<Scalar>& x, const Amount& amount) {
    return x.expression() / amount;
}
template <class Scalar>
[[nodiscard]] distributed_product<Scalar> operator-(distributed_product<Scalar> value) {
    value.scale(Scalar(-1));
    return value;
}
template <class Scalar>
[[nodiscard]] distributed_product<Scalar> operator-(const DistributedMatrix<Scalar>& x) {
    return -x.expression();
}
/// dX *= K, dX *= 2, dX /= 2: as dX = dX * K and so on. Collective.
template <class Scalar, class Other>
requires device::any_kron<Other> || device::amount<Other, Scalar> DistributedMatrix<Scalar>
&operator*=(DistributedMatrix<Scalar>& x, const Other& other) { return x = x * other; }
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar> DistributedMatrix<Scalar>
&operator/=(DistributedMatrix<Scalar>& x, const Amount& amount) { return x = x / amount; }

namespace detail {
/// sum of conj(x) * y over the blocks of each local rank, in its memory, which the host reads.
template <class Scalar>
std::vector<std::complex<double>> block_dots_on_host(const DistributedMatrix<Scalar>& x,
                                                     const DistributedMatrix<Scalar>& y) {
    std::vector<std::complex<double>> sums;
    for (std::int32_t local = 0; local < x.ranks().local_count(); ++local) {
        const std::int64_t count = x.block(local).elements();
        std::complex<double> sum = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            sum += std::complex<double>(conjugate_of(x.data(local)[i])) * std::complex<double>(y.data(local)[i]);
        }
        sums.push_back(sum);
    }
    return sums;
}
/// The same by the ranks' GPUs, which work at the same time. Waits for them. @throws device_error during a capture
template <class Scalar>
std::vector<std::complex<double>> block_dots_on_device(const DistributedMatrix<Scalar>& x,
                                                       const DistributedMatrix<Scalar>& y) {
    transport& over = x.ranks().over();
    if (over.captured()) {
        throw device_error(
            "otimes: dot(x, y) over ranks during a capture: it returns its number to the host. Call it outside.");
    }
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(Scalar));
    std::vector<std::shared_ptr<void>> numbers;
    for (std::int32_t local = 0; local < x.ranks().local_count(); ++local) {
        numbers.emplace_back();
        const std::int64_t count = x.block(local).elements();
        if (count == 0) {
            continue;
        }
        numbers.back() = {over.allocate(local, bytes),
                          [ranks = x.ranks(), local](void* memory) { ranks.over().release(local, memory, bytes); }};
        const leaf first = leaf::borrowed({x.data(local), 1, count, count, 1});
        program p;
        bindings b;
        lowering<Scalar> low(p, b);
        device::append_reduction<Scalar>(low, p, step_variant::dot, &first, {y.data(local), 1, count, count, 1}, false,
                                         -1, nullptr, static_cast<Scalar*>(numbers.back().get()));
        device::mark_result_on_device(p);
        const executor& where = over.executor_of(local);
        where.run(*cached_plan_for(p, where), b, {});
    }
    std::vector<std::complex<double>> sums;
    for (std::int32_t local = 0; local < x.ranks().local_count(); ++local) {
        Scalar number(0);
        if (const auto at = static_cast<std::size_t>(local); numbers[at] != nullptr) {
            over.download(local, &number, numbers[at].get(), bytes);
        }
        sums.emplace_back(number);
    }
    return sums;
}
}  // namespace detail

/// sum of conj(x) * y over all elements: each rank's are added where they are, the ranks' numbers in the order of the ranks, so that the bits
/// are the same everywhere and each time. Waits. @throws shape_error where the shapes or the blocks of a rank differ, unsupported_error where the
/// communicators do, device_error during a capture. Collective.
template <class Scalar>
[[nodiscard]] Scalar dot(const DistributedMatrix<Scalar>& x, const DistributedMatrix<Scalar>& y) {
    std::vector<double> real;
    std::vector<double> imaginary;
    std::string of;
    detail::or_refuse(x.ranks(), [&] {
        if (x.rows() != y.rows() || x.cols() != y.cols() ||
            !same_blocks(x.layout(), y.layout(), x.rows(), x.cols(), x.ranks().size())) {
            throw shape_error("otimes: dot(x, y): x is " + detail::shape_text(x.rows(), x.cols()) + " with " +
                              to_string(x.layout()) + ", y is " + detail::shape_text(y.rows(), y.cols()) + " with " +
                              to_string(y.layout()) + ". Shapes and distributions must be equal; see redistribute().");
        }
        if (!(x.ranks() == y.ranks())) {  // ranks of the same number may hold other elements there
            throw unsupported_error("otimes: dot(x, y): x and y belong to different communicators.");
        }
        of = "dot(x, y) of " + std::string(to_string(dtype_of<Scalar>())) + ", " +
             detail::shape_text(x.rows(), x.cols()) + " with " + to_string(x.layout());
        for (const std::complex<double>& sum :
             x.ranks().on_device() ? detail::block_dots_on_device(x, y) : detail::block_dots_on_host(x, y)) {
            real.push_back(sum.real());
            imaginary.push_back(sum.imag());
        }
    });
    if constexpr (detail::is_complex_scalar<Scalar>) {
        using part = detail::real_of<Scalar>;
        const double first = x.ranks().sum(real, of);
        return Scalar(static_cast<part>(first), static_cast<part>(x.ranks().sum(imaginary, of + ", imaginary")));
    } else {
        return static_cast<Scalar>(x.ranks().sum(real, of));
    }
}

/// The plan of an assignment `Y = value` with a free distribution of Y. Collective.
template <class Scalar>
[[nodiscard]] distributed_plan make_plan(const distributed_product<Scalar>& value, const options& wishes) {
    return *detail::agree_on_terms<Scalar>({&value, 1}, false, nullptr, wishes, {}).plan;
}
/// The one that the assignment runs: with the communicator's wishes.
template <class Scalar>
[[nodiscard]] distributed_plan make_plan(const distributed_product<Scalar>& value) {
    return make_plan(value, value.x().ranks().wishes());
}

/// That plan in words: its stages, the bytes on the wire, and what lost. Collective.
template <class Scalar>
[[nodiscard]] std::string explain(const distributed_product<Scalar>& value) {
    return explain(make_plan(value));
}
template <class Scalar>
[[nodiscard]] std::string explain(const distributed_product<Scalar>& value, const options& wishes) {
    return explain(make_plan(value, wishes));
}

}  // namespace otimes

#include <otimes/distributed_sums.hpp>
