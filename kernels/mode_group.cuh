// SPDX-License-Identifier: MIT
// A group of modes that one pass over memory contracts on chip, as compile-time values: the tile's shape, where its elements
// stand in shared memory, and the trips (register-to-register steps between two barriers) that replace the modes.
//
// The tile is a tensor [Rows, D_1, .., D_n, Run] with D_i = max(P_i, Q_i): mode i is replaced where it stands, so one buffer
// serves. Level 0 is the rows, level i mode i, level n + 1 the run of neighbouring elements that no factor of the group touches.
// Two threads of an access must not meet in one bank of shared memory. Groups of square modes whose extents are powers of two and that
// have a pair trip, or rotate, keep their elements close together and exchange the 16-byte pieces of each 128 bytes (swizzle_of() says how); in
// all other groups strides are rounded up (stride() says how).
#pragma once
#include "endings.cuh"

namespace otimes::kernels {

// One trip: the levels First .. First + Count - 1, by multiply-adds (Unit 0) or by the matrix unit (Unit 1; Count 2: a pair trip), or by
// the warpgroup's matrix unit (Unit 2).
// Split > 1: that many threads (warps) share a fibre, each computes its part of the new index.
template <int First, int Count, int Unit, int Split>
struct trip {
    static constexpr int first = First, count = Count, unit = Unit, split = Split;
};

template <class... Trips>
struct trips {
    static constexpr int count = sizeof...(Trips);
    __host__ __device__ static constexpr int first(int i) {
        constexpr int v[] = {Trips::first...};
        return v[i];
    }
    __host__ __device__ static constexpr int modes(int i) {
        constexpr int v[] = {Trips::count...};
        return v[i];
    }
    __host__ __device__ static constexpr int unit(int i) {
        constexpr int v[] = {Trips::unit...};
        return v[i];
    }
    __host__ __device__ static constexpr int split(int i) {
        constexpr int v[] = {Trips::split...};
        return v[i];
    }
    __host__ __device__ static constexpr int of_level(int level) {
        for (int i = 0; i < count; ++i)
            if (level >= first(i) && level < first(i) + modes(i)) return i;
        return -1;
    }
};

template <class Scalar, int Ending, bool Addend, bool Together, int Registers>
struct last_step_of;  // last_step.cuh

template <class Storage, int Rows, int Run, int Threads, int BlocksPerMultiprocessor, int Segments, int Slots,
          int Cluster, int Slices, class P, class Q, class Trips, int Terms = 1, bool Addend = false, bool Kept = false,
          int Inputs = 1, int Ending = ends_stored, bool Scattered = false, bool Single = false, bool Unaligned = false>
struct mode_group {
    using storage = Storage;                           // in memory
    using scalar = typename computing<Storage>::type;  // on chip
    // Half and bfloat16: the tile's 16-bit elements arrive in a stage as they stand in memory, and become floats where they are worked on, so
    // that the next tile arrives meanwhile; where they are worked on in the stage, in another one.
    static constexpr bool widens = !is_same<Storage, scalar>;
    // The matrix unit takes one TF32 product for each product: it has the precision of 16-bit elements; of floats, where that was asked for.
    static constexpr bool single_products = widens || Single;
    static_assert(!Single || is_same<scalar, float>, "single products: of floats");
    using steps = Trips;
    static constexpr int rows = Rows, run = Run, threads = Threads, blocks_per_multiprocessor = BlocksPerMultiprocessor;
    static constexpr int segments = Segments;  // parts of a tile, cut along mode 1, that arrive one by one
    static constexpr int slots = Slots;        // staged parts, or places more of a ring; 0: loaded where worked on
    static constexpr int cluster = Cluster;    // blocks that share a tile, cut along mode `cut`
    static constexpr int slices = Slices;   // blocks that each compute so much of the last mode's new index of a tile
    static constexpr bool addend = Addend;  // what is added stands elsewhere than Y
    // Of a thread.
    static constexpr int registers =
        65536 / (Threads * BlocksPerMultiprocessor) < 255 ? 65536 / (Threads * BlocksPerMultiprocessor) / 8 * 8 : 255;
    // Passes of one mode and kernels of sums add to Y as a rule, others by += alone.
    using last_step =
        typename last_step_of<Storage, Ending, Addend, Addend || (Terms > 1) || Trips::count == 1, registers>::type;
    static constexpr int ending = Ending;
    // A tile is part of the old index of mode 1, with as many rows of its factor, and its image the whole row.
    static constexpr bool in_pieces = Ending == ends_in_dot_of_pieces;
    static_assert(!in_pieces || (Run == 1 && Rows == 1 && Slots == 0 && Slices == 1),
                  "pieces of whole trailing tensors");
    static constexpr bool reads_y = reads_in_place_of_y(Ending);
    static constexpr bool sums_up = reads_y || Ending == ends_in_norm;  // and stores nothing
    static_assert(Ending == ends_stored || (Terms == 1 && !Addend), "one term, of which nothing else becomes");
    static constexpr bool scattered = Scattered;  // its tiles go to several matrices, in whole lines
    // Y's rows begin where no 16-byte access may. From where a thread computes neighbours, every store of a warp would touch as many times
    // more sectors. So a last trip by multiply-adds takes fibres one by one, and the results of the matrix unit go by way of shared memory, so that
    // neighbouring threads store neighbours.
    static constexpr bool unaligned = Unaligned;
    static constexpr bool staged = Unaligned && Trips::unit(Trips::count - 1) > 0;
    static_assert(!Unaligned || (Run > 1 && Slots == 0 && Cluster == 1 && Slices == 1 && Terms == 1 && Inputs == 1 &&
                                 !Addend && Ending == ends_stored && !Scattered && !widens),
                  "unaligned results: of one product of an outer group, loaded where it is worked on");
    static_assert(!Scattered || (Run == 1 && Cluster == 1 && Slices == 1 && Terms == 1 && Inputs == 1 && !Addend &&
                                 Ending == ends_stored),
                  "scattered: whole trailing tensors of one product");
    static constexpr int terms = Terms;  // products of the same X that are added up, each with factors of its own
    static constexpr bool kept =
        Kept;  // X stays on chip for all terms, in a tile of its own, and so does their sum, in registers
    // Matrices that follow each other along mode 1 of X, each with a part of its factor: X_1 * F_1 + X_2 * F_2.
    static constexpr int inputs = Inputs;
    static_assert(Inputs == 1 || (Run > 1 && Rows == 1 && P::count == 1 && P::at(0) % (8 * Inputs) == 0 &&
                                  Trips::unit(0) > 0 && Segments == 1 && Cluster == 1 && Terms == 1 && !Addend),
                  "several inputs: one outer mode by the matrix unit");
    static constexpr int modes = P::count;
    static constexpr int run_level = modes + 1;
    static constexpr int words = sizeof(scalar) / 4;         // of four bytes, an element
    static constexpr int vector = 16 / int(sizeof(scalar));  // elements of a 16-byte access
    static constexpr bool is_complex = is_same<scalar, complex<float>> || is_same<scalar, complex<double>>;

