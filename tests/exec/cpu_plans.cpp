// SPDX-License-Identifier: MIT
// The cpu executor against the reference loops: made plans on made machines, plans bent by hand so that every path of the
// executor is met, operands with guard zones and gaps, poisoned results.
#include <doctest/doctest.h>

#include <otimes/exec/cpu.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/plan/planner.hpp>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "plan/programs.hpp"
#include "support/long_tests.hpp"

namespace {

using otimes::dtype;
using planner_test::chain_spec;
using planner_test::factor;
using planner_test::free_mode;

template <class Scalar>
using real_of = decltype(std::real(Scalar()));

template <class Scalar>
Scalar draw(std::mt19937& bits) {
    std::uniform_real_distribution<double> between(-1, 1);
    if constexpr (otimes::is_complex(otimes::dtype_of<Scalar>())) {
        const double re = between(bits);
        return Scalar(static_cast<real_of<Scalar>>(re), static_cast<real_of<Scalar>>(between(bits)));
    } else {
        return static_cast<Scalar>(between(bits));
    }
}

// Storage of an operand: exactly the elements that its strides reach, with a guard zone on both sides.
template <class Scalar>
class guarded {
public:
    static constexpr std::size_t guard = 64;

    guarded(const otimes::program& p, std::int32_t id) {
        std::size_t last = 0;
        bool empty = false;
        for (const otimes::mode& m : p.modes_of(id)) {
            last += static_cast<std::size_t>((m.extent - 1) * m.stride);
            empty = empty || m.extent == 0;
        }
        size_ = empty ? 0 : last + 1;
        storage_.assign(size_ + 2 * guard, poison());
        reached_.assign(size_, false);
        if (!empty) {
            reach(p.modes_of(id), 0);
        }
    }
    [[nodiscard]] Scalar* data() { return storage_.data() + guard; }
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] bool reached(std::size_t i) const { return reached_[i]; }
    void fill(std::mt19937& bits) {
        for (std::size_t i = 0; i < size_; ++i) {
            if (reached_[i]) {
                data()[i] = draw<Scalar>(bits);
            }
        }
    }
    // Everything that the strides do not reach still holds the poison.
    [[nodiscard]] bool surroundings_intact() const {
        const Scalar want = poison();
        for (std::size_t i = 0; i < storage_.size(); ++i) {
            const bool inside = i >= guard && i < guard + size_;
            if (!(inside && reached_[i - guard]) && std::memcmp(&storage_[i], &want, sizeof(Scalar)) != 0) {
                return false;
            }
        }
        return true;
    }

private:
    static Scalar poison() { return Scalar(std::numeric_limits<real_of<Scalar>>::quiet_NaN()); }
    void reach(std::span<const otimes::mode> modes, std::size_t at) {
        if (modes.empty()) {
            reached_[at] = true;
            return;
        }
        for (std::int64_t i = 0; i < modes[0].extent; ++i) {
            reach(modes.subspan(1), at + static_cast<std::size_t>(i * modes[0].stride));
        }
    }
    std::vector<Scalar> storage_;
    std::vector<bool> reached_;
    std::size_t size_ = 0;
};

// Operands of a program, filled, and its result by the reference loops.
template <class Scalar>
struct fixture {
    otimes::program source;
    std::vector<guarded<Scalar>> operands;
    std::vector<Scalar> before;    // the output before
    std::vector<Scalar> expected;  // the output by the reference loops
    otimes::bindings bound;
    std::int32_t output = 0;

    fixture(const chain_spec& spec, std::mt19937& bits) : source(planner_test::chain_program(spec)) {
        for (std::size_t id = 0; id < source.tensors.size(); ++id) {
            const otimes::tensor& t = source.tensors[id];
            if (t.binding < 0) {
                continue;
            }
            operands.emplace_back(source, static_cast<std::int32_t>(id));
            if (t.role == otimes::tensor_role::output) {
                output = t.binding;
            }
            if (t.role != otimes::tensor_role::output || spec.add) {
                operands.back().fill(bits);
            }
        }
        for (guarded<Scalar>& o : operands) {
            bound.pointers.push_back(o.data());
        }
        bound.scalars.push_back({0.75, otimes::is_complex(spec.type) ? -0.5 : 0.0});
        guarded<Scalar>& y = result();
        before.assign(y.data(), y.data() + y.size());
        otimes::reference_run<Scalar>(source, bound);
        expected.assign(y.data(), y.data() + y.size());
        restore();
    }
    guarded<Scalar>& result() { return operands[static_cast<std::size_t>(output)]; }
    void restore() { std::copy(before.begin(), before.end(), result().data()); }

    // Largest difference, relative to the largest value, or to 0.1 where that is less: a lone sum of values up to 1 may cancel.
    // NaN counts as infinite.
    double error() {
        double largest = 0.1, worst = 0;
        guarded<Scalar>& y = result();
        for (std::size_t i = 0; i < y.size(); ++i) {
            if (y.reached(i)) {
                largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
                const auto off = static_cast<double>(std::abs(y.data()[i] - expected[i]));
                worst = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(worst, off);
            }
        }
        return worst / largest;
    }
    void check(const otimes::plan& p, otimes::workspace_view workspace = {}) {
        restore();
        otimes::enable_cpu<Scalar>();
        otimes::cpu().run(p, bound, workspace);
        CHECK(error() <= 64 * static_cast<double>(std::numeric_limits<real_of<Scalar>>::epsilon()));
        for (const guarded<Scalar>& o : operands) {
            CHECK(o.surroundings_intact());
        }
    }
};

std::string describe(const chain_spec& spec, const otimes::plan& p) {
    std::string text = std::string(to_string(spec.type)) + " [";
    for (const auto& m : spec.modes) {
        text += std::to_string(m.before) + (m.contracted ? ">" + std::to_string(m.after) : "") + " ";
    }
    text += "] gap " + std::to_string(spec.gap) + (spec.add ? " add" : "") + " threads " + std::to_string(p.threads) +
            " slabs " + std::to_string(p.slab_count) + ":";
    for (const otimes::pass& one : p.passes) {
        text += " pass(";
        for (const otimes::pass_mode& m : one.modes) {
            text += std::to_string(m.extent_in) + ">" + std::to_string(m.extent_out) + "/" +
                    std::to_string(m.stride_in) + "/" + std::to_string(m.stride_out) + " ";
        }
        text += "lane " + std::to_string(one.lane_mode) + " x " + std::to_string(one.lane_count) + ")";
    }
    return text;
}

