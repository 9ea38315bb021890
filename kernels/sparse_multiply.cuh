// SPDX-License-Identifier: MIT
// Contract: a sparse matrix along one mode, its elements listed by the index of the result:
//   Y[f, t, o] = alpha * sum_{k = starts[o]}^{starts[o + 1] - 1} op(values)[k] * op(X)[f, t, inner[k]] + beta * Y[f, t, o]
// op = identity or complex conjugate. X[f, t, i] stands at x + sum_j f_j * x_stride[j] + t * x_turn_stride + i * x_inner_stride, Y[f, t, o] likewise.
//
// sparse_multiply reads X where it lies. 2^lanes_log2 neighbouring threads take up to `together` neighbours t at a time, so that an index and a value are
// read once for them: each adds every 2^lanes_log2-th element in order, then the threads add theirs by a tree. Where t are neighbours in memory,
// turn_first says so: neighbouring threads take neighbouring t, 16 bytes an access where the addresses allow it.
//
// sparse_tiles brings X[f, t, i] of all i < inputs and of `together` neighbours t into shared memory, once, and sums from there, each sum in order of k:
//   along = false, t are neighbours in memory: sX[i, t], a thread sums 16 bytes of t of one o at a time, neighbouring threads neighbouring t;
//   along = true, i are: sX[t, i], a thread sums all t of one o, neighbouring threads neighbouring o.
// Equal arguments give equal bits: no atomics.
//
// Requires: 0 <= free_count <= max_free_modes; extents >= 0; 1-D grid of any size. beta = 0: Y is not read.
//   sparse_multiply: 0 <= lanes_log2 <= 5; 1 <= together <= sums_together; blocks of a multiple of 32 threads.
//   sparse_tiles: inner[k] < inputs; together a power of two, along: at most sums_together, else at least the elements of 16 bytes;
//   inputs * together elements in sparse_tile_bytes of dynamic shared memory; blocks of sparse_tile_threads.
// Alignment: that of the scalar and of the indices. Aliasing: Y overlaps nothing else.
// Called by: the GPU executor, for DeviceSparse factors.
#pragma once
#include "async_copy.cuh"
#include "generic_sliced_multiply.cuh"