    static_assert(P::count == Q::count && Threads % 32 == 0);
    static_assert(!widens || (Segments == 1 && (Slots == 1 || Slots == 2) && Cluster == 1 && Slices == 1 &&
                              Terms == 1 && !Addend && Inputs == 1 && Ending == ends_stored && !Scattered),
                  "half and bfloat16: one product, stored, of tiles that arrive in one stage or two");
    static_assert(Slots > 0 || Segments == 1);

    __host__ __device__ static constexpr bool is_pair(int step) {
        return Trips::unit(step) == 1 && Trips::modes(step) == 2;
    }
    __host__ __device__ static constexpr bool is_pair_of_eights(int step) {
        return is_pair(step) && P::at(Trips::first(step)) == 8;
    }
    __host__ __device__ static constexpr bool any_pair() {
        for (int i = 0; i < Trips::count; ++i)
            if (is_pair(i)) return true;
        return false;
    }
    // And by a warp's or a warpgroup's matrix unit.
    __host__ __device__ static constexpr bool all_powers_of_two(int most_unit) {
        for (int i = 0; i < P::count; ++i)
            if (P::at(i) != Q::at(i) || (P::at(i) & (P::at(i) - 1)) != 0) return false;
        for (int i = 0; i < Trips::count; ++i)
            if (Trips::unit(i) < 1 || Trips::unit(i) > most_unit) return false;
        return (Run & (Run - 1)) == 0;
    }
    // A tile takes two of three places, one for each half of mode 1. The third one takes the first half of the next tile while this one is
    // worked on; the last trip refills the first half's place with the next tile's second half. So something arrives during every
    // trip, for half a tile more of shared memory: where a tile has its multiprocessor to itself.
    static constexpr bool rotates = Segments == 2 && Slots == 1 && Run * words >= 32 && Rows == 1 && Cluster == 1 &&
                                    Terms == 1 && Inputs == 1 && !is_complex && !any_pair() && all_powers_of_two(2) &&
                                    P::at(0) == 32 && Trips::count == P::count && Trips::count > 1 &&
                                    Trips::first(Trips::count - 1) == 1 && Trips::split(Trips::count - 1) == 1;
    __host__ __device__ static constexpr bool all_multiply_adds() {
        for (int i = 0; i < Trips::count; ++i)
            if (Trips::unit(i) != 0) return false;
        return true;
    }
    __host__ __device__ static constexpr bool is_square() {
        for (int i = 0; i < P::count; ++i)
            if (P::at(i) != Q::at(i)) return false;
        return true;
    }
    // No trip's fibres are shared by threads, and registers hold each of them.
    __host__ __device__ static constexpr bool all_whole_fibres() {
        for (int i = 0; i < Trips::count; ++i) {
            int n = 1;
            for (int l = Trips::first(i); l < Trips::first(i) + Trips::modes(i); ++l) n *= P::at(l - 1);
            if (Trips::split(i) != 1 || n * words > 128) return false;
        }
        return true;
    }
    // The slices of mode 1 of a row, and with `Slots` more some of the next row's, stand in a ring of places, and each has a warp (ring_pass.cuh):
    // the first trip replaces mode 1 across the slices, the others stay within one. For rows that a block alone can hold.
    static constexpr bool ring =
        Segments > 1 && Segments == P::at(0) && Slots > 0 && Slots <= Segments&& Trips::first(0) == 1 &&
        Trips::modes(0) == 1 && Trips::split(0) == 1 && Trips::count > 1 && Rows == 1 && Run == 1 &&
        Threads == 32 * Segments&& Cluster == 1 && Slices == 1 && Terms == 1 && Inputs == 1 && !Scattered && !widens &&
        !is_complex && !in_pieces && is_square() && all_multiply_adds() && all_whole_fibres();
    static constexpr int ring_sums =
        64 / words;  // held at a time, of the 255 registers that a thread of a block alone has
    static_assert(!ring || BlocksPerMultiprocessor * Threads <= 256,
                  "a ring: a thread has all the registers that there are");
    static_assert(Slots == 0 || Segments == 1 || ring ||
                  (Rows == 1 && P::at(0) % Segments == 0 && Trips::first(0) > 1));
    static constexpr bool swizzled = any_pair() || rotates;
    static_assert(!any_pair() || (all_powers_of_two(1) && Segments == 1),
                  "a pair trip wants square modes, powers of two, all by the matrix unit");
    static constexpr int cut = swizzled ? Trips::first(Trips::count - 1) : 1;  // the level that a cluster shares out
    static_assert(Cluster == 1 || (Rows == 1 && Slots == 0 && P::at(cut - 1) % Cluster == 0 &&
                                   (is_pair(Trips::count - 1)
                                        ? cut + 1 == P::count && Run == 1
                                        : Trips::first(Trips::count - 1) == 1 && Trips::modes(Trips::count - 1) == 1)),
                  "the last trip of a cluster replaces mode 1 alone, or the last two modes as a pair");