chain_spec random_spec(std::mt19937& bits, dtype type, std::int64_t largest) {
    const auto pick = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
    };
    chain_spec spec;
    spec.type = type;
    spec.add = pick(0, 2) == 0;
    spec.scalar = pick(0, 1) == 0;
    spec.gap = pick(0, 2) == 0 ? pick(1, 9) : 0;
    const std::int64_t modes = pick(1, 5);
    std::int64_t elements = 1;
    for (std::int64_t k = 0; k < modes; ++k) {
        const std::int64_t most =
            std::max<std::int64_t>(1, std::min<std::int64_t>(largest / elements, k == 0 ? 70 : 19));
        const std::int64_t P = pick(1, most);
        if (pick(0, 3) == 0) {
            spec.modes.push_back(free_mode(P));
            elements *= P;
        } else {
            const std::int64_t Q = pick(1, most);
            spec.modes.push_back(factor(P, Q));
            elements *= std::max(P, Q);
        }
        spec.order_in.push_back(static_cast<std::size_t>(k));
        spec.order_out.push_back(static_cast<std::size_t>(k));
    }
    if (pick(0, 2) == 0) {
        std::shuffle(spec.order_in.begin(), spec.order_in.end(), bits);
    }
    spec.order_out = pick(0, 2) == 0 ? spec.order_out : spec.order_in;
    spec.real_factors = otimes::is_complex(type) && pick(0, 1) == 0 ? static_cast<std::uint32_t>(pick(0, 31)) : 0;
    return spec;
}

otimes::machine random_machine(std::mt19937& bits) {
    const auto pick = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
    };
    otimes::machine m = otimes::host_machine();
    m.cpu.threads = static_cast<std::int32_t>(pick(1, 4));
    m.cpu.l1_bytes = std::int64_t{256} << pick(0, 8);
    m.cpu.l2_bytes = m.cpu.l1_bytes * (std::int64_t{1} << pick(1, 5));
    m.cpu.simd_bytes = static_cast<std::int32_t>(16 << pick(0, 2));
    return m;
}

// A factor packed whole, or in blocks of any size, or read as it lies, where the pass may.
void bend_block(const otimes::plan& p, otimes::pass& one, std::mt19937& bits) {
    const auto pick = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
    };
    one.block_rows = one.block_columns = 0;
    if (one.kernel != otimes::pass_kernel::cpu_tiles || one.sweeps.size() != 1 || one.in == one.out) {
        return;
    }
    const otimes::sweep& s = one.sweeps.front();
    int matrices = 0;
    for (const std::int32_t id : s.factors) {
        const auto modes = p.source.modes_of(id);
        matrices += modes[0].extent != 1 || modes[1].extent != 1 ? 1 : 0;
    }
    if (matrices == 1 && pick(0, 2) > 0) {
        one.block_rows = pick(0, 3) == 0 ? 0 : pick(1, s.p_extent);
        one.block_columns = pick(1, s.q_extent);
    }
}

// Lanes taken from any free mode in any number, tiles of any capacity: plans that no cost model would choose.
void bend(otimes::plan& p, std::mt19937& bits) {
    const auto pick = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
    };
    for (otimes::pass& one : p.passes) {
        if (one.kernel != otimes::pass_kernel::cpu_tiles) {
            continue;
        }
        std::vector<std::int32_t> candidates{-1};
        for (std::size_t k = 0; k < one.modes.size(); ++k) {
            if (std::none_of(one.sweeps.begin(), one.sweeps.end(),
                             [&](const otimes::sweep& s) { return s.mode == static_cast<std::int32_t>(k); })) {
                candidates.push_back(static_cast<std::int32_t>(k));
            }
        }
        one.lane_mode = candidates[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(candidates.size()) - 1))];
        one.lane_count = one.lane_mode < 0 ? 1 : pick(1, 40);
        one.level = pick(0, 1) == 0 ? "memory" : "L2";  // beyond L2 the next tile is asked for ahead
        one.past_caches = pick(0, 1) == 0;
        bend_block(p, one, bits);
    }
    p.flops = 1 << 30;  // threads are started whatever the size
    if (pick(0, 1) == 0) {
        p.tile_elements *= pick(1, 8);
    }
}

template <class Scalar>
void random_plans(unsigned seed, int count, std::int64_t largest) {
    std::mt19937 bits(seed);
    for (int i = 0; i < count; ++i) {
        const chain_spec spec = random_spec(bits, otimes::dtype_of<Scalar>(), largest);
        fixture<Scalar> f(spec, bits);
        const otimes::machine m = random_machine(bits);
        otimes::plan p = otimes::make_plan(f.source, m);
        const std::string text = describe(spec, p);
        CAPTURE(text);
        f.check(p);
        p.flops = 1 << 30;
        f.check(p);
        for (int variant = 0; variant < 3; ++variant) {
            bend(p, bits);
            const std::string bent = describe(spec, p);
            CAPTURE(bent);
            f.check(p);
        }
    }
}

// What a small plan keeps in a memo serves further runs on other operands and scalars, with the bits of an ordinary run, and
// one memo serves one plan after another.
template <class Scalar>
void prepared_plans(unsigned seed, int count) {
    std::mt19937 bits(seed);
    otimes::run_memo memo;
    int prepared = 0;
    for (int i = 0; i < count; ++i) {
        const chain_spec spec = random_spec(bits, otimes::dtype_of<Scalar>(), 3000);
        fixture<Scalar> f(spec, bits);
        otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        if (i % 2 == 0) {
            bend(p, bits);
            for (otimes::pass& one : p.passes) {  // with a factor in blocks it is not prepared
                if (i % 8 != 0) {
                    one.block_rows = one.block_columns = 0;
                }
            }
        }
        p.flops = i % 9 == 0 ? 1 << 30 : 1;
        const std::string text = describe(spec, p);
        CAPTURE(text);
        memo.clear();
        f.restore();
        otimes::enable_cpu<Scalar>();
        otimes::cpu().run_first(p, f.bound, memo);
        CHECK(f.error() <= 64 * static_cast<double>(std::numeric_limits<real_of<Scalar>>::epsilon()));
        for (const double scalar : {1.0, -2.5}) {
            fixture<Scalar> other(spec, bits);
            other.bound.scalars[0] = {scalar, otimes::is_complex(spec.type) && scalar < 0 ? 0.5 : 0.0};
            other.restore();
            otimes::cpu().run(p, other.bound, {});
            const std::vector<Scalar> want(other.result().data(), other.result().data() + other.result().size());
            other.restore();
            const auto holds = [&other](const std::vector<Scalar>& values) {  // bit for bit
                return std::memcmp(other.result().data(), values.data(), values.size() * sizeof(Scalar)) == 0;
            };
            if (!memo.run(other.bound)) {
                CHECK(holds(other.before));
                continue;
            }
            ++prepared;
            CHECK(p.flops == 1);
            CHECK(holds(want));
            for (const guarded<Scalar>& o : other.operands) {
                CHECK(o.surroundings_intact());
            }
        }
    }
    CHECK(prepared > count / 3);
}