namespace otimes::kernels {

constexpr int sums_together = 8;
constexpr int sparse_tile_threads = 256;
constexpr int sparse_tile_bytes =
    64 * 1024;  // three blocks of a multiprocessor from 8.0 on: one brings while others sum

template <class Storage, class Accumulator>
struct sparse_multiply_arguments {
    const Storage* x;
    const int* starts;
    const int* inner;
    const Storage* values;
    Storage* y;
    Accumulator alpha, beta;
    index_t outputs, inputs;  // along the mode
    index_t x_inner_stride, y_outer_stride;
    index_t turns;  // extent of t
    index_t x_turn_stride, y_turn_stride;
    int together;  // neighbours t of a thread, or of a tile
    index_t free_extent[max_free_modes];
    index_t x_stride[max_free_modes], y_stride[max_free_modes];
    int free_count;
    int outer_position;  // o counts between free modes outer_position - 1 and outer_position: its place in Y's order
    int lanes_log2;
    bool turn_first, along;
    bool conjugate_x, conjugate_values;
};

template <class Real>
__device__ __forceinline__ Real from_lane(Real value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}
template <class Real>
__device__ __forceinline__ complex<Real> from_lane(complex<Real> value, int distance) {
    return {__shfl_xor_sync(0xffffffffu, value.re, distance), __shfl_xor_sync(0xffffffffu, value.im, distance)};
}

// What is left of a number when its digits are taken from it, the fastest first.
struct digits {
    index_t rest;
    __device__ __forceinline__ index_t take(index_t extent) {
        const index_t above = (rest | extent) >> 32 ? rest / extent : index_t(unsigned(rest) / unsigned(extent));
        const index_t value = rest - above * extent;
        rest = above;
        return value;
    }
};

// True where `count` elements from `base` on, and those that stand any of these strides further, are whole accesses of 16 bytes.
template <class Storage>
__device__ __forceinline__ bool in_packets(const Storage* base, index_t count, index_t unit_stride,
                                           index_t other_stride, const index_t* strides, int stride_count) {
    constexpr int width = 16 / int(sizeof(Storage));
    bool whole = unit_stride == 1 && count % width == 0 && aligned_to(base, 16) && other_stride % width == 0;
    for (int i = 0; i < stride_count; ++i) whole = whole && strides[i] % width == 0;
    return whole;
}

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(256)
    sparse_multiply(const __grid_constant__ sparse_multiply_arguments<Storage, Accumulator> arguments) {
    constexpr int packet_width = 16 / int(sizeof(Storage));
    after_earlier_launches();
    const index_t groups = (arguments.turns + arguments.together - 1) / arguments.together;
    index_t count = arguments.outputs * groups;
    for (int i = 0; i < arguments.free_count; ++i) count *= arguments.free_extent[i];
    const int lanes = 1 << arguments.lanes_log2, lane = int(threadIdx.x) & (lanes - 1);
    const bool reads_y = !(arguments.beta == Accumulator(0));
    const bool x_wide = packet_width > 1 && arguments.together % packet_width == 0 &&
                        in_packets(arguments.x, arguments.turns, arguments.x_turn_stride, arguments.x_inner_stride,
                                   arguments.x_stride, arguments.free_count);
    const bool y_wide = packet_width > 1 && arguments.together % packet_width == 0 && !reads_y &&
                        in_packets(arguments.y, arguments.turns, arguments.y_turn_stride, arguments.y_outer_stride,
                                   arguments.y_stride, arguments.free_count);
    const index_t step = index_t(gridDim.x) * blockDim.x >> arguments.lanes_log2;
    // All threads of a warp stay in the loop: they exchange sums.
    for (index_t first = index_t(blockIdx.x) * blockDim.x >> arguments.lanes_log2; first < count; first += step) {
        const index_t linear = first + (int(threadIdx.x) >> arguments.lanes_log2);
        Accumulator sums[sums_together];  // (t)
#pragma unroll
        for (int t = 0; t < sums_together; ++t) sums[t] = Accumulator(0);
        Storage* gY = arguments.y;  // (t)
        int width = 0;              // of these t
        if (linear < count) {
            const Storage* gX = arguments.x;  // (t, i)
            digits number{linear};
            index_t turn = arguments.turn_first ? number.take(groups) : 0, o = 0;
            for (int i = arguments.free_count; i >= 0; --i) {
                if (i == arguments.outer_position) {
                    o = number.take(arguments.outputs);
                    gY += o * arguments.y_outer_stride;
                }
                if (i > 0) {
                    const index_t f = number.take(arguments.free_extent[i - 1]);
                    gX += f * arguments.x_stride[i - 1];
                    gY += f * arguments.y_stride[i - 1];
                }
            }
            turn = (turn + number.rest) * arguments.together;
            width = arguments.turns - turn < arguments.together ? int(arguments.turns - turn) : arguments.together;
            gX += turn * arguments.x_turn_stride;
            gY += turn * arguments.y_turn_stride;
            const int end = arguments.starts[o + 1];
            const auto add = [&](Accumulator value, Storage stored, Accumulator& sum) {
                Accumulator x = widen<Accumulator>(stored);
                if (arguments.conjugate_x) x = conjugate(x);
                sum = multiply_add(value, x, sum);
            };
            const auto value_of = [&](int k) {
                const Accumulator value = widen<Accumulator>(arguments.values[k]);
                return arguments.conjugate_values ? conjugate(value) : value;
            };
            if (x_wide) {
#pragma unroll 2
                for (int k = arguments.starts[o] + lane; k < end; k += lanes) {
                    const Storage* gXi = gX + arguments.inner[k] * arguments.x_inner_stride;  // (t)
                    const Accumulator value = value_of(k);
#pragma unroll
                    for (int t = 0; t < sums_together; t += packet_width) {
                        if (t >= width) break;
                        alignas(16) Storage rX[packet_width];  // (t)
                        *reinterpret_cast<packet<16>*>(rX) = *reinterpret_cast<const packet<16>*>(gXi + t);
#pragma unroll
                        for (int e = 0; e < packet_width; ++e) add(value, rX[e], sums[t + e]);
                    }
                }
            } else {
                for (int k = arguments.starts[o] + lane; k < end; k += lanes) {
                    const Storage* gXi = gX + arguments.inner[k] * arguments.x_inner_stride;  // (t)
                    const Accumulator value = value_of(k);
#pragma unroll
                    for (int t = 0; t < sums_together; ++t) {
                        if (t >= width) break;
                        add(value, gXi[t * arguments.x_turn_stride], sums[t]);
                    }
                }
            }
        }
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (int t = 0; t < sums_together; ++t) sums[t] += from_lane(sums[t], distance);
        }
        if (lane != 0) width = 0;
        if (y_wide) {
#pragma unroll
            for (int t = 0; t < sums_together; t += packet_width) {
                if (t >= width) break;
                alignas(16) Storage rY[packet_width];  // (t)
#pragma unroll
                for (int e = 0; e < packet_width; ++e) rY[e] = narrow<Storage>(arguments.alpha * sums[t + e]);
                *reinterpret_cast<packet<16>*>(gY + t) = *reinterpret_cast<const packet<16>*>(rY);
            }
            continue;
        }
#pragma unroll
        for (int t = 0; t < sums_together; ++t) {
            if (t >= width) break;
            Storage& stored = gY[t * arguments.y_turn_stride];
            Accumulator sum = arguments.alpha * sums[t];
            if (reads_y) sum += arguments.beta * widen<Accumulator>(stored);
            stored = narrow<Storage>(sum);
        }
    }
}