    static_assert(
        Slices == 1 || (Run == 1 && Slots == 0 && Cluster == 1 && Q::at(modes - 1) % Slices == 0 &&
                        all_multiply_adds() && Trips::modes(Trips::of_level(modes)) == 1),
        "slices: a trailing group by multiply-adds, its last mode in a trip of its own, loaded where it is worked on");

    __host__ __device__ static constexpr int max(int a, int b) { return a > b ? a : b; }
    __host__ __device__ static constexpr int p(int level) { return P::at(level - 1); }
    // New extent in this block: of the last mode one slice.
    __host__ __device__ static constexpr int q(int level) { return Q::at(level - 1) / (level == modes ? Slices : 1); }
    // Offset in Y of an element of this block's slice (a row's linear index), from the slice's first.
    __host__ __device__ static constexpr int sliced_offset(int index) {
        return Slices == 1 ? index : index / q(modes) * Q::at(modes - 1) + index % q(modes);
    }
    __host__ __device__ static constexpr int allotted(int level) {
        return level == 0           ? Rows
               : level == run_level ? Run
                                    : max(p(level), q(level)) / (swizzled && level == cut ? Cluster : 1);
    }

    __host__ __device__ static constexpr int allotted_product(int first) {
        int n = 1;
        for (int l = first; l <= run_level; ++l) n *= allotted(l);
        return n;
    }