// The plan's passes, sums and groups stay; tiles, lanes and threads change: the bits may not.
template <class Scalar>
void same_bits(unsigned seed, int count) {
    std::mt19937 bits(seed);
    for (int i = 0; i < count; ++i) {
        const chain_spec spec = random_spec(bits, otimes::dtype_of<Scalar>(), 6000);
        fixture<Scalar> f(spec, bits);
        otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        const std::string text = describe(spec, p);
        CAPTURE(text);
        f.check(p);
        const std::vector<Scalar> first(f.result().data(), f.result().data() + f.result().size());
        for (int variant = 0; variant < 4; ++variant) {
            bend(p, bits);
            f.check(p);
            bool equal = true;
            for (std::size_t k = 0; k < first.size(); ++k) {
                equal = equal && (!f.result().reached(k) || f.result().data()[k] == first[k]);
            }
            CHECK(equal);
        }
    }
}

// Rows of two and four elements: several in a register, and those that fill none; beside each other, with gaps, and behind other modes. The
// bits are those of a plan whose registers run along the rows, the special values too.
template <class Scalar>
void short_rows(unsigned seed) {
    std::mt19937 bits(seed);
    for (const std::int64_t extent : {2, 4}) {
        for (const std::int64_t rows : {1, 2, 3, 5, 8, 9, 17, 40, 333}) {
            for (const std::int64_t gap : {0, 3}) {
                for (int way = 0; way < 6; ++way) {
                    CAPTURE(extent);
                    CAPTURE(rows);
                    CAPTURE(gap);
                    CAPTURE(way);
                    chain_spec spec;
                    spec.type = otimes::dtype_of<Scalar>();
                    spec.modes = {free_mode(rows), factor(extent, extent)};
                    if (way >= 4) {
                        spec.modes = {free_mode(rows), factor(3, 5), factor(extent, extent)};
                    }
                    spec.gap = gap;
                    spec.scalar = way % 2 == 1;
                    spec.add = way == 2 || way == 3 || way == 5;
                    fixture<Scalar> f(spec, bits);
                    otimes::plan p = otimes::make_plan(f.source, otimes::host_machine());
                    for (otimes::pass& one : p.passes) {
                        one.lane_mode = -1;
                        one.lane_count = 1;
                        one.past_caches = way == 1;
                    }
                    f.check(p);
                    const auto result = [&f] {
                        return std::vector<Scalar>(f.result().data(), f.result().data() + f.result().size());
                    };
                    const std::vector<Scalar> by_rows = result();
                    for (otimes::pass& one : p.passes) {
                        one.lane_mode = 0;
                        one.lane_count = (std::min)(rows, std::int64_t{16});
                    }
                    p.tile_elements *= 16;
                    f.check(p);
                    CHECK(std::memcmp(result().data(), by_rows.data(), by_rows.size() * sizeof(Scalar)) == 0);
                }
            }
        }
    }
}

// The plan's groups in their order: plans that agree in them add the same numbers in the same order.
std::string arithmetic_of(const otimes::plan& p) {
    std::string text;
    for (const otimes::pass& one : p.passes) {
        for (const otimes::sweep& s : one.sweeps) {
            for (const std::int32_t factor : s.factors) {
                text += std::to_string(factor) + " ";
            }
            text += "| ";
        }
    }
    return text;
}

// Every limit from the least up, in a workspace of exactly the stated size: right, and the same bits whatever the slabs.
template <class Scalar>
void every_budget(unsigned seed, int count) {
    std::mt19937 bits(seed);
    int slabs = 0;
    for (int i = 0; i < count; ++i) {
        chain_spec spec = random_spec(bits, otimes::dtype_of<Scalar>(), 3000);
        spec.modes.insert(spec.modes.begin(), free_mode(5 + i % 7));
        spec.order_in.clear();
        spec.order_out.clear();
        if (i % 2 == 1) {  // column-major: the rows are innermost
            for (std::size_t k = 1; k < spec.modes.size(); ++k) {
                spec.order_in.push_back(k);
            }
            spec.order_in.push_back(0);
            spec.order_out = spec.order_in;
        }
        fixture<Scalar> f(spec, bits);
        otimes::machine m = random_machine(bits);
        m.cpu.l2_bytes = m.cpu.l1_bytes;
        std::int64_t least = 0;
        try {
            least = otimes::make_plan(f.source, m, {.workspace_limit_bytes = 0}).workspace_bytes;
        } catch (const otimes::budget_error& refused) {
            const std::string text = refused.what();
            least = std::stoll(text.substr(text.find("at least ") + 9));
        }
        const std::int64_t most = otimes::make_plan(f.source, m).workspace_bytes;
        std::map<std::string, std::vector<Scalar>> seen;
        const std::int64_t step = std::max<std::int64_t>(64, (most - least) / 6 / 64 * 64);
        for (std::int64_t limit = least; limit <= most; limit += step) {
            otimes::plan p = otimes::make_plan(f.source, m, {.workspace_limit_bytes = limit});
            p.flops = 1 << 30;
            const std::string text = describe(spec, p);
            CAPTURE(text);
            REQUIRE(p.workspace_bytes <= limit);
            std::vector<unsigned char> memory(static_cast<std::size_t>(p.workspace_bytes) + 64);
            void* const start =
                reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
            f.check(p, {start, p.workspace_bytes});
            slabs += p.slab_count > 1 ? 1 : 0;
            std::vector<Scalar> now;
            for (std::size_t k = 0; k < f.result().size(); ++k) {
                now.push_back(f.result().reached(k) ? f.result().data()[k] : Scalar(0));
            }
            const auto [first, fresh] = seen.emplace(arithmetic_of(p), now);
            CHECK((fresh || first->second == now));
        }
    }
    CHECK(slabs > count / 2);
}