// The bytes of a tile, for whoever launches sparse_tiles.
template <class Storage, class Accumulator>
struct sparse_tiles_shape {
    static constexpr int shared_bytes = sparse_tile_bytes;
};

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(sparse_tile_threads, 3)
    sparse_tiles(const __grid_constant__ sparse_multiply_arguments<Storage, Accumulator> arguments) {
    constexpr int packet_width = 16 / int(sizeof(Storage));
    constexpr int ahead = sizeof(Storage) > 8 ? 2 : 4;  // elements of a sum on their way
    constexpr bool reads_early = sizeof(Storage) <= 8;  // Y, while the sums are; else there are no registers for it
    after_earlier_launches();
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    Storage* const sX = reinterpret_cast<Storage*>(shared_bytes);  // along: (t, i), inputs apart; else (i, t), L apart
    const int L = arguments.together, inputs = int(arguments.inputs), outputs = int(arguments.outputs);
    const bool along = arguments.along, reads_y = !(arguments.beta == Accumulator(0));
    const bool x_wide = along ? in_packets(arguments.x, arguments.inputs, arguments.x_inner_stride,
                                           arguments.x_turn_stride, arguments.x_stride, arguments.free_count)
                              : in_packets(arguments.x, arguments.turns, arguments.x_turn_stride,
                                           arguments.x_inner_stride, arguments.x_stride, arguments.free_count);
    const bool y_wide = in_packets(arguments.y, arguments.turns, arguments.y_turn_stride, arguments.y_outer_stride,
                                   arguments.y_stride, arguments.free_count);
    const index_t groups = (arguments.turns + L - 1) / L;
    index_t tiles = groups;
    for (int i = 0; i < arguments.free_count; ++i) tiles *= arguments.free_extent[i];
    for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        digits number{tile};
        const index_t turn = number.take(groups) * L;
        const int width = arguments.turns - turn < L ? int(arguments.turns - turn) : L;
        const Storage* gX = arguments.x + turn * arguments.x_turn_stride;  // (t, i)
        Storage* gY = arguments.y + turn * arguments.y_turn_stride;        // (t, o)
        for (int i = arguments.free_count; i-- > 0;) {
            const index_t f = number.take(arguments.free_extent[i]);
            gX += f * arguments.x_stride[i];
            gY += f * arguments.y_stride[i];
        }
        // `major` rows of `minor` elements, neighbours of one access together; a row of shared memory has `pitch`.
        const auto bring = [&](auto size, int major, int minor, index_t major_stride, index_t minor_stride, int pitch) {
            constexpr int each = decltype(size)::value / int(sizeof(Storage));
            const int pieces = minor / each;
            digits place{0};
            for (int j = int(threadIdx.x); j < major * pieces; j += sparse_tile_threads) {
                place.rest = j;
                const int piece = int(place.take(pieces)) * each, row = int(place.rest);
                copy_async<decltype(size)::value>(sX + row * pitch + piece,
                                                  gX + row * major_stride + piece * minor_stride);
            }
        };
        __syncthreads();  // the tile before is read
        const int major = along ? width : inputs, minor = along ? inputs : width, pitch = along ? inputs : L;
        const index_t major_stride = along ? arguments.x_turn_stride : arguments.x_inner_stride;
        const index_t minor_stride = along ? arguments.x_inner_stride : arguments.x_turn_stride;
        if (x_wide)
            bring(constant<16>{}, major, minor, major_stride, minor_stride, pitch);
        else
            bring(constant<int(sizeof(Storage))>{}, major, minor, major_stride, minor_stride, pitch);
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();
        // Calls for_sum(o, add_elements) for o = first, first + step, ..; add_elements(add) calls add(value, i) for the elements of o. Where those of
        // the next o are is read before the elements of this one.
        const auto for_sums = [&](int first, int step, const auto& for_sum) {
            if (first >= outputs) return;
            int begin = arguments.starts[first], end = arguments.starts[first + 1];
            for (int o = first; o < outputs; o += step) {
                const int own_begin = begin, own_end = end;
                if (o + step < outputs) begin = arguments.starts[o + step], end = arguments.starts[o + step + 1];
                for_sum(o, [&](const auto& add) {
                    for (int k = own_begin; k < own_end; k += ahead) {
                        int at[ahead];
                        Storage values[ahead];
#pragma unroll
                        for (int j = 0; j < ahead; ++j)
                            if (k + j < own_end) at[j] = arguments.inner[k + j], values[j] = arguments.values[k + j];
#pragma unroll
                        for (int j = 0; j < ahead; ++j) {
                            if (k + j >= own_end) break;
                            const Accumulator value = widen<Accumulator>(values[j]);
                            add(arguments.conjugate_values ? conjugate(value) : value, at[j]);
                        }
                    }
                });
            }
        };
        const auto x_of = [&](Storage stored) {
            const Accumulator x = widen<Accumulator>(stored);
            return arguments.conjugate_x ? conjugate(x) : x;
        };
        // What a sum becomes in Y, given what was read there.
        const auto result_of = [&](Accumulator sum, Storage before) {
            sum = arguments.alpha * sum;
            if (reads_y) sum += arguments.beta * widen<Accumulator>(before);
            return narrow<Storage>(sum);
        };
        if (along) {
            for_sums(int(threadIdx.x), sparse_tile_threads, [&](int o, const auto& add_elements) {
                Storage* const gYo = gY + o * arguments.y_outer_stride;  // (t)
                Storage before[sums_together] = {};                      // (t)
                Accumulator sums[sums_together];                         // (t)
#pragma unroll
                for (int t = 0; t < sums_together; ++t) {
                    sums[t] = Accumulator(0);
                    if (reads_early && reads_y && t < width) before[t] = gYo[t * arguments.y_turn_stride];
                }
                add_elements([&](Accumulator value, int i) {
#pragma unroll
                    for (int t = 0; t < sums_together; ++t) {
                        if (t >= width) break;
                        sums[t] = multiply_add(value, x_of(sX[t * inputs + i]), sums[t]);
                    }
                });
#pragma unroll
                for (int t = 0; t < sums_together; ++t) {
                    if (t >= width) break;
                    Storage& stored = gYo[t * arguments.y_turn_stride];
                    stored = result_of(sums[t], !reads_early && reads_y ? stored : before[t]);
                }
            });
            continue;
        }
        const int pieces = L / packet_width;  // of an o: neighbouring threads
        digits place{int(threadIdx.x)};
        const int t = int(place.take(pieces)) * packet_width;
        if (t >= width) continue;
        for_sums(int(place.rest), sparse_tile_threads / pieces, [&](int o, const auto& add_elements) {
            Storage* const gYo = gY + o * arguments.y_outer_stride + t * arguments.y_turn_stride;  // (t)
            alignas(16) Storage rY[packet_width] = {};  // (t), on its way while the sum is
            if (reads_y) {
                if (y_wide)
                    *reinterpret_cast<packet<16>*>(rY) = *reinterpret_cast<const packet<16>*>(gYo);
                else
#pragma unroll
                    for (int e = 0; e < packet_width; ++e)
                        if (t + e < width) rY[e] = gYo[e * arguments.y_turn_stride];
            }
            Accumulator sums[packet_width];  // (t)
#pragma unroll
            for (int e = 0; e < packet_width; ++e) sums[e] = Accumulator(0);
            add_elements([&](Accumulator value, int i) {
                alignas(16) Storage rX[packet_width];  // (t)
                *reinterpret_cast<packet<16>*>(rX) = *reinterpret_cast<const packet<16>*>(sX + i * L + t);
#pragma unroll
                for (int e = 0; e < packet_width; ++e) sums[e] = multiply_add(value, x_of(rX[e]), sums[e]);
            });
#pragma unroll
            for (int e = 0; e < packet_width; ++e) rY[e] = result_of(sums[e], rY[e]);
            if (y_wide)
                *reinterpret_cast<packet<16>*>(gYo) = *reinterpret_cast<const packet<16>*>(rY);
            else
#pragma unroll
                for (int e = 0; e < packet_width; ++e)
                    if (t + e < width) gYo[e * arguments.y_turn_stride] = rY[e];
        });
    }
}

}  // namespace otimes::kernels