    // Extents before trip `step`; step = Trips::count: after the last. In a swizzled cluster those of one block's part.
    __host__ __device__ static constexpr int extent(int step, int level) {
        if (level == 0) return Rows;
        if (level == run_level) return Run;
        if (swizzled) return allotted(level);
        return Trips::of_level(level) < step ? q(level) : p(level);
    }

    __host__ __device__ static constexpr int extent_product(int step, int first, int last) {
        int n = 1;
        for (int l = first; l <= last; ++l) n *= extent(step, l);
        return n;
    }

    // Elements from one index of a level to the next.
    //  - matrix unit on an inner mode: a quarter warp reads 2 neighbouring 16-byte pieces at 4 indices of the mode, so the
    //    stride is 8 or 24 modulo the 32 banks; on the last mode the same holds for the stride from fibre to fibre;
    //  - multiply-adds on the last modes: threads read neighbouring chunks by 16 bytes, so the chunk's stride is 4 modulo 8;
    //  - multiply-adds above a short stretch: threads that differ in the index above it continue the stretch's banks.
    __host__ __device__ static constexpr int stride(int level) {
        if (level == run_level) return 1;
        int elements = allotted(level + 1) * stride(level + 1);
        if (allotted(level) == 1 || swizzled) return elements;
        const bool inner_matrix = level >= 1 && elements > 1 && Trips::unit(Trips::of_level(level)) > 0;
        const bool last_matrix =
            level < modes && Run == 1 && level + 1 == modes && Trips::unit(Trips::of_level(modes)) > 0;
        if (inner_matrix || last_matrix) {
            while ((elements * words) % 32 != 8 && (elements * words) % 32 != 24)
                elements += elements % vector ? 1 : vector;
            return elements;
        }
        const int above = level < modes ? Trips::of_level(level + 1) : -1;
        if (above >= 0 && Trips::first(above) == level + 1 && Trips::unit(above) == 0) {
            const int below = allotted_product(level + 1 + Trips::modes(above));  // elements under the trip's modes
            if (below == 1) {
                if (elements * words >= 32 && (elements * words) % 8 == 0) elements += 4 / words > 0 ? 4 / words : 1;
            } else if (below * words < 32 && below % vector == 0 && 32 % (below * words) == 0 && elements % vector == 0)
                while ((elements * words) % 32 != below * words) elements += vector;
        }
        return elements;
    }

    // Swizzled groups: the element at linear offset o stands at place(o) = o ^ swizzle_of(o): three bits of its 16-byte piece's number
    // are exchanged by bits of the indices that the lanes of one access differ in. Linear: place(a ^ b) = place(a) ^ place(b).
    //  - pair trip above other elements: a quarter warp differs in two bits of the lower index and one of the upper (reading), or
    //    in two bits of the upper and one of the lower (writing);
    //  - pair trip on the last modes: in the row (upper index) and the place within it;
    //  - single mode: in one bit of the neighbouring elements and two bits of the mode's index.
    static constexpr int vector_bits = words == 1 ? 2 : 1;
    __host__ __device__ static constexpr int log2(int n) { return n <= 1 ? 0 : 1 + log2(n / 2); }
    __host__ __device__ static constexpr unsigned swizzle_mask(int bit) {
        unsigned mask = 0;
        if (swizzled)
            for (int i = 0; i < Trips::count; ++i) {
                const int upper = log2(stride(Trips::first(i)));
                const bool writes_tile = i + 1 < Trips::count;
                if (is_pair(i)) {
                    const int lower = log2(stride(Trips::first(i) + 1));
                    if (lower >= vector_bits + 3)
                        mask |= bit == 0 ? 1u << lower : bit == 1 ? (2u << lower) | (2u << upper) : 1u << upper;
                    else if (lower == vector_bits + 2)  // the lower index's first bit stands among the piece's
                        mask |= bit == 0 ? (2u << lower) | (2u << upper) : bit == 1 ? 1u << upper : 0u;
                    else if (lower > 0)  // its first two
                        mask |= bit == 0 ? 1u << upper : bit == 2 ? 2u << upper : 0u;
                    else
                        mask |= bit == 1 && writes_tile && upper + 1 >= vector_bits + 3 ? 2u << upper
                                : bit == 2 && upper >= vector_bits + 3                  ? 1u << upper
                                                                                        : 0u;
                } else
                    mask |= bit == 1 ? 1u << upper : bit == 2 ? 2u << upper : 0u;
            }
        return mask;
    }
    template <int Bit>
    __host__ __device__ static constexpr int swizzle_bit(int offset) {
        constexpr unsigned mask = swizzle_mask(Bit);
        static_assert((mask & ((8u << vector_bits) - 1)) == 0);
        unsigned parity = 0;
        for (int b = 0; b < 20; ++b)
            if (mask >> b & 1u) parity ^= unsigned(offset) >> b;
        return int((parity & 1u) << (Bit + vector_bits));
    }
    __host__ __device__ static constexpr int swizzle_of(int offset) {
        if constexpr (swizzled)
            return swizzle_bit<0>(offset) | swizzle_bit<1>(offset) | swizzle_bit<2>(offset);
        else
            return 0;
    }
    __host__ __device__ static constexpr int place(int offset) { return offset ^ swizzle_of(offset); }
    // place(o + c), placed = place(o), for a constant c that has no bit in common with o.
    __host__ __device__ static constexpr int place_further(int placed, int c) {
        return !swizzled || (swizzle_of(c) == 0 && (c >> vector_bits & 7) == 0) ? placed + c : placed ^ place(c);
    }