// The plan, and one that is bent: the same results.
template <class Scalar>
void check_also_bent(fixture<Scalar>& f, const chain_spec& spec, otimes::plan p, std::mt19937& bits) {
    const std::string text = describe(spec, p);
    CAPTURE(text);
    f.check(p);
    bend(p, bits);
    const std::string bent = describe(spec, p);
    CAPTURE(bent);
    f.check(p);
}

}  // namespace

TEST_CASE("cpu: every workspace limit from the least up, the same bits whatever the slabs") {
    every_budget<float>(31, 25);
    every_budget<double>(32, 25);
    every_budget<std::complex<float>>(33, 15);
    every_budget<std::complex<double>>(34, 15);
}

TEST_CASE("cpu: bits depend on neither tiles, lanes nor threads") {
    same_bits<float>(11, 400);
    same_bits<double>(12, 400);
    same_bits<std::complex<float>>(13, 300);
    same_bits<std::complex<double>>(14, 300);
}

TEST_CASE("cpu: what is prepared for a small plan serves other operands and scalars") {
    const int count = support::long_tests() ? 200 : 70;
    prepared_plans<float>(21, 3 * count);
    prepared_plans<double>(22, 3 * count);
    prepared_plans<std::complex<float>>(23, 2 * count);
    prepared_plans<std::complex<double>>(24, 2 * count);
}

TEST_CASE("cpu: a workspace of the stated size serves, a smaller one is refused before anything is written") {
    std::mt19937 bits(5);
    for (int i = 0; i < 100; ++i) {
        const chain_spec spec = random_spec(bits, dtype::f32, 4000);
        fixture<float> f(spec, bits);
        const otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        const auto bytes = static_cast<std::size_t>(p.workspace_bytes);
        std::vector<unsigned char> memory(bytes + 192, 0xA5);
        void* start = memory.data() + 64;
        start = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(start) + 63) / 64 * 64);
        f.check(p, {start, p.workspace_bytes});
        const auto* const end = static_cast<unsigned char*>(start) + bytes;
        CHECK(
            std::all_of(memory.data(), static_cast<unsigned char*>(start), [](unsigned char c) { return c == 0xA5; }));
        CHECK(std::all_of(end, static_cast<const unsigned char*>(memory.data() + memory.size()),
                          [](unsigned char c) { return c == 0xA5; }));
        if (p.workspace_bytes > 0) {
            f.restore();
            CHECK_THROWS_AS(otimes::cpu().run(p, f.bound, {static_cast<unsigned char*>(start) + 1, p.workspace_bytes}),
                            otimes::unsupported_error);
            CHECK_THROWS_AS(otimes::cpu().run(p, f.bound, {start, p.workspace_bytes - 1}), otimes::budget_error);
            CHECK(std::memcmp(f.result().data(), f.before.data(), f.before.size() * sizeof(float)) == 0);
        }
    }
}

#if OTIMES_OPENMP
TEST_CASE("cpu: no more threads than OpenMP would start now, unless the options ask for them") {
    const int before = omp_get_max_threads();
    otimes::machine m = otimes::host_machine();
    m.cpu.threads = 3;
    const otimes::program source = planner_test::rows_power(2000, 8, 3);
    const otimes::plan by_default = otimes::make_plan(source, m);
    const otimes::plan asked = otimes::make_plan(source, m, {.threads = 3});
    REQUIRE(by_default.threads == 3);
    omp_set_num_threads(4);
    CHECK(otimes::cpu_detail::useful_threads(by_default) == 3);
    omp_set_num_threads(2);
    CHECK(otimes::cpu_detail::useful_threads(by_default) == 2);
    omp_set_num_threads(1);
    CHECK(otimes::cpu_detail::useful_threads(by_default) == 1);
    CHECK(otimes::cpu_detail::useful_threads(asked) == 3);
    omp_set_num_threads(before);
    std::ptrdiff_t most = 0;  // in a region of the user each thread works alone
#pragma omp parallel num_threads(2) reduction(max : most)
    most = otimes::cpu_detail::useful_threads(asked);
    CHECK(most == 1);
}
#endif

