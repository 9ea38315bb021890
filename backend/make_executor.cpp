// SPDX-License-Identifier: MIT
// What is made of executors alone: placing by cost, and spreading over several.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <thread>

#include <otimes/cuda.hpp>
#include <otimes/plan/planner.hpp>

#include "core/threads.hpp"

namespace otimes {

plan plan_by_cost(const program& p, const machine& where) {
    options wishes;
    wishes.placement = placement::automatic;
    return make_plan(p, where, wishes);
}

namespace {

/// An error's text that says which part it is of: all may be of one name.
std::string of_part(std::string text, std::size_t number, std::size_t count) {
    constexpr std::string_view name = "otimes: ";
    return text.insert(text.starts_with(name) ? name.size() : 0,
                       "part " + std::to_string(number) + " of " + std::to_string(count) + ": ");
}

}  // namespace

/// A plan cut into parts.
struct spreading_executor::prepared {
    struct part {
        program source;
        std::int64_t first = 0;  ///< of the indices that it has
        plan how;                ///< made by the executor's thread in the first run
    };
    program source;
    options wishes;
    planning::program_cut cut;
    mutable std::vector<part> parts;
    mutable std::vector<std::once_flag> planned;

    [[nodiscard]] bool made_for(const plan& p) const { return wishes == p.wishes && source == p.source; }
};

spreading_executor::spreading_executor(std::string name, machine target,
                                       std::function<const executor&(std::size_t)> part)
    : name_(std::move(name)), machine_(std::move(target)), part_(std::move(part)) {}

spreading_executor::~spreading_executor() = default;

plan spreading_executor::plan_for(const program& p) const {
    if (planning::residency_of(p).any_on_device) {
        throw unsupported_error(
            "otimes: executor '" + name_ +
            "' cuts operands in host memory; this expression has one in device memory. Evaluate it on "
            "its GPU, or use DistributedMatrix (otimes/distributed.hpp).");
    }
    options wishes;
    wishes.placement = placement::gpus;
    return make_plan(p, machine_, wishes);
}

std::shared_ptr<const spreading_executor::prepared> spreading_executor::prepare(const plan& p) const {
    constexpr std::size_t most_known = 32;
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<const prepared>& one : known_) {
        if (one->made_for(p)) {
            return one;
        }
    }
    auto made = std::make_shared<prepared>();
    made->source = p.source;
    made->wishes = p.wishes;
    const auto count = static_cast<std::int64_t>(machine_.gpus.size());
    made->cut = planning::spreading_cut(p.source, count);
    const std::int64_t extent = made->cut.extent;
    const std::int64_t parts = std::max(std::int64_t{1}, std::min(count, extent));
    for (std::int64_t i = 0; i < parts; ++i) {
        prepared::part one;
        one.first = extent * i / parts;
        one.source =
            extent == 0 ? p.source : planning::slice_of(p.source, made->cut, extent * (i + 1) / parts - one.first);
        for (std::size_t id = 0; id < one.source.tensors.size() && extent > 0; ++id) {
            const std::int32_t k = made->cut.mode[id];
            tensor& t = one.source.tensors[id];
            const std::int64_t offset =
                k < 0 ? 0 : one.first * p.source.modes_of(t)[static_cast<std::size_t>(k)].stride * t.scalar_bytes;
            while (offset % (std::int64_t{1} << t.alignment_log2) != 0) {
                --t.alignment_log2;  // the part begins where the whole need not be as well aligned
            }
        }
        made->parts.push_back(std::move(one));
    }
    made->planned = std::vector<std::once_flag>(made->parts.size());
    if (known_.size() == most_known) {
        known_.erase(known_.begin());
    }
    known_.push_back(made);
    return made;
}

void spreading_executor::run(const plan& p, const bindings& b, workspace_view) const {
    if (p.where != placement::gpus) {
        throw unsupported_error("otimes: executor '" + name_ +
                                "' runs plans for all GPUs; this one was made for another place. Make it with "
                                "options{.placement = placement::gpus} and this executor's target().");
    }
    if (planning::residency_of(p.source).any_on_device) {
        throw unsupported_error(
            "otimes: executor '" + name_ +
            "' cuts operands in host memory; this plan has one in device memory. Run it on its GPU, or use "
            "DistributedMatrix (otimes/distributed.hpp).");
    }
    if (planning::has_empty_output(p.source)) {
        return;
    }
    const std::shared_ptr<const prepared> ready = prepare(p);
    std::vector<std::exception_ptr> failures(ready->parts.size());
    const auto run_part = [&](std::size_t i) noexcept {
        try {
            prepared::part& one = ready->parts[i];
            const executor& e = part_(i);
            std::call_once(ready->planned[i], [&] {
                options wishes = ready->wishes;
                wishes.placement = e.where();
                one.how = make_plan(one.source, e.target(), wishes);
            });
            bindings mine = b;
            for (std::size_t id = 0; id < ready->cut.mode.size() && ready->cut.extent > 0; ++id) {
                const tensor& t = ready->source.tensors[id];
                const std::int32_t k = ready->cut.mode[id];
                if (t.binding >= 0 && k >= 0) {
                    const std::int64_t stride = ready->source.modes_of(t)[static_cast<std::size_t>(k)].stride;
                    const auto at = static_cast<std::size_t>(t.binding);
                    mine.pointers[at] = static_cast<std::byte*>(b.pointers[at]) + one.first * stride * t.scalar_bytes;
                }
            }
            e.run(one.how, mine, {});
        } catch (const device_memory_error& failure) {
            failures[i] =
                std::make_exception_ptr(device_memory_error(of_part(failure.what(), i + 1, ready->parts.size())));
        } catch (const device_error& failure) {
            failures[i] = std::make_exception_ptr(device_error(of_part(failure.what(), i + 1, ready->parts.size())));
        } catch (...) {
            failures[i] = std::current_exception();
        }
    };
    std::vector<std::jthread> others;
    const std::size_t started =
        backend::start_threads(others, ready->parts.size() - 1, [&](std::size_t i) noexcept { run_part(i + 1); });
    run_part(0);
    for (std::size_t i = started + 1; i < ready->parts.size(); ++i) {
        run_part(i);  // for which the system gave no thread
    }
    others.clear();  // joins
    for (const std::exception_ptr& failure : failures) {
        if (failure) {
            std::rethrow_exception(failure);
        }
    }
}

}  // namespace otimes