    __host__ __device__ static constexpr int count_p() {
        int n = 1;
        for (int l = 1; l <= modes; ++l) n *= p(l);
        return n;
    }
    __host__ __device__ static constexpr int count_q() {
        int n = 1;
        for (int l = 1; l <= modes; ++l) n *= q(l);
        return n;
    }
    __host__ __device__ static constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }
    static constexpr int main_count = (Cluster == 1 && !in_pieces) || swizzled
                                          ? round_up(Rows * stride(0), vector)
                                          : round_up(p(1) / Cluster * stride(1), vector);
    static constexpr int slot_count = widens          ? round_up(Rows * count_p() * Run, 8) / 2
                                      : Segments == 1 ? main_count
                                                      : round_up(p(1) / Segments * stride(1), vector);

    // Steps of eight that the matrix unit adds up before a sum leaves it: two where the rounding of longer sums is well above what that
    // costs, and the additions outside would take half of the instructions.
    __host__ __device__ static constexpr int chained(int level) {
#ifdef OTIMES_WARPGROUP_CHAIN
        if (warpgroup_level(level)) return OTIMES_WARPGROUP_CHAIN;
#endif
        return warpgroup_level(level) && p(level) % 16 == 0 ? 2 : 1;
    }

    // Factors in shared memory. Multiply-adds: [P][Q, rounded up to 16 bytes where padded_rows()]. Matrix unit: fragments [P/8][Q/8][32 lanes]
    // (complex: [P/4][Q/4][16 elements]), a lane's
    // words side by side; float: high and low parts, unsplit when those would take more than 32 KiB. Warpgroup's matrix unit: high part,
    // then low part, each as warpgroup_unit.cuh says.
    __host__ __device__ static constexpr bool matrix_level(int level) {
        return Trips::unit(Trips::of_level(level)) > 0;
    }
    __host__ __device__ static constexpr bool warpgroup_level(int level) {
        return Trips::unit(Trips::of_level(level)) == 2;
    }
    __host__ __device__ static constexpr bool any_warpgroup() {
        for (int l = 1; l <= modes; ++l)
            if (warpgroup_level(l)) return true;
        return false;
    }
    // A trip whose fibres several warps share waits for the block between reading and writing.
    __host__ __device__ static constexpr bool trips_without_barriers() {
        for (int i = 0; i < Trips::count; ++i)
            if (Trips::split(i) > 1) return false;
        return true;
    }
    // Extents of a factor's fragments: the unit takes eight indices at a time, as many for each warp that shares a fibre; what a mode of
    // other extents has not is zero there.
    __host__ __device__ static constexpr int unit_p(int level) { return is_complex ? p(level) : round_up(p(level), 8); }
    __host__ __device__ static constexpr int unit_q(int level) {
        return is_complex ? q(level) : round_up(q(level), 8 * Trips::split(Trips::of_level(level)));
    }
    __host__ __device__ static constexpr bool filled_up(int level) {
        return matrix_level(level) && (unit_p(level) != p(level) || unit_q(level) != q(level));
    }
    __host__ __device__ static constexpr bool presplit(int level) {
        return !single_products && (words == 1 || is_same<scalar, complex<float>>)&&(
                                       unit_p(level) * unit_q(level) <= 4096 || warpgroup_level(level));
    }
    // Neighbouring fibres that a lane of the unit takes by one access in a trip on an inner mode: what is contiguous below, and every
    // stride, must be whole accesses.
    __host__ __device__ static constexpr int unit_width(int step) {
        int w = vector;
        while (w > 1 && (Run > 1 ? Run : extent(step, modes)) % w) w /= 2;
        for (int l = 0; l <= modes; ++l)
            while (w > 1 && (l < modes || Run > 1) && allotted(l) > 1 && stride(l) % w) w /= 2;
        return w;
    }
    // Threads that share a fibre and take less than an access of a row each leave the rows as they stand in memory.
    __host__ __device__ static constexpr bool padded_rows(int level) {
        const int split = Trips::split(Trips::of_level(level));
        return split == 1 || (q(level) + split - 1) / split % vector == 0;
    }
    __host__ __device__ static constexpr int factor_pitch(int level) {
        return padded_rows(level) ? round_up(q(level), vector) : q(level);
    }
    // Long factors of pieces, which fill shared memory, are read where they stand, from L2; in a cluster of more than eight blocks, which a
    // row takes whose factors leave no room in fewer, that of the last trip, which waits for other blocks' memory all the same.
    __host__ __device__ static constexpr bool factor_in_memory(int level) {
        return words == 2 && !is_complex && matrix_level(level) &&
               ((in_pieces && p(level) * q(level) > 8192) || (Cluster > 8 && level == 1 && p(1) * q(1) > 2048));
    }
    __host__ __device__ static constexpr int factor_count(int level) {
        return factor_in_memory(level) ? 0
               : matrix_level(level)   ? unit_p(level) * unit_q(level) * (presplit(level) ? 2 : 1)
                                       : round_up(p(level) * factor_pitch(level), vector);
    }
    __host__ __device__ static constexpr int factor_offset(int level) {
        int n = 0;
        for (int l = 1; l < level; ++l) n += factor_count(l);
        return n;
    }