// Registers that are whole cache lines are stored past the caches, all others are not: operands that begin anywhere, rows and columns of each
// kernel that stores (one mode, pairs of 8, twins of 3 and 5, transposed tiles), added, scaled, of long fibres that are summed in parts.
TEST_CASE_TEMPLATE("cpu: stores past the caches", Scalar, float, double, std::complex<float>) {
    std::mt19937 bits(77);
    const auto check = [&](const std::vector<planner_test::mode_spec>& modes, bool columns, bool add,
                           std::int32_t threads) {
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.modes = modes;
        spec.add = add;
        spec.scalar = add;
        for (std::size_t k = 0; k < modes.size(); ++k) {
            spec.order_in.push_back(columns ? (k + 1) % modes.size() : k);
        }
        spec.order_out = spec.order_in;
        fixture<Scalar> f(spec, bits);
        otimes::machine m = otimes::host_machine();
        m.cpu.threads = threads;
        otimes::plan p = otimes::make_plan(f.source, m);
        p.flops = 1 << 30;
        f.check(p);
        const std::vector<Scalar> usual(f.result().data(), f.result().data() + f.result().size());
        for (otimes::pass& one : p.passes) {
            one.past_caches = true;
        }
        const std::string text = describe(spec, p);
        CAPTURE(text);
        guarded<Scalar>& y = f.result();
        for (const std::size_t offset : {0, 1, 4, 8, 15, 16}) {  // elements
            std::vector<Scalar> memory(y.size() + 64, Scalar(std::numeric_limits<real_of<Scalar>>::quiet_NaN()));
            const std::vector<Scalar> poison = memory;
            const std::size_t to_line =
                (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(Scalar);
            Scalar* const at = memory.data() + to_line + offset;
            std::copy(f.before.begin(), f.before.end(), at);
            otimes::bindings moved = f.bound;
            moved.pointers[static_cast<std::size_t>(f.output)] = at;
            otimes::cpu().run(p, moved, {});
            CHECK(std::memcmp(at, usual.data(), usual.size() * sizeof(Scalar)) == 0);
            const auto behind = static_cast<std::size_t>(at - memory.data()) + y.size();
            CHECK(std::memcmp(memory.data(), poison.data(),
                              static_cast<std::size_t>(at - memory.data()) * sizeof(Scalar)) == 0);
            CHECK(std::memcmp(memory.data() + behind, poison.data(), (memory.size() - behind) * sizeof(Scalar)) == 0);
        }
    };
    for (const bool columns : {false, true}) {
        for (const bool add : {false, true}) {
            const std::int32_t threads = add ? 1 : 3;
            check({free_mode(9), factor(8, 8), factor(8, 8), factor(8, 8)}, columns, add, threads);
            check({free_mode(32), factor(3, 3), factor(3, 3), factor(3, 3)}, columns, add, threads);
            check({free_mode(3), factor(5, 5), factor(5, 5), free_mode(32)}, columns, add, threads);
            check({free_mode(16), factor(16, 32), factor(16, 48)}, columns, add, threads);
            check({free_mode(33), factor(7, 5), factor(20, 19)}, columns, add, threads);
            check({free_mode(48), factor(300, 64)}, columns, add, threads);
        }
    }
}

// Tiles and slabs that are one piece of memory, and how the kernels ask for them, one piece after the other.
TEST_CASE("cpu: what is read ahead") {
    using namespace otimes::cpu_detail;
    pass_shape<float> shape;
    shape.mode_count = 2;
    shape.modes[0] = {16, 20, 20};
    shape.modes[1] = {20, 1, 1};
    shape.lanes = {1, 0, 0};
    shape.batch = {7, 320, 320};
    CHECK(packed_tile_bytes<float, 1>(shape, 1, 3) == 3 * 320 * 4);
    shape.batch.in = 321;  // a gap between the tiles
    CHECK(packed_tile_bytes<float, 1>(shape, 1, 3) == 0);
    CHECK(packed_tile_bytes<float, 1>(shape, 1, 1) == 320 * 4);
    shape.lanes = {9, 1, 1};
    shape.modes[0].in = 180;
    shape.modes[1].in = 9;
    CHECK(packed_tile_bytes<float, 1>(shape, 9, 1) == 9 * 320 * 4);
    CHECK(packed_tile_bytes<float, 1>(shape, 8, 1) == 0);  // a part of the lanes leaves gaps
    CHECK(packed_tile_bytes<float, 2>(shape, 9, 1) == 0);  // complex elements are two apart
    shape.sweep_count = 1;
    shape.sweep_mode[0] = 1;
    shape.q_extent[0] = 5;
    shape.modes[0].out = 45;
    shape.modes[1].out = 9;
    CHECK(packed_tile_bytes<float, 1>(shape, 9, 1, true) ==
          9 * 16 * 5 * 4);  // what is written has the extents of the result
    shape.modes[0].out = 46;
    CHECK(packed_tile_bytes<float, 1>(shape, 9, 1, true) == 0);

    constexpr std::ptrdiff_t P = 16;
    constexpr std::ptrdiff_t width = simd<float>::width;
    constexpr std::ptrdiff_t line = read_ahead::line;
    std::vector<float> x(P * width, 1.0F), y(P * width, std::numeric_limits<float>::quiet_NaN()), factor(P * P, 2.0F);
    std::vector<char> coming(1 << 16);
    sweep_job<float> job;
    job.p_extent = job.q_extent = P;
    job.x_p = job.y_q = job.x_r = job.y_s = job.run = width;
    job.loop_count = 0;
    job.stage_panels = job.twin = job.in_place = job.resume = job.claim = job.past = false;
    job.finish = epilogue::store;
    job.alpha_re = 1;
    job.alpha_im = 0;
    job.factor = factor.data();
    job.factor_p = 0;
    read_ahead ahead;
    read_ahead_of(ahead, coming.data(), 4 * line, 25, coming.data() + 100 * line, 46 * line + 1);
    CHECK(ahead.lines_per_block == 3);  // of 51
    job.ahead = &ahead;
    const std::ptrdiff_t blocks = (P + block_shapes<float, 1>::fibre_q(P) - 1) / block_shapes<float, 1>::fibre_q(P);
    REQUIRE(blocks >= 2);
    run_sweep<float, 1>(job, x.data(), y.data());
    CHECK(ahead.left <= 0);  // the first piece: 3 lines for each block of q
    CHECK(ahead.left_then == 46 * line + 1);
    run_sweep<float, 1>(job, x.data(), y.data());
    CHECK(ahead.next == coming.data() + (100 + 3 * blocks) * line);
    CHECK(ahead.left == (46 - 3 * blocks) * line + 1);
    CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == 32.0F; }));
    const char* const before = ahead.next;
    job.p_extent = long_fibre<float> - 1;
    run_sweep<float, 1>(job, x.data(), y.data());
    CHECK(ahead.next == before);  // blocks of so few multiply-adds a sum are too short
    ahead.left = ahead.left_then = 0;
    CHECK(ahead.take(1) == nullptr);  // nothing is left to ask for
    read_ahead_of(ahead, coming.data(), 100 * line, 2);
    CHECK(ahead.lines_per_block == 8);  // as many as arrive in time
    read_ahead_of(ahead, coming.data(), 100 * line, 0);
    CHECK(ahead.take(1) == nullptr);  // no block would ask
}

// Equal extents: passes in place in Y, sweeps in place in a tile, the last two modes at once.
TEST_CASE_TEMPLATE("cpu: square factors of one size", Scalar, float, double, std::complex<float>) {
    std::mt19937 bits(6);
    for (int i = 0; i < 250; ++i) {
        const auto pick = [&](std::int64_t from, std::int64_t to) {
            return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
        };
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.add = pick(0, 2) == 0;
        spec.scalar = pick(0, 1) == 0;
        spec.gap = pick(0, 3) == 0 ? pick(1, 9) : 0;
        const std::int64_t extent = pick(2, 9);
        const std::int64_t count = extent < 4 ? pick(2, 5) : extent < 7 ? pick(2, 4) : pick(2, 3);
        spec.modes.push_back(free_mode(pick(1, 41)));
        for (std::int64_t k = 0; k < count; ++k) {
            spec.modes.push_back(factor(extent, extent));
        }
        for (std::size_t k = 0; k < spec.modes.size(); ++k) {
            spec.order_in.push_back(k);
        }
        if (pick(0, 1) == 0) {
            std::rotate(spec.order_in.begin(), spec.order_in.begin() + 1, spec.order_in.end());
        }
        spec.order_out = spec.order_in;
        fixture<Scalar> f(spec, bits);
        otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        p.flops = 1 << 30;
        check_also_bent(f, spec, p, bits);
    }
}

