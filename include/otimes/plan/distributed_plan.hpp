// SPDX-License-Identifier: MIT
/// @file distributed_plan.hpp
/// How `Y (+)= alpha * X * kron(F1, ..., FN)` is evaluated by several ranks that hold parts of X and Y: which factors are
/// applied before, between and after which exchanges. A value like plan.hpp's plan; every rank runs the same one.
///
/// A factor can be applied where its mode is whole on every rank. So a row distribution needs no exchange at all; columns cut
/// along mode a are multiplied by all factors but F_a, then cut along another mode by one all-to-all, then multiplied by F_a:
///
///     X cut along mode 1        after F2, F3             one all-to-all           after F1: Y cut along mode 2
///     rank 0 | rank 1   -->     rank 0 | rank 1   -->    mode 1 whole     -->     rank 0 | rank 1
///
/// The planner walks over short sequences of distributions (that of X, up to two others, that of Y if it is asked for) and takes
/// the cheapest. A factor that shrinks its mode is applied as early as the sequence allows, one that grows it as late.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <otimes/plan/distribution.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

/// One factor as every rank has it.
struct distributed_factor {
    dtype type = dtype::f64;
    std::int64_t p_extent = 1;  ///< rows: what it takes from X
    std::int64_t q_extent = 1;  ///< columns: what it gives to Y
    std::int64_t row_stride = 1;
    std::int64_t col_stride = 1;
    bool conjugate = false;
    bool identity = false;
    memory_space space = memory_space::host;
    bool diagonal = false;  ///< element p at p * (row_stride + col_stride); its mode may be cut where it is applied
    /// sparse, permutation: bound as program/structured.hpp says, its strides tell whether it is transposed; its mode is whole where it
    /// is applied. In host memory alone.
    factor_kind structure = factor_kind::dense;
    std::int64_t stored = 0;  ///< elements of a sparse one
    friend bool operator==(const distributed_factor&, const distributed_factor&) = default;
};

/// What is asked for: all ranks must ask for the same.
struct distributed_problem {
    dtype type = dtype::f64;  ///< of X and Y
    memory_space space = memory_space::host;
    std::int32_t ranks = 1;
    std::int64_t rows = 0;
    std::vector<distributed_factor> factors;
    bool add = false;
    bool result_is_fixed = false;  ///< Y has the distribution `result`; otherwise the planner chooses
    distribution operand;
    distribution result;
    options wishes;

    friend bool operator==(const distributed_problem&, const distributed_problem&) = default;
};

/// How ranks reach each other: rates are one way, for one rank that sends to all others at once.
struct interconnect {
    double bytes_per_second = 10e9;       ///< between ranks of one host
    double network_bytes_per_second = 0;  ///< between hosts; 0: there is one host
    std::int32_t ranks_per_host = 0;      ///< 0: all
    double exchange_seconds = 20e-6;      ///< fixed cost of an exchange
    /// Parts, at most, into which the rows, or else a mode of the local stages around an exchange, are cut, so that a part is sent while the next is
    /// computed. Of each part a rank sends at least `least_chunk_bytes`: less does not go on beside work.
    std::int32_t chunks = 1;
    std::int64_t least_chunk_bytes = 16 << 20;
    bool packs = true;  ///< short runs are copied into one message; false: all ranks reach each other's memory
    /// Where they do: the last pass of a local stage may store straight into the memory of the ranks that take its output next.
    bool stores = true;
    double store_bytes_per_second = 0;  ///< at which a pass does so; 0: as an exchange
    /// Of what a pass stores into another rank's memory, at most so many portions are told by themselves, so that the next pass begins
    /// with those that have arrived; 1: it begins when all has.
    std::int32_t portions = 16;
    friend bool operator==(const interconnect&, const interconnect&) = default;
};

/// store: a local stage of one pass and the exchange after it at once: the pass stores into the memory of the ranks that take its
/// output. Where an executor cannot, the pass stores a block, which is then moved.
enum class stage_kind : std::uint8_t { local, exchange, store };

/// One stage: steps on each rank's own block, or a change of distribution, or one pass that does both.
struct distributed_stage {
    stage_kind kind = stage_kind::local;
    /// Extents of the columns' modes before the stage.
    std::vector<std::int64_t> extents;