    // The last trip stores to Y itself when it leaves runs of at least a 32-byte sector there, or a slice's runs, which are no longer
    // after another trip through shared memory. Links between GPUs want whole lines.
    static constexpr int last_level = Trips::first(Trips::count - 1) + Trips::modes(Trips::count - 1) - 1;
    static constexpr bool direct =
        !Scattered && !staged &&
        (is_pair(Trips::count - 1)
             ? last_level == modes && Run == 1
             : extent_product(Trips::count, last_level + 1, modes) * Run * int(sizeof(Storage)) >= 32 ||
                   (Trips::unit(Trips::count - 1) > 0 && !(filled_up(last_level) && last_level == modes && Run == 1)) ||
                   (Slices > 1 && last_level < modes));
    static_assert(!ring || direct, "a ring's last trip stores to Y itself");
    static_assert(!in_pieces || (direct && last_level == 1), "the last trip of a piece replaces mode 1 alone");
    // 16-bit elements: a pair trip on the last modes reads them from the stage, where it makes floats of them.
    static constexpr bool reads_raw = widens && is_pair(0) && Trips::first(0) + 1 == modes && Run == 1;
    static constexpr bool only_staged = Slots > 0 && Trips::count == 1 && direct &&
                                        (!widens || reads_raw);  // stage -> Y, nothing between

    // Refilling: in the last trip each thread sends for the next tile's words in the place of those that it alone reads, as soon as it
    // has read them, so that the next tile arrives while this one's products are computed and stored, in the same shared memory. Only
    // where that was measured to gain (docs/notebook/gpu.md): modes of 32 by the matrix unit, in double with one block a multiprocessor;
    // the other groups' blocks hide each other's loads, and more of them on their way slow the stores.
    static constexpr bool refills =
        Slots == 0 && Cluster == 1 && Slices == 1 && Terms == 1 && Inputs == 1 && !Scattered && !Unaligned &&
        !in_pieces && !is_complex && is_square() && P::at(0) == 32 && Trips::first(Trips::count - 1) == 1 &&
        Trips::unit(Trips::count - 1) > 0 && !is_pair(Trips::count - 1) && Trips::split(Trips::count - 1) == 1 &&
        (Run > 1 || modes > 1) && unit_width(Trips::count - 1) == vector &&
        (words == 1 || BlocksPerMultiprocessor == 1);

