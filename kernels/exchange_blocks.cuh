// SPDX-License-Identifier: MIT
// Contract: for each move m = 0 .. count - 1, runs of bytes from this GPU's memory to that of any GPU it reaches:
//   to[c0 * t0 + c1 * t1 + c2 * t2 + b] = from[c0 * f0 + c1 * f1 + c2 * f2 + b],   c_i < counts[i], b < run, strides f, t in bytes
// Blocks take the moves in turn (block k: move k mod count), so that all links are busy at once. A thread has 8 units in flight.
//
// Requires: 1 <= count <= most_moves; counts, run >= 0; gridDim.x >= count; 1-D grid and block of any size, no shared memory.
// Alignment: `unit` (16, 8, 4, 2 or 1) divides run, both addresses and all strides of every move. Aliasing: no target overlaps any source.
// Visibility: the targets may be read by other GPUs once the kernel is done (an event behind it).
// Called by: the transport of GPUs of one process, once for each GPU and exchange.
#pragma once
#include "device_language.cuh"

namespace otimes::kernels {

constexpr int most_moves = 32;

struct block_move {
    const unsigned char* from;
    unsigned char* to;
    index_t run;
    index_t counts[3];
    index_t from_strides[3], to_strides[3];
};

struct exchange_arguments {
    block_move moves[most_moves];
    int count;
    int unit;
};

template <int Size>
struct exchange_unit {
    using type = packet<Size>;
};
template <>
struct exchange_unit<2> {
    using type = unsigned short;
};
template <>
struct exchange_unit<1> {
    using type = unsigned char;
};

// Count: unsigned where the units of a move fit in it (its division is 4 times as fast), else unsigned long long.
template <int Size, class Count>
__device__ __forceinline__ void move_block(const block_move& m, Count begin, Count step, Count units) {
    using unit = typename exchange_unit<Size>::type;
    constexpr int in_flight = 8;
    const Count run = Count(m.run / Size);
    const Count c1 = Count(m.counts[1]), c2 = Count(m.counts[2]);
    for (Count first = begin; first < units; first += in_flight * step) {
        unit values[in_flight];  // (units of this thread)
        index_t there[in_flight];
#pragma unroll
        for (int i = 0; i < in_flight; ++i) {
            const Count at = first + Count(i) * step;
            if (at >= units) continue;
            const Count row = at / run, in_run = at % run;
            const Count k = row % c2, rest = row / c2;
            const Count j = rest % c1, l = rest / c1;
            const index_t offset = index_t(in_run) * Size;
            const index_t here = index_t(l) * m.from_strides[0] + index_t(j) * m.from_strides[1] +
                                 index_t(k) * m.from_strides[2] + offset;
            there[i] =
                index_t(l) * m.to_strides[0] + index_t(j) * m.to_strides[1] + index_t(k) * m.to_strides[2] + offset;
            values[i] = *reinterpret_cast<const unit*>(m.from + here);
        }
#pragma unroll
        for (int i = 0; i < in_flight; ++i) {
            const Count at = first + Count(i) * step;
            if (at < units) *reinterpret_cast<unit*>(m.to + there[i]) = values[i];
        }
    }
}

template <int Size>
__device__ __forceinline__ void move_units(const block_move& m, unsigned part, unsigned parts) {
    const unsigned long long units =
        static_cast<unsigned long long>(m.run / Size) * m.counts[0] * m.counts[1] * m.counts[2];
    const unsigned begin = part * blockDim.x + threadIdx.x;
    const unsigned step = parts * blockDim.x;
    if (units < (1ull << 31)) {
        move_block<Size, unsigned>(m, begin, step, unsigned(units));
    } else {
        move_block<Size, unsigned long long>(m, begin, step, units);
    }
}

__global__ void __launch_bounds__(256) exchange_blocks(const __grid_constant__ exchange_arguments arguments) {
    const unsigned count = unsigned(arguments.count);
    const unsigned which = blockIdx.x % count;
    const unsigned part = blockIdx.x / count;
    const unsigned parts = (gridDim.x - which + count - 1) / count;  // blocks that share this move
    const block_move& m = arguments.moves[which];
    switch (arguments.unit) {
        case 16: return move_units<16>(m, part, parts);
        case 8: return move_units<8>(m, part, parts);
        case 4: return move_units<4>(m, part, parts);
        case 2: return move_units<2>(m, part, parts);
        default: return move_units<1>(m, part, parts);
    }
}

}  // namespace otimes::kernels
