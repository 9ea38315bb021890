// SPDX-License-Identifier: MIT
// Slabs by turns whose last passes store into the receivers, beside the stages of the slab before, and stages that begin with what has arrived of
// what is stored: on the CPU, by an executor that stores as early or as late as it may.
#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "distributed/ranks.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

using matrix = Eigen::MatrixXd;

// What a pass stores goes to the receivers when `queue` says so.
class storing_executor final : public otimes::executor, public otimes::peer_stores {
public:
    using queue = std::function<void(std::uint32_t value, std::function<void()> store)>;
    explicit storing_executor(queue q) : queue_(std::move(q)) {}

    std::string_view name() const noexcept override { return "storing"; }
    const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    otimes::placement where() const noexcept override { return otimes::placement::cpu; }
    otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view w) const override {
        otimes::cpu().run(p, b, w);
    }
    void run_beside(const otimes::plan& p, const otimes::bindings& b) const override {
        ++beside;
        run(p, b, {});
    }
    const otimes::peer_stores* stores_for_peers() const noexcept override { return this; }
    bool run_scattered(const otimes::plan& p, const otimes::bindings& b, const otimes::scatter_shape& to,
                       std::span<void* const> receivers, const otimes::arrival_signal* tell, bool) const override {
        REQUIRE(tell != nullptr);
        const std::vector<void*> targets(receivers.begin(), receivers.end());
        queue_(tell->value, [p, b, to, targets] {
            std::int64_t elements = 1;
            for (const otimes::mode& m : p.source.modes_of(p.source.steps.back().out)) {
                elements *= m.extent;
            }
            std::vector<double> block(static_cast<std::size_t>(elements));
            otimes::bindings own = b;
            own.pointers.back() = block.data();
            otimes::cpu().run(p, own, {});
            for (std::int64_t at = 0; at < elements; ++at) {
                std::int64_t rest = at;
                const auto digit = [&rest](std::int64_t extent) {
                    const std::int64_t d = rest % extent;
                    rest /= extent;
                    return d;
                };
                const std::int64_t below = digit(to.below);
                std::int64_t inner = digit(to.inner);
                const std::int64_t between = digit(to.between);
                std::int64_t outer = digit(to.outer);
                std::int64_t& taken = to.cuts_inner ? inner : outer;
                std::size_t k = 0;
                while (taken >= to.first[k + 1]) {
                    ++k;
                }
                taken -= to.first[k];
                (to.cuts_inner ? outer : inner) += to.whole_first;
                const std::int64_t own_extent = to.first[k + 1] - to.first[k];
                const std::int64_t outers = to.cuts_inner ? to.whole : own_extent;
                const std::int64_t inners = to.cuts_inner ? own_extent : to.whole;
                static_cast<double*>(
                    targets[k])[(((rest * outers + outer) * to.between + between) * inners + inner) * to.below +
                                below] = block[static_cast<std::size_t>(at)];
            }
        });
        return true;
    }

    bool can_tell_portions(const otimes::plan&) const override { return tells; }
    bool can_run_arriving(const otimes::plan&) const override { return true; }
    void run_arriving(const otimes::plan& p, const otimes::bindings& b,
                      const otimes::awaited_signal& awaited) const override {
        arriving.push_back(awaited);
        arrive(awaited.value);
        run(p, b, {});
    }

    bool tells = false;
    std::function<void(std::uint32_t value)> arrive;
    mutable int beside = 0;
    mutable std::vector<otimes::awaited_signal> arriving;

private:
    queue queue_;
};

// Ranks that reach each other's memory. Stores of a branch are done at once, or not before their fence ends.
class storing_ranks final : public otimes::transport {
public:
    storing_ranks(std::int32_t ranks, bool late) : ranks_(ranks), late_(late) {
        signals_.resize(static_cast<std::size_t>(ranks));
    }