// Short modes that are done two or three at once, in the middle and at the end, wherever they stand: with lanes and without, short of a
// register, any number of rows in the last one, in place, adding. The last ones are rows of more than 16 KiB, whose last modes begin at
// whole registers in the tile buffers.
TEST_CASE_TEMPLATE("cpu: short factors at once have the bits of one after the other", Scalar, float, double) {
    std::mt19937 bits(31);
    int prepared = 0;
    for (int i = 0; i < 440; ++i) {
        const auto pick = [&](std::int64_t from, std::int64_t to) {
            return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
        };
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.add = pick(0, 2) == 0;
        spec.scalar = pick(0, 1) == 0;
        spec.gap = pick(0, 2) == 0 ? pick(1, 9) : 0;
        const bool long_rows = i >= 400;
        spec.modes.push_back(free_mode(long_rows ? pick(1, 3) : pick(1, 41)));
        const std::int64_t extent = long_rows ? 3 + i % 4 + (i % 4 > 0 ? 1 : 0) : i < 150 ? 3 : pick(4, 8);
        const std::int64_t count = long_rows ? (extent == 3   ? 8
                                                : extent < 6  ? 6
                                                : extent == 6 ? 5
                                                              : 4)
                                             : pick(2, extent < 5    ? 5
                                                       : extent == 5 ? 4
                                                                     : 3);
        for (std::int64_t k = 0; k < count; ++k) {
            const std::int64_t kind = long_rows && k > 0 ? 7 : pick(0, 7);
            spec.modes.push_back(kind == 0   ? free_mode(pick(2, 5))
                                 : kind == 1 ? factor(extent, pick(extent - 1, extent + 1))
                                             : factor(extent, extent));
        }
        for (std::size_t k = 0; k < spec.modes.size(); ++k) {
            spec.order_in.push_back(k);
        }
        if (!long_rows && pick(0, 1) == 0) {
            std::shuffle(spec.order_in.begin(), spec.order_in.end(), bits);
        }
        spec.order_out = spec.order_in;
        fixture<Scalar> f(spec, bits);
        const otimes::machine m = random_machine(bits);
        otimes::planning::cpu_request request;
        request.partition = otimes::planning::partition::one_group_each;
        f.check(otimes::planning::try_request(f.source, m.cpu, request).made);
        const std::vector<Scalar> apart(f.result().data(), f.result().data() + f.result().size());
        request.partition = otimes::planning::partition::one_pass;
        otimes::plan p = otimes::planning::try_request(f.source, m.cpu, request).made;
        if (long_rows && m.cpu.simd_bytes == OTIMES_TARGET_SIMD_BYTES) {  // the plan states all that they take
            CHECK(otimes::cpu_detail::layout_run<Scalar, 1>(p, f.bound).total <= p.workspace_bytes);
        }
        if (long_rows) {  // a prepared plan leaves its gaps as they are
            otimes::plan small = p;
            small.flops = 1;
            otimes::run_memo memo;
            f.restore();
            otimes::cpu().run_first(small, f.bound, memo);
            for (int again = 0; again < 2; ++again) {
                const std::vector<Scalar> first(f.result().data(), f.result().data() + f.result().size());
                f.restore();
                if (memo.run(f.bound)) {
                    ++prepared;
                    CHECK(std::memcmp(f.result().data(), first.data(), first.size() * sizeof(Scalar)) == 0);
                }
            }
        }
        for (int variant = 0; variant < 4; ++variant) {
            const std::string text = describe(spec, p);
            CAPTURE(text);
            f.check(p);
            bool equal = true;
            for (std::size_t k = 0; k < apart.size(); ++k) {
                equal = equal && (!f.result().reached(k) || f.result().data()[k] == apart[k]);
            }
            CHECK(equal);
            bend(p, bits);
        }
    }
    CHECK(prepared > 0);
}

// Fibres that are taken in parts, as lanes and as rows: results that go on from what is there, are scaled, are added to Y; ends of runs and
// of blocks; rows a power of two apart.
TEST_CASE_TEMPLATE("cpu: long fibres", Scalar, float, double, std::complex<float>, std::complex<double>) {
    std::mt19937 bits(77);
    const int count = support::long_tests() ? 200 : otimes::is_complex(otimes::dtype_of<Scalar>()) ? 20 : 60;
    for (int i = 0; i < count; ++i) {
        const auto pick = [&](std::int64_t from, std::int64_t to) {
            return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
        };
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.add = pick(0, 2) == 0;
        spec.scalar = pick(0, 1) == 0;
        spec.gap = pick(0, 3) == 0 ? pick(1, 9) : 0;
        const bool even = pick(0, 2) == 0;
        spec.modes.push_back(free_mode(pick(1, 3)));
        spec.modes.push_back(factor(even ? 512 : pick(100, 900), even ? 64 : pick(1, 70)));
        spec.modes.push_back(free_mode(even ? 16 * pick(1, 8) : pick(1, 130)));
        for (std::size_t k = 0; k < spec.modes.size(); ++k) {
            spec.order_in.push_back(k);
        }
        if (pick(0, 1) == 0) {
            std::shuffle(spec.order_in.begin(), spec.order_in.end(), bits);
        }
        spec.order_out = spec.order_in;
        fixture<Scalar> f(spec, bits);
        otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        p.flops = pick(0, 1) == 0 ? p.flops : 1 << 30;
        check_also_bent(f, spec, p, bits);
    }
}