    // Asking ahead: the lines of the next tile begin to travel to L2 when this one has come. Where that was measured to gain (docs/notebook/gpu.md): single
    // modes, and two trailing ones by the unit, one after the other; the latter, and short lines side by side, in so few warps that they do not hide all of
    // a load. A multiprocessor's tiles are to be small enough to stay in L2 until they are read; a second matrix is asked for instead.
    static constexpr bool few_warps = Threads * BlocksPerMultiprocessor <= 512;
    static constexpr bool few_bytes =
        Rows * count_p() * Run * int(sizeof(Storage)) * BlocksPerMultiprocessor <= 112 * 1024;
    static constexpr bool asks_ahead = Slots == 0 && Cluster == 1 && Slices == 1 && Terms == 1 && Inputs == 1 &&
                                       Trips::count == modes && few_bytes && !refills && !single_products && !reads_y &&
                                       !in_pieces && !Scattered &&
                                       (modes == 1 ? Run == 1 || Rows == 1 || few_warps
                                                   : modes == 2 && Run == 1 && few_warps && !is_complex &&
                                                         Trips::unit(0) > 0 && Trips::unit(Trips::count - 1) > 0);

    // Launched early, it may read its factors, and X, before it waits for the launch in front (tile_schedules.cuh): where a pass may come second, or
    // blocks are few, and as the executor launches early. Elsewhere the other way would only take registers.
    static constexpr bool places_early = (Slots == 0 || rotates) && Terms == 1 && Cluster == 1 && !in_pieces &&
                                         (Run > 1 ? BlocksPerMultiprocessor <= 4 : BlocksPerMultiprocessor == 1);
    // And compute: slices whose threads have so many multiply-adds (in words) that this gains more than what follows loses, which can itself
    // begin only after that wait.
    __host__ __device__ static constexpr int products_each() {
        int n = 0;
        for (int i = 0; i < Trips::count; ++i)
            for (int l = Trips::first(i); l < Trips::first(i) + Trips::modes(i); ++l)
                n += Rows * extent_product(i, 1, modes) * q(l);
        return n / Threads;
    }
    static constexpr bool waits_late = places_early && Slices > 1 && products_each() * words >= 512;

    // A staged trip alone may keep its warp's part of the factor in registers over all tiles: at most 128 words a lane.
    static constexpr int held_words =
        only_staged && Trips::unit(0) == 1 && !is_pair(0) && !is_complex && (words == 2 || presplit(Trips::first(0)))
            ? factor_count(Trips::first(0)) * words / (32 * Trips::split(0))
            : 0;
    static constexpr bool holds_factor = held_words > 0 && held_words <= (words == 2 ? 128 : 64) &&
                                         BlocksPerMultiprocessor* Threads*(held_words + 96) <= 65536;

    // Stages follow the factors and the tile; when the factor lives in registers they take its place.
    // The factors of all terms where they take little room, else those of the term at work.
    static constexpr int factors_each = factor_offset(modes + 1);
    static constexpr bool factors_stay =
        Terms == 1 || Terms * factors_each * int(sizeof(scalar)) <= (Kept ? 131072 : 24576);
    static_assert(Terms == 1 || (Slots == 0 && Slices == 1), "terms: a tile that is loaded where it is worked on");
    static constexpr int main_offset = (factors_stay ? Terms : 1) * factors_each;
    static_assert(!Kept || (Terms > 1 && Run == 1 && Cluster == 1), "kept: several terms of whole trailing tensors");
    static constexpr int stage_offset =
        holds_factor ? 0 : main_offset + (only_staged || ring ? 0 : (Kept ? 2 : 1) * main_count);
    static constexpr int stage_count = Slots + (ring ? Segments : 0);
    // Several stages alone, and no other block that hides one warp's stores behind another's products: a warp waits for what has arrived
    // in them instead of for all others; two barriers for each stage.
    static constexpr bool flows = only_staged && Slots > 1 && (holds_factor || BlocksPerMultiprocessor == 1);
    static constexpr int stage_barriers_offset =
        max(holds_factor ? main_offset : 0, stage_offset + stage_count * slot_count) * int(sizeof(scalar));
    static constexpr int shared_bytes = stage_barriers_offset + (flows     ? 2 * Slots * 8
                                                                 : rotates ? 2 * 8
                                                                 : ring    ? stage_count * 8
                                                                           : 0);

