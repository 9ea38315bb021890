// SPDX-License-Identifier: MIT
// The finished tile: shared memory -> Y.
#pragma once
#include "last_step.cuh"

namespace otimes::kernels {

// The lines of a tile's V begin to travel to L2 when its X has come, so that they are near when the last trip wants them and do not stand in X's way.
template <class Group>
__device__ __forceinline__ void ask_for_tile(const tile_place<typename Group::storage>& place) {
    if constexpr (Group::reads_y && Group::slices == 1) {
        using scalar = typename Group::scalar;
        constexpr int line = 128 / int(sizeof(scalar));
        const unsigned rank = Group::cluster > 1 ? unsigned(cluster_rank()) : 0u;
        if constexpr (Group::run > 1) {
            constexpr int each = (Group::run + line - 1) / line, lines = Group::rows * Group::count_q() * each;
            for (unsigned i = rank * Group::threads + threadIdx.x; i < unsigned(lines);
                 i += Group::threads * Group::cluster) {
                const int within = int(i % unsigned(each)) * line;
                if (within < place.run) prefetch_line(place.y + i / unsigned(each) * place.y_inner + within);
            }
        } else {
            constexpr int each = (Group::count_q() + line - 1) / line, lines = Group::rows * each;
            for (unsigned i = rank * Group::threads + threadIdx.x; i < unsigned(lines);
                 i += Group::threads * Group::cluster) {
                const int row = int(i / unsigned(each));
                if (row < place.rows) prefetch_line(place.y + row * place.y_row_stride + i % unsigned(each) * line);
            }
        }
    }
}

// The finished tile -> Y, for groups whose last trip leaves runs too short to store directly.
template <class Group, int Width>
__device__ __forceinline__ void store_pieces(const tile_place<typename Group::storage>& place,
                                             const typename Group::scalar* sTile,
                                             const typename Group::last_step& last) {
    using scalar = typename Group::scalar;
    constexpr int done = Group::steps::count;
    constexpr int row_count = Group::count_q();
    constexpr int pieces = Group::rows * row_count * Group::run / Width;
    if constexpr (Width > 1 && digits_apart<Group, done>() && pieces % Group::threads == 0) {  // whole tiles only
        for_pieces_apart<Group, done, 1, Width, pieces * Width>(
            [&](unsigned element) -> index_t {
                if constexpr (Group::run > 1)
                    return index_t(element / unsigned(Group::run)) * place.y_inner + element % unsigned(Group::run);
                else
                    return Group::rows == 1 ? index_t(element)
                                            : index_t(element / unsigned(row_count)) * place.y_row_stride +
                                                  element % unsigned(row_count);
            },
            [&](int offset, index_t to) {
                scalar rY[Width];  // (Width)
                *reinterpret_cast<packet<Width* int(sizeof(scalar))>*>(rY) =
                    *reinterpret_cast<const packet<Width* int(sizeof(scalar))>*>(sTile + offset);
                last.store_vector(place.y + to, rY, true);
            });
    } else {
#pragma unroll 4
        for (unsigned piece = threadIdx.x; piece < unsigned(pieces); piece += Group::threads) {
            const unsigned element = piece * Width;
            typename Group::storage* gY;
            bool exists;
            if constexpr (Group::run > 1) {
                const int f = int(element / unsigned(Group::run)), s = int(element % unsigned(Group::run));
                gY = place.y + f * place.y_inner + s;
                exists = s < place.run;
            } else {
                const int row = int(element / unsigned(row_count)), rest = int(element % unsigned(row_count));
                gY = place.y + row * place.y_row_stride + Group::sliced_offset(rest);
                exists = row < place.rows;
            }
            if (exists) {
                const int offset = Group::swizzled ? Group::place(int(element))
                                                   : tile_offset<Group, done, 1, 0, Group::run_level>(int(element));
                scalar rY[Width];  // (Width)
                if constexpr (Width > 1)
                    *reinterpret_cast<packet<Width* int(sizeof(scalar))>*>(rY) =
                        *reinterpret_cast<const packet<Width* int(sizeof(scalar))>*>(sTile + offset);
                else
                    rY[0] = sTile[offset];
                last.store_vector(gY, rY, true);
            }
        }
    }
}

template <class Group>
__device__ __forceinline__ void store_tile(const tile_place<typename Group::storage>& place,
                                           const typename Group::scalar* sTile, const typename Group::last_step& last) {
    constexpr int done = Group::steps::count;
    constexpr int row_count = Group::count_q();
    constexpr bool whole_rows = Group::rows_contiguous(done);
    constexpr int width =
        whole_rows ? Group::widest_stretch(Group::rows * row_count) : Group::widest(done, Group::contiguous(done));
    bool wide = width == Group::vector && aligned_to(place.y, 16) && place.rows == Group::rows &&
                place.run == Group::run && last.c_offset % Group::vector == 0;
    if constexpr (Group::run > 1)
        wide = wide && place.y_inner % width == 0;
    else if constexpr (Group::rows > 1)
        wide = wide && (whole_rows ? place.y_row_stride == row_count : place.y_row_stride % width == 0);
    if constexpr (Group::slices > 1)
        store_pieces<Group, 1>(place, sTile, last);
    else if (width > 1 && wide) {
        typename Group::last_step aligned = last;
        aligned.wide = true;
        if constexpr (whole_rows && !Group::swizzled) {
            using scalar = typename Group::scalar;
            constexpr int bytes = width * int(sizeof(scalar));
#pragma unroll 4
            for (unsigned element = threadIdx.x * width; element < unsigned(Group::rows * row_count);
                 element += Group::threads * width) {
                alignas(16) scalar rY[width];  // (width)
                *reinterpret_cast<packet<bytes>*>(rY) = *reinterpret_cast<const packet<bytes>*>(sTile + element);
                aligned.store_vector(place.y + element, rY, true);
            }
        } else
            store_pieces<Group, width>(place, sTile, aligned);
    } else
        store_pieces<Group, 1>(place, sTile, last);
}

// The elements of the finished tile that a thread adds up over several terms, in registers, and stores.
template <class Group>
struct own_elements {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    static constexpr int done = Group::steps::count, row_count = Group::count_q(), count = Group::rows * row_count;
    static constexpr int width =
        Group::rows_contiguous(done) ? Group::widest_stretch(row_count) : Group::widest(done, Group::contiguous(done));
    static constexpr int each = (count / width + Group::threads - 1) / Group::threads;  // pieces of a thread
    scalar rSum[each][width];                                                           // (piece, element)