    /// @name local, store
    /// @{
    std::vector<std::int32_t> factors;  ///< which are applied, from 0; none: a copy or a sum
    distribution where;                 ///< of input and (local) output
    std::int32_t mode = -1;             ///< that `where` cuts; -1: none, -2: flat ranges that follow no mode
    bool scaled = false;                ///< by alpha
    bool add = false;                   ///< to Y
    std::int32_t chunks = 1;            ///< ranges of a mode that are computed, and sent, one after another
    /// Whose ranges they are. -1: the cut mode, of which the stage behind the exchange needs all. Else a mode that is whole on every rank before and
    /// after the exchange: what lies between the two stages is one chunk after another, each a block of its own, and the stage behind, the
    /// last one, has the same chunks and does each when it has arrived.
    std::int32_t chunk_mode = -1;
    std::vector<plan> plans;  ///< one for each shape of block
    /// [rank * chunks + chunk]: index into `plans`; -1: nothing to do
    std::vector<std::int32_t> plan_of_rank;
    std::int32_t receiver_mode = -1;  ///< store: that `to` cuts; before the factors
    /// store: the receivers are told of portions of so many items, an index of all modes but `mode` and those below both, and of the rows; the
    /// next stage begins with what has arrived. 0: they are told once.
    std::int64_t portion_items = 0;
    /// @}

    /// @name exchange, store
    /// @{
    distribution from;
    distribution to;
    moved_elements moved;
    /// @}
    double predicted_seconds = 0;

    friend bool operator==(const distributed_stage&, const distributed_stage&) = default;
};

/// A sum of which a rank's rows depend on its own rows alone, as programs: all terms one after another, or with what several of them have in
/// common once. Made where the sum is known (distributed_sums.hpp).
struct programs_at_once {
    std::vector<std::int64_t> rows;  ///< numbers of rows that ranks have
    std::vector<program> apart;      ///< for each of them
    std::vector<program> shared;     ///< likewise; none: the terms have nothing in common
    std::int64_t terms = 0;
};

/// See the file comment.
struct distributed_plan {
    distributed_problem source;
    std::vector<distributed_stage> stages;
    distribution result;                        ///< of Y
    std::int64_t bytes_on_wire = 0;             ///< sent by all ranks together in all exchanges; exact
    std::int64_t most_bytes_sent = 0;           ///< by one rank, in all exchanges
    std::vector<std::int64_t> buffer_elements;  ///< for each rank: elements of each of its intermediate buffers
    /// The most that a rank takes beside X, Y and the factors: intermediates, packed messages, the workspace of its steps.
    std::int64_t workspace_bytes = 0;
    double predicted_seconds = 0;
    /// Where `workspace_limit_bytes` asks for it, or to hide exchanges, the rows are done in slabs: `slab_rows` rows of each part of
    /// rows at a time, by slabs[0], the last ones by slabs[1] where they are fewer. Then there are no `stages`.
    std::int64_t slab_rows = 0;
    std::int64_t slab_count = 1;
    bool overlapped = false;  ///< two slabs by turns: one's exchange goes on while the other is computed
    std::vector<distributed_plan> slabs;
    /// Plans of their own, run one after another: the terms of a sum; K * X where X or Y is cut both ways, as X's copy into a matrix that is
    /// cut by columns, the product, the copy to Y. Then there are no `stages`, `workspace_bytes` counts the `copied_bytes` of the copies, and
    /// `source` is the first one's.
    std::vector<distributed_plan> in_turn;
    std::int64_t copied_bytes = 0;
    /// @name A sum whose terms need nothing from other ranks, instead of plans in turn: every rank evaluates all terms by one plan.
    /// @{
    std::vector<plan> at_once;  ///< one for each number of rows that ranks have
    std::vector<std::int64_t> rows_at_once;
    std::int64_t terms_at_once = 0;
    bool shares_steps = false;  ///< products that several terms have in common are computed once
    /// @}
    std::vector<rejected_candidate> rejected;
    std::vector<std::string> notes;

    friend bool operator==(const distributed_plan&, const distributed_plan&) = default;
};

}  // namespace otimes