    // Of fused_sum: the factors, X, with a slot the next X, and the sum.
    static constexpr int sum_bytes = (main_offset + (2 + Slots) * main_count) * int(sizeof(scalar));

    // The longest stretch that is contiguous both in a row of X (Y) and in the tile.
    __host__ __device__ static constexpr int contiguous(int step) {
        if (Run > 1) return Run;
        int n = 1;
        for (int l = modes; l >= 1 && stride(l) == n; --l) n *= extent(step, l);
        return n;
    }
    __host__ __device__ static constexpr bool rows_contiguous(int step) {
        return Run == 1 && (Rows == 1 || contiguous(step) == stride(0)) &&
               contiguous(step) == extent_product(step, 1, modes);
    }
    // Elements of the widest access that divides n and every stride outside the stretch.
    __host__ __device__ static constexpr int widest(int step, int n) {
        int w = vector;
        while (w > 1 && n % w) w /= 2;
        for (int l = 0; l <= modes; ++l)
            while (w > 1 && stride(l) >= contiguous(step) && allotted(l) > 1 && stride(l) % w) w /= 2;
        return w;
    }
    // The same for n elements that are contiguous in the tile.
    __host__ __device__ static constexpr int widest_stretch(int n) {
        int w = vector;
        while (w > 1 && n % w) w /= 2;
        return w;
    }
    // Elements below `level` that are neighbours in the tile before trip `step`: a mode that became shorter leaves gaps.
    __host__ __device__ static constexpr int stretch_below(int step, int level) {
        int n = 1;
        for (int l = run_level; l > level; --l) {
            if (extent(step, l) == 1) continue;
            if (stride(l) != n) return n;
            n *= extent(step, l);
        }
        return n;
    }
    // Before trip `step`, whole accesses to the elements below `level`: what is contiguous there and every stride outside it is a multiple of the
    // vector, also of a mode that has yet to grow.
    __host__ __device__ static constexpr bool vectors_below(int step, int level) {
        const int n = stretch_below(step, level);
        for (int l = 0; l <= modes; ++l)
            if (allotted(l) > 1 && stride(l) >= n && stride(l) % vector) return false;
        return n % vector == 0;
    }
    // Every level's stride at and above `level` is a multiple of the vector.
    __host__ __device__ static constexpr bool vector_strides(int level) {
        for (int l = 0; l <= level; ++l)
            if (allotted(l) > 1 && stride(l) % vector) return false;
        return true;
    }
};

// Linear index over levels First..Last (last fastest) -> offset in the tile, neighbouring levels that are contiguous merged.
template <class Group, int Step, int Part, int First, int Last>
struct merged_levels {
    struct table {
        int count = 0;
        int extent[24] = {};
        int stride[24] = {};
    };
    __host__ __device__ static constexpr table make() {
        table t;
        for (int l = Last; l >= First; --l) {
            const int e = l == 1 ? Group::extent(Step, l) / Part : Group::extent(Step, l);
            if (e == 1) continue;
            if (t.count > 0 && Group::stride(l) == t.extent[t.count - 1] * t.stride[t.count - 1])
                t.extent[t.count - 1] *= e;
            else {
                t.extent[t.count] = e;
                t.stride[t.count] = Group::stride(l);
                ++t.count;
            }
        }
        return t;
    }
    static constexpr table value = make();
};

template <class Group, int Step, int Part, int First, int Last>
__device__ __forceinline__ int tile_offset(int index) {
    using levels = merged_levels<Group, Step, Part, First, Last>;
    constexpr int count = levels::value.count;
    int offset = 0;
    if constexpr (count > 0) {
        for_constants<0, count - 1>([&](auto i) {
            constexpr int e = levels::value.extent[decltype(i)::value];
            constexpr int s = levels::value.stride[decltype(i)::value];
            const unsigned q = unsigned(index) / unsigned(e);
            offset += int(unsigned(index) - q * unsigned(e)) * s;
            index = int(q);
        });
        constexpr int s = levels::value.stride[count - 1];
        offset += index * s;
    }
    return offset;
}

}  // namespace otimes::kernels