    std::string_view name() const noexcept override { return "storing ranks"; }
    std::int32_t size() const noexcept override { return ranks_; }
    std::int32_t first_rank() const noexcept override { return 0; }
    std::int32_t local_count() const noexcept override { return ranks_; }
    const otimes::executor& executor_of(std::int32_t) const override { return own; }
    void* allocate(std::int32_t, std::int64_t bytes) override {
        const auto count = static_cast<std::size_t>(bytes) / sizeof(double) + 1;
        auto* const memory = new double[count];
        std::fill(memory, memory + count, std::numeric_limits<double>::quiet_NaN());
        return memory;
    }
    void release(std::int32_t, void* memory, std::int64_t) noexcept override { delete[] static_cast<double*>(memory); }
    void copy(std::int32_t, const void*, void*, const otimes::strided_copy&) override { FAIL("nothing is packed"); }
    bool reaches(std::int32_t, std::int32_t) const noexcept override { return true; }
    void upload(std::int32_t, void* to, const void* from, std::int64_t bytes) override {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
    void download(std::int32_t, void* to, const void* from, std::int64_t bytes) override {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
    void start(std::span<const otimes::message>, std::span<const otimes::message>,
               std::span<const otimes::rank_copy> copies, bool) override {
        ++exchanges;
        for (const otimes::rank_copy& c : copies) {
            ranks_test::copy_runs(c.source, c.target, c.what);
        }
    }
    void finish(std::int32_t) override {}
    void begin_fence() override { CHECK(queued_.empty()); }  // a fence is one for branches too
    std::span<const otimes::arrival_signal> signals_of_fence() override {
        for (otimes::arrival_signal& s : signals_) {
            ++s.value;
        }
        return signals_;
    }
    void end_signalled_fence(std::uint32_t value) override {
        ++fences;
        do_stores(value);
    }
    void do_stores(std::uint32_t value) {
        for (; !queued_.empty() && queued_.front().first <= value; queued_.pop_front()) {
            queued_.front().second();
        }
    }
    otimes::awaited_signal awaited_by(std::int32_t local, std::uint32_t value) const override {
        otimes::awaited_signal awaited;
        awaited.words = keeps_words ? &word_ : nullptr;
        awaited.senders = static_cast<unsigned>(local);
        awaited.value = value;
        return awaited;
    }
    const otimes::executor* branch_of(std::int32_t) override {
        ++branches;
        return &branch;
    }
    void maximum(std::span<std::uint64_t>) override {}
    void broadcast(std::string&) override {}
    void collect(std::span<double>) override {}
    void synchronize() override { CHECK(queued_.empty()); }

    int branches = 0;
    int exchanges = 0;
    int fences = 0;
    bool keeps_words = true;
    storing_executor own{
        [this](std::uint32_t value, const std::function<void()>& store) { own.tells ? queue(value, store) : store(); }};
    storing_executor branch{[this](std::uint32_t value, const std::function<void()>& store) { queue(value, store); }};
    std::size_t most_queued = 0;

private:
    void queue(std::uint32_t value, const std::function<void()>& store) {
        if (late_) {
            queued_.emplace_back(value, store);
            most_queued = std::max(most_queued, queued_.size());
        } else {
            store();
        }
    }

    std::int32_t ranks_;
    bool late_;
    unsigned word_ = 0;
    std::vector<otimes::arrival_signal> signals_;
    std::deque<std::pair<std::uint32_t, std::function<void()>>> queued_;
};

}  // namespace

TEST_CASE("slabs by turns that store beside each other, as early or as late as they may [alone]") {
    const std::vector<std::int64_t> before{5, 6, 4, 5};
    const std::vector<std::int64_t> after{4, 7, 3, 4};
    std::vector<matrix> factors;
    for (std::size_t k = 0; k < before.size(); ++k) {
        factors.push_back(support::random_matrix<matrix>(before[k], after[k], 90 + k));
    }
    const otimes::interconnect links{.bytes_per_second = 1e7, .packs = false, .store_bytes_per_second = 1e9};
    for (const int count : {2, 3}) {
        for (const bool late : {false, true}) {
            auto made = std::make_unique<storing_ranks>(count, late);
            storing_ranks& seen = *made;
            const otimes::communicator ranks(std::move(made), {});
            const auto K = otimes::replicate(ranks, kron(factors));
            std::vector<std::vector<const void*>> addresses;
            for (std::size_t k = 0; k < before.size(); ++k) {
                addresses.push_back(K.addresses(k));
            }
            for (const bool add : {false, true}) {
                for (const auto& [rows, slab_rows] : {std::pair{2, 1}, {7, 2}, {12, 3}}) {
                    const matrix X = support::random_matrix<matrix>(rows, 600, 95);
                    const matrix want = X * kron(factors);
                    DistributedMatrix<double> dX(ranks, rows, 600, otimes::cut_mode(1, count, before, 0));
                    dX.from_host(X);
                    const distribution to = otimes::cut_mode(1, count, after, 1);
                    DistributedMatrix<double> dY(ranks, rows, want.cols(), to);
                    std::int64_t least = 0;
                    const auto plan = otimes::planning::plan_in_slabs((dX * K).problem(add, &to, {}), to, slab_rows,
                                                                      true, seen.own.target(), links, true, least);
                    REQUIRE(plan.slab_count == (rows + slab_rows - 1) / slab_rows);
                    for (const otimes::distributed_plan& slab : plan.slabs) {
                        REQUIRE(slab.stages.size() == 3);
                        REQUIRE(slab.stages[1].kind == otimes::stage_kind::store);
                    }
                    for (int turn = 1; turn < 6; ++turn) {
                        const double given = add ? 3.0 : std::numeric_limits<double>::quiet_NaN();
                        dY.fill([given](std::int64_t, std::int64_t) { return given; });
                        seen.branches = seen.exchanges = 0;
                        seen.own.beside = 0;
                        ranks.run(plan, dX.sources(), dY.targets(), addresses, turn);
                        CHECK(seen.branches == count * plan.slab_count);
                        CHECK(seen.exchanges == 0);
                        // The first stage of the first slab and the last one of the last have the processors alone.
                        CHECK(seen.own.beside == 2 * count * (plan.slab_count - 1));
                        const matrix all = turn * want + matrix::Constant(rows, want.cols(), add ? 3.0 : 0.0);
                        CHECK(support::close(dY.to_host(), all, 600));
                    }
                }
            }
            CHECK(seen.most_queued == (late ? 2 * static_cast<std::size_t>(count) : 0));
        }
    }
}

TEST_CASE("a last stage that begins with what has arrived waits for portions, and for nothing else [alone]") {
    const std::vector<std::int64_t> before{5, 6, 4, 5};
    const std::vector<std::int64_t> after{4, 7, 3, 4};
    std::vector<matrix> factors;
    for (std::size_t k = 0; k < before.size(); ++k) {
        factors.push_back(support::random_matrix<matrix>(before[k], after[k], 70 + k));
    }
    const otimes::interconnect links{.bytes_per_second = 1e7, .packs = false, .store_bytes_per_second = 1e9};
    constexpr std::int64_t rows = 3;
    const matrix X = support::random_matrix<matrix>(static_cast<int>(rows), 600, 75);
    const matrix want = X * kron(factors);
    for (const bool late : {false, true}) {
        auto made = std::make_unique<storing_ranks>(2, late);
        storing_ranks& seen = *made;
        seen.own.arrive = [&seen](std::uint32_t value) { seen.do_stores(value); };
        const otimes::communicator ranks(std::move(made), {});
        const auto K = otimes::replicate(ranks, kron(factors));
        std::vector<std::vector<const void*>> addresses;
        for (std::size_t k = 0; k < before.size(); ++k) {
            addresses.push_back(K.addresses(k));
        }
        DistributedMatrix<double> dX(ranks, rows, 600, otimes::cut_mode(1, 2, before, 0));
        dX.from_host(X);
        const distribution to = otimes::cut_mode(1, 2, after, 1);
        DistributedMatrix<double> dY(ranks, rows, want.cols(), to);
        otimes::distributed_plan plan =
            otimes::make_distributed_plan((dX * K).problem(false, &to, {}), seen.own.target(), links, true);
        REQUIRE(plan.stages.size() == 3);
        REQUIRE(plan.stages[1].kind == otimes::stage_kind::store);
        CHECK(plan.stages[1].portion_items == 0);  // on a CPU all is stored by then
        plan.stages[1].portion_items = 2;
        for (int turn = 1; turn < 6; ++turn) {
            seen.own.tells = turn != 3;    // once the executors cannot
            seen.keeps_words = turn != 4;  // and once the transport
            const bool begins = seen.own.tells && seen.keeps_words;
            seen.fences = seen.exchanges = 0;
            seen.own.arriving.clear();
            dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            ranks.run(plan, dX.sources(), dY.targets(), addresses, turn);
            CHECK(seen.exchanges == 0);
            CHECK((seen.fences == 0) == begins);
            CHECK(support::close(dY.to_host(), turn * want, 600));
            REQUIRE(seen.own.arriving.size() == (begins ? 2 : 0));
            for (unsigned rank = 0; begins && rank < 2; ++rank) {
                CHECK(seen.own.arriving[rank].senders == rank);
                CHECK(seen.own.arriving[rank].items == 2);
                CHECK(seen.own.arriving[rank].item_elements == 3 * 4);  // F3 and F4 are behind both modes
            }
        }
        CHECK(seen.most_queued == (late ? 2 : 0));
    }
}
