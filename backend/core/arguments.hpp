// SPDX-License-Identifier: MIT
/// @file arguments.hpp
/// The argument blocks of the kernels, as bytes with named holes for addresses and scalars. The structures repeat those of
/// kernels/generic_sliced_multiply.cuh, blocked_multiply.cuh, sparse_multiply.cuh, scaled_copy.cuh, diagonal_scale.cuh, dot_product.cuh, tile_memory.cuh, fused_scattered.cuh
/// and exchange_blocks.cuh field by field.
#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/exec/peer_stores.hpp>
#include <otimes/plan/scatter_shape.hpp>

#include "launch_list.hpp"

namespace otimes::backend {

/// A complex accumulator as device code aligns it.
template <class Real>
struct alignas(2 * sizeof(Real)) device_complex {
    Real re = 0;
    Real im = 0;
};

template <class Accumulator>
struct sliced_arguments {
    const void* x;
    const void* f;
    void* y;
    Accumulator alpha, beta;
    long long p_extent, q_extent;
    long long x_p_stride, f_p_stride, f_q_stride, y_q_stride;
    long long free_extent[most_free_modes];
    long long x_stride[most_free_modes], y_stride[most_free_modes], f_stride[most_free_modes];
    int free_count;
    int q_position;
    int lanes_log2;
    bool conjugate_x, conjugate_f;
};

/// kernels/blocked_multiply.cuh
template <class Accumulator>
struct blocked_arguments {
    sliced_arguments<Accumulator> sliced;
    int batch_count;
    void* sums;
    unsigned sum_count;
    bool conjugate_y;
    const void* d;
    unsigned divisor, magic;
    int shift;
    bool factor_ready, x_ready;
};

/// kernels/sparse_multiply.cuh
template <class Accumulator>
struct sparse_arguments {
    const void* x;
    const void* starts;
    const void* inner;
    const void* values;
    void* y;
    Accumulator alpha, beta;
    long long outputs, inputs;
    long long x_inner_stride, y_outer_stride;
    long long turns;
    long long x_turn_stride, y_turn_stride;
    int together;
    long long free_extent[most_free_modes];
    long long x_stride[most_free_modes], y_stride[most_free_modes];
    int free_count;
    int outer_position;
    int lanes_log2;
    bool turn_first, along;
    bool conjugate_x, conjugate_values;
};

/// kernels/scaled_copy.cuh
template <class Accumulator>
struct copy_arguments {
    const void* x;
    void* y;
    Accumulator alpha, beta;
    long long lines, count;
    long long x_line_stride, y_line_stride;
    bool conjugate_x;
};

/// kernels/diagonal_scale.cuh
template <class Accumulator>
struct diagonal_arguments {
    const void* x;
    const void* d;
    void* y;
    Accumulator alpha, beta;
    long long lines, count, d_lines;
    long long x_line_stride, y_line_stride, d_line_stride, d_stride;
    bool conjugate_x, conjugate_d;
};

/// kernels/dot_product.cuh
struct dot_arguments {
    const void* x;
    const void* y;
    void* sums;
    long long lines, count;
    long long x_line_stride, x_stride, y_line_stride, y_stride;
    bool conjugate_x, conjugate_y, distance;
};
template <class Accumulator>
struct finish_arguments {
    const void* sums;
    void* result;
    Accumulator alpha, beta;
    int count;
};

inline constexpr std::size_t most_group_modes = 12;

template <class Scalar>
struct group_arguments {
    const void* x;
    void* y;
    const void* factor[most_group_modes];
    long long factor_p_stride[most_group_modes];
    long long factor_q_stride[most_group_modes];
    Scalar alpha, beta;
    long long lines;
    long long parts_per_line;
    long long x_line_stride, y_line_stride;
    long long inner;
    long long x_inner, y_inner;
    long long c_offset;
    Scalar more_alpha[3];
    long long second;
    void* sums_or_d;
    unsigned divisor, magic;
    int shift;
    bool conjugate_y;
    bool factors_ready, x_ready;
};

inline constexpr std::size_t most_receivers = 16;
/// Portions that a GPU keeps words for.
inline constexpr std::size_t most_portions = planning::most_portions;

/// kernels/arrivals.cuh
struct arrival_words {
    unsigned* words[most_receivers];
    unsigned* blocks_done;
    unsigned count, value;
    unsigned* tiles_done;
    unsigned* tiles_dealt;
    unsigned items;
};
struct awaited_portions {
    const unsigned* words;
    unsigned senders, value;
    unsigned long long deadline;
};
struct awaited_arrivals {
    const unsigned* words;
    unsigned count, value;
    unsigned long long deadline;
    bool room;
};

/// kernels/fused_scattered.cuh: what follows group_arguments.
struct scattered_rest {
    void* receivers[most_receivers];
    unsigned first[most_receivers + 1];
    unsigned count;
    unsigned outer, between, inner, below;
    unsigned whole, whole_first;
    unsigned most;
    bool cuts_inner;
    arrival_words tell;
};

/// kernels/fused_arriving.cuh: what follows group_arguments.
struct arriving_rest {
    awaited_portions awaited;
    long long item;
    unsigned items;
};

inline constexpr int most_moves = 32;

/// kernels/exchange_blocks.cuh
struct block_move {
    const void* from;
    void* to;
    long long run;
    long long counts[3];
    long long from_strides[3], to_strides[3];
};
struct exchange_arguments {
    block_move moves[most_moves];
    int count;
    int unit;
};

/// Bytes of the largest argument block of a step.
inline constexpr std::size_t most_argument_bytes =
    std::max(sizeof(blocked_arguments<device_complex<double>>),
             sizeof(group_arguments<device_complex<double>>) + sizeof(scattered_rest));

/// The argument block of a launch.
struct argument_block {
    struct hole {
        std::size_t offset = 0;
        memory_reference at;
    };
    std::vector<std::byte> bytes;  ///< alpha = 1; beta = 1 or 0
    std::vector<hole> addresses;
    std::size_t alpha_offset = 0;
    std::size_t ready_offset = 0;  ///< of factors_ready or factor_ready, which x_ready follows; 0: neither
    /// Further scalars: of the addend and of terms.
    struct scalar_hole {
        std::size_t offset = 0;
        std::int32_t scalar = -1;
    };
    std::vector<scalar_hole> more_scalars;
    /// An address as its distance from another one, in elements of `element_bytes`: of the addend, of a second input or output.
    struct distance_hole {
        std::size_t offset = 0;
        std::int64_t element_bytes = 1;
        memory_reference from;
        memory_reference to;
    };
    std::vector<distance_hole> distances;
    std::size_t rest_offset =
        0;  ///< of a scattered or an arriving group: where its scattered_rest or arriving_rest goes
    dtype accumulator = dtype::f32;
    std::int32_t scalar = -1;
};

/// Builds the block of a launch; addresses stay null.
argument_block make_arguments(const launch& l);

/// Writes a scalar as the accumulator type at `to`.
void write_scalar(std::byte* to, dtype accumulator, std::complex<double> value);

/// Writes the scattered_rest of a group at `to`. @pre there are no more receivers than most_receivers, and extents of rows fit in 31 bits
/// @param row_elements of a row, the extents that the group replaces
/// @param tell null: the receivers are told nothing
void write_scattered(std::byte* to, const scatter_shape& shape, std::span<void* const> receivers,
                     std::int64_t row_elements, const arrival_signal* tell);

/// Writes the arriving_rest of a group at `to`.
void write_arriving(std::byte* to, const awaited_signal& awaited);

/// Type in which reductions are summed.
constexpr dtype sum_type_of(dtype storage) noexcept { return is_complex(storage) ? dtype::c128 : dtype::f64; }

}  // namespace otimes::backend