// Few rows read a long factor as it lies in memory, also with gaps between its rows and where Q ends within a register; more rows pack
// it. Between others, added, scaled; and each row has the bits that it has among many.
TEST_CASE_TEMPLATE("cpu: few rows of a long factor", Scalar, float, double, std::complex<float>, std::complex<double>) {
    std::mt19937 bits(78);
    const auto pick = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
    };
    for (int i = 0; i < (support::long_tests() ? 300 : 60); ++i) {
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.add = pick(0, 2) == 0;
        spec.scalar = pick(0, 1) == 0;
        spec.gap = pick(0, 1) == 0 ? pick(1, 9) : 0;
        spec.modes = {free_mode(pick(1, 4)), i % 2 == 0 ? factor(pick(1, 5), pick(1, 5)) : free_mode(pick(1, 6)),
                      factor(pick(20, 200), pick(20, 150)), i % 5 == 0 ? factor(1, 1) : free_mode(1)};
        spec.order_in = spec.order_out = {0, 1, 2, 3};
        fixture<Scalar> f(spec, bits);
        otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        p.flops = pick(0, 1) == 0 ? p.flops : 1 << 30;
        check_also_bent(f, spec, p, bits);
    }
    constexpr std::size_t all = 40;
    for (int i = 0; i < 40; ++i) {
        const bool by_columns = i % 2 == 1;
        const auto rows = static_cast<std::size_t>(pick(1, 18));
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.scalar = i % 4 < 2;
        spec.add = i % 3 == 0;
        spec.modes = {free_mode(all), factor(pick(32, 400), pick(32, 150))};
        spec.order_in = spec.order_out = by_columns ? std::vector<std::size_t>{1, 0} : std::vector<std::size_t>{0, 1};
        fixture<Scalar> many(spec, bits);
        many.check(otimes::make_plan(many.source, otimes::host_machine()));
        spec.modes[0] = free_mode(static_cast<std::int64_t>(rows));
        fixture<Scalar> few(spec, bits);
        // Where element k of the few rows is among the many.
        const auto among = [&](std::size_t k) { return by_columns ? k / rows * all + k % rows : k; };
        for (std::size_t id = 0; id < few.operands.size(); ++id) {
            const bool is_factor = few.operands[id].size() == many.operands[id].size();
            for (std::size_t k = 0; k < few.operands[id].size(); ++k) {
                few.operands[id].data()[k] = many.operands[id].data()[is_factor ? k : among(k)];
            }
        }
        for (std::size_t k = 0; k < few.before.size(); ++k) {
            few.before[k] = many.before[among(k)];
        }
        few.restore();
        otimes::cpu().run(otimes::make_plan(few.source, otimes::host_machine()), few.bound, {});
        bool equal = true;
        for (std::size_t k = 0; k < few.result().size(); ++k) {
            equal = equal && few.result().data()[k] == many.result().data()[among(k)];
        }
        CHECK(equal);
    }
}

// A map of stride 0 shows one row P times: it lies in memory, and is not what the kernels take for packed.
TEST_CASE("cpu: few rows of a long factor whose rows are one") {
    std::mt19937 bits(79);
    for (const std::int64_t rows : {1, 3, 20}) {
        chain_spec spec;
        spec.type = dtype::f64;
        spec.modes = {free_mode(rows), factor(40, 64)};
        spec.order_in = spec.order_out = {0, 1};
        fixture<double> f(spec, bits);
        for (const otimes::tensor& t : f.source.tensors) {
            if (t.role == otimes::tensor_role::factor) {
                f.source.modes[static_cast<std::size_t>(t.first_mode + t.mode_count - 2)].stride = 0;
            }
        }
        otimes::reference_run<double>(f.source, f.bound);
        f.expected.assign(f.result().data(), f.result().data() + f.result().size());
        f.check(otimes::make_plan(f.source, otimes::host_machine()));
    }
}

// Whatever part of a long factor is packed at a time, and by whom, the sums are those of the factor packed whole; nothing beside the
// operands is touched.
TEST_CASE_TEMPLATE("cpu: a factor in blocks", Scalar, float, double, std::complex<float>, std::complex<double>) {
    std::mt19937 bits(81);
    const auto pick = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(bits);
    };
    for (int i = 0; i < (support::long_tests() ? 400 : 80); ++i) {
        chain_spec spec;
        spec.type = otimes::dtype_of<Scalar>();
        spec.add = pick(0, 3) == 0;
        spec.scalar = pick(0, 1) == 0;
        spec.gap = pick(0, 2) == 0 ? pick(1, 9) : 0;
        spec.modes = {free_mode(pick(1, 3)), free_mode(pick(1, 40)), factor(pick(33, 420), pick(1, 90)),
                      i % 5 == 0 ? factor(1, 1) : free_mode(1)};
        spec.order_in = i % 2 == 0 ? std::vector<std::size_t>{0, 1, 2, 3} : std::vector<std::size_t>{0, 2, 1, 3};
        spec.order_out = i % 7 == 0 ? std::vector<std::size_t>{2, 0, 1, 3} : spec.order_in;
        fixture<Scalar> f(spec, bits);
        if (i % 3 == 0) {  // its columns contiguous
            for (const otimes::tensor& t : f.source.tensors) {
                if (t.role == otimes::tensor_role::factor) {
                    otimes::mode* const at = f.source.modes.data() + t.first_mode;
                    at[0].stride = 1;
                    at[1].stride = at[0].extent;
                }
            }
            f.restore();
            otimes::reference_run<Scalar>(f.source, f.bound);
            f.expected.assign(f.result().data(), f.result().data() + f.result().size());
        }
        otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
        p.flops = 1 << 30;
        const std::string text = describe(spec, p);
        CAPTURE(text);
        f.check(p);
        for (otimes::pass& one : p.passes) {
            one.block_rows = one.block_columns = 0;
        }
        f.check(p);
        const std::vector<Scalar> whole(f.result().data(), f.result().data() + f.result().size());
        for (int variant = 0; variant < 4; ++variant) {
            for (otimes::pass& one : p.passes) {
                bend_block(p, one, bits);
            }
            p.threads = static_cast<std::int32_t>(pick(1, 4));
            p.wishes.threads = p.threads;
            CAPTURE(p.passes.front());
            f.check(p);
            CHECK(std::memcmp(whole.data(), f.result().data(), whole.size() * sizeof(Scalar)) == 0);
        }
    }
}