    static __device__ __forceinline__ int element_of(int piece) {
        return (int(threadIdx.x) + piece * Group::threads) * width;
    }
    static __device__ __forceinline__ bool has(int piece) {
        return count / width % Group::threads == 0 || element_of(piece) < count;
    }

    // rSum (+)= alpha * tile.
    template <bool First>
    __device__ __forceinline__ void add(const scalar* sTile, scalar alpha) {
        using word = packet<width* int(sizeof(scalar))>;
#pragma unroll
        for (int i = 0; i < each; ++i)
            if (has(i)) {
                const int element = element_of(i),
                          offset = Group::swizzled ? Group::place(element)
                                                   : tile_offset<Group, done, 1, 0, Group::run_level>(element);
                alignas(16) scalar rTile[width];
                *reinterpret_cast<word*>(rTile) = *reinterpret_cast<const word*>(sTile + offset);
#pragma unroll
                for (int e = 0; e < width; ++e) rSum[i][e] = First ? alpha * rTile[e] : rSum[i][e] + alpha * rTile[e];
            }
    }

    // last.wide: where the rows of Y allow it, too.
    __device__ __forceinline__ void store(const tile_place<storage>& place,
                                          const typename Group::last_step& last) const {
        const auto to = [&](int i) {
            const int element = element_of(i);
            return place.y + int(unsigned(element) / unsigned(row_count)) * place.y_row_stride +
                   int(unsigned(element) % unsigned(row_count));
        };
        if (count / width % Group::threads == 0 && place.rows == Group::rows)
            last.template store_all<each, width>(to, [&](int i, int e) { return rSum[i][e]; });
        else
#pragma unroll
            for (int i = 0; i < each; ++i)
                if (has(i) && int(unsigned(element_of(i)) / unsigned(row_count)) < place.rows)
                    last.template store_all<1, width>([&](int) { return to(i); },
                                                      [&](int, int e) { return rSum[i][e]; });
    }
};

}  // namespace otimes::kernels