// The parts of a long fibre are one sum in ascending order, also where its rows are brought together and the run ends within a register.
TEST_CASE_TEMPLATE("cpu: a sum in parts has the bits of one sum", Real, float, double) {
    using namespace otimes::cpu_detail;
    constexpr std::ptrdiff_t width = simd<Real>::width;
    otimes::cpu_description cpu;
    cpu.simd_bytes = static_cast<std::int32_t>(width * static_cast<std::ptrdiff_t>(sizeof(Real)));
    CHECK(otimes::planning::part_extent(cpu) == most_part<Real>);  // what the model counts
    CHECK(otimes::planning::most_unpacked_rows(cpu) == most_unpacked_rows<Real>);
    CHECK(otimes::planning::least_unpacked_extent == otimes::cpu_detail::least_unpacked_extent);
    constexpr std::ptrdiff_t P = 2 * most_part<Real> + 5;
    constexpr std::ptrdiff_t Q = 2 * 8 + 1;
    std::mt19937 bits(5);
    for (const std::ptrdiff_t run : {width, 2 * width + 1, 5 * width, 8 * width + width / 2}) {
        for (const epilogue finish : {epilogue::store, epilogue::scale, epilogue::scale_add}) {
            if (finish == epilogue::scale_add && run % width != 0) {
                continue;  // not asked for: the ends of runs overlap
            }
            const std::ptrdiff_t x_p = 1024;
            const std::ptrdiff_t y_q = 1024 + 3;
            std::vector<Real> x(static_cast<std::size_t>(P * x_p)), F(static_cast<std::size_t>(P * Q)),
                packed(F.size());
            for (Real& v : x) {
                v = draw<Real>(bits);
            }
            for (Real& v : F) {
                v = draw<Real>(bits);
            }
            const even_split q = split_evenly(Q, block_shapes<Real, 1>::fibre_q(Q));
            std::size_t next = 0;
            for (std::ptrdiff_t first = 0; first < Q;) {
                const std::ptrdiff_t block = first < q.big_count * q.big() ? q.big() : q.small;
                for (std::ptrdiff_t p = 0; p < P; ++p) {
                    for (std::ptrdiff_t k = 0; k < block; ++k) {
                        packed[next++] = F[static_cast<std::size_t>(p * Q + first + k)];
                    }
                }
                first += block;
            }
            const Real before = finish == epilogue::scale_add ? Real(3) : std::numeric_limits<Real>::quiet_NaN();
            std::vector<Real> y(static_cast<std::size_t>(Q * y_q), before);
            sweep_job<Real> job;
            job.p_extent = P;
            job.q_extent = Q;
            job.x_p = job.x_r = x_p;
            job.y_q = job.y_s = y_q;
            job.run = run;
            job.loop_count = 0;
            job.stage_panels = job.twin = job.in_place = job.resume = job.claim = job.past = false;
            job.ahead = nullptr;
            job.finish = finish;
            job.alpha_re = Real(0.5);
            job.alpha_im = 0;
            job.factor = packed.data();
            job.factor_p = 0;
            run_sweep<Real, 1>(job, x.data(), y.data());
            bool equal = true;
            for (std::ptrdiff_t k = 0; k < Q; ++k) {
                for (std::ptrdiff_t i = 0; i < y_q; ++i) {
                    const Real got = y[static_cast<std::size_t>(k * y_q + i)];
                    if (i >= run) {
                        equal = equal && std::memcmp(&got, &before, sizeof(Real)) == 0;
                        continue;
                    }
                    Real sum = 0;
                    for (std::ptrdiff_t p = 0; p < P; ++p) {
                        const Real a = x[static_cast<std::size_t>(p * x_p + i)],
                                   f = F[static_cast<std::size_t>(p * Q + k)];
#if defined(__FMA__)
                        sum = std::fma(a, f, sum);
#else
                        const volatile Real product = a * f;
                        sum += product;
#endif
                    }
                    const Real scaled = finish == epilogue::store ? sum : Real(0.5) * sum;
                    equal = equal && got == (finish == epilogue::scale_add ? Real(3) + scaled : scaled);
                }
            }
            CAPTURE(run);
            CAPTURE(static_cast<int>(finish));
            CHECK(equal);
        }
    }
}

// Threads that share the packing of a factor write what one alone writes, and all of it.
TEST_CASE_TEMPLATE("cpu: a factor packed in shares", Real, float, double) {
    using namespace otimes::cpu_detail;
    constexpr std::ptrdiff_t width = simd<Real>::width;
    std::mt19937 bits(8);
    for (const bool transposed : {false, true}) {
        for (const bool as_row : {false, true}) {
            for (const std::ptrdiff_t Q : {std::ptrdiff_t{1}, width - 1, width + 1, 3 * width, std::ptrdiff_t{83}}) {
                const std::ptrdiff_t P = 37;
                chain_spec spec;
                spec.type = otimes::dtype_of<Real>();
                spec.modes = {factor(P, Q > 0 ? Q : 1)};
                spec.order_in = spec.order_out = {0};
                fixture<Real> f(spec, bits);
                otimes::plan p = otimes::make_plan(f.source, random_machine(bits));
                REQUIRE(p.passes.size() == 1);
                REQUIRE(p.passes[0].sweeps.size() == 1);
                const std::int32_t id = p.passes[0].sweeps[0].factors.front();
                std::vector<Real> F(static_cast<std::size_t>(P * Q));
                for (Real& v : F) {
                    v = draw<Real>(bits);
                }
                otimes::bindings b;
                for (std::int32_t k = 0; k <= f.source.at(id).binding; ++k) {
                    b.pointers.push_back(F.data());
                }
                otimes::program source = f.source;
                auto modes = source.modes_of(source.at(id));
                const_cast<otimes::mode&>(modes[modes.size() - 2]).stride = transposed ? 1 : Q;
                const_cast<otimes::mode&>(modes[modes.size() - 1]).stride = transposed ? P : 1;
                const std::size_t reals = static_cast<std::size_t>(packed_reals<Real, 1>(P, Q)) + 64;
                const Real poison = std::numeric_limits<Real>::quiet_NaN();
                std::vector<Real> whole(reals, poison), shared(reals, poison);
                pack_factors<Real, 1>(source, b, p.passes[0].sweeps[0], as_row, whole.data());
                for (std::ptrdiff_t share = 0; share < 3; ++share) {
                    pack_factors<Real, 1>(source, b, p.passes[0].sweeps[0], as_row, shared.data(), share, 3);
                }
                const bool same_bytes = std::memcmp(whole.data(), shared.data(), reals * sizeof(Real)) == 0;
                CHECK(same_bytes);
                double sum = 0,
                       expected =
                           0;  // nothing is lost: the entries of F, besides those that overlapping registers repeat
                std::size_t filled = 0;
                for (const Real v : whole) {
                    filled += std::isnan(v) ? 0U : 1U;
                    sum += std::isnan(v) ? 0.0 : static_cast<double>(v);
                }
                for (const Real v : F) {
                    expected += static_cast<double>(v);
                }
                CHECK(filled >= F.size());
                if (!as_row || Q % width == 0 || Q < width) {
                    CHECK(sum == doctest::Approx(expected).epsilon(1e-9));
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("cpu: rows of two and four elements", Scalar, float, double, std::complex<float>,
                   std::complex<double>) {
    short_rows<Scalar>(5);
}
TEST_CASE("cpu: random plans, float") { random_plans<float>(1, 1500, 6000); }
TEST_CASE("cpu: random plans, double") { random_plans<double>(2, 1500, 6000); }
TEST_CASE("cpu: random plans, complex float") { random_plans<std::complex<float>>(3, 1000, 4000); }
TEST_CASE("cpu: random plans, complex double") { random_plans<std::complex<double>>(4, 1000, 4000); }
