// SPDX-License-Identifier: MIT
// otimes::tune on a GPU: candidates are compared with the generic kernels before they are timed; the winner is kept.
#include <algorithm>
#include <cstddef>
#include <vector>

#include <otimes/plan/gpu_candidates.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>
#include <otimes/plan/tuning.hpp>
#include <otimes/program/errors.hpp>

#include "../core/host_copy.hpp"
#include "../core/result_difference.hpp"
#include "../core/tuned_choices.hpp"
#include "executor.hpp"
#include "kernel_store.hpp"

namespace otimes::backend {

namespace {

/// Device memory until the end of a scope.
class scoped_memory {
public:
    scoped_memory(const gpu_executor& where, std::int64_t bytes)
        : where_(where), bytes_(bytes), data_(where.allocate(std::max<std::int64_t>(bytes, 16))) {}
    scoped_memory(const scoped_memory&) = delete;
    scoped_memory& operator=(const scoped_memory&) = delete;
    ~scoped_memory() { where_.release(data_, std::max<std::int64_t>(bytes_, 16)); }
    [[nodiscard]] void* data() const { return data_; }

private:
    const gpu_executor& where_;
    std::int64_t bytes_;
    void* data_;
};

/// What is compared of a result, on the host.
std::vector<std::byte> compared_part(const void* data, std::int64_t bytes, CUstream stream) {
    const std::vector<result_piece> pieces = pieces_to_compare(bytes);
    std::size_t total = 0;
    for (const result_piece& p : pieces) {
        total += static_cast<std::size_t>(p.bytes);
    }
    std::vector<std::byte> host(total);
    std::byte* to = host.data();
    for (const result_piece& p : pieces) {
        OTIMES_CUDA_CALL(cuMemcpyDtoHAsync(to,
                                           reinterpret_cast<CUdeviceptr>(static_cast<const std::byte*>(data) + p.first),
                                           static_cast<std::size_t>(p.bytes), stream));
        to += p.bytes;
    }
    OTIMES_CUDA_CALL(cuStreamSynchronize(stream));
    return host;
}

/// What rounding may do: two results that are each right differ by less.
double tolerance_of(const program& p, dtype type, precision wished) {
    if (planning::takes_single_products(type, wished)) {  // and the generic kernels round every mode of 16-bit elements
        return static_cast<double>(p.steps.size() + 1) * (type == dtype::bf16 ? 0x1p-8 : 0x1p-11);
    }
    return planning::difference_by_rounding(p, type == dtype::f32 || type == dtype::c64 ? 0x1p-23 : 0x1p-52);
}

std::string key_of_tuning(const gpu_description& gpu, const program& p) {
    program copy = p;
    return "tuning 1\ngpu " + gpu.name + "\nmultiprocessors " + std::to_string(gpu.multiprocessors) + "\nsource " +
           kernel_sources_hash() + "\n" + planning::write_text("program", copy);
}

class scoped_event {
public:
    scoped_event() { OTIMES_CUDA_CALL(cuEventCreate(&event_, CU_EVENT_DEFAULT)); }
    scoped_event(const scoped_event&) = delete;
    scoped_event& operator=(const scoped_event&) = delete;
    ~scoped_event() { driver().cuEventDestroy(event_); }
    [[nodiscard]] CUevent get() const { return event_; }

private:
    CUevent event_ = nullptr;
};

}  // namespace

std::string gpu_executor::tuned_choice(const program& p) const {
    return tuned_choices::of_process().find(device_.description(), hash_value(p), [&] {
        if (const disk_cache& cache = process_cache(); cache.usable()) {
            if (const std::optional<kernel_image> kept = cache.find(key_of_tuning(device_.description(), p))) {
                return kept->code;
            }
        }
        return std::string();
    });
}

tuning_report gpu_executor::tune(const program& p, const bindings& b, const options& wishes,
                                 const tuning_options& how) const {
    const context_scope scope(device_.handle());
    require_no_capture("candidates are measured");
    const gpu_description& gpu = device_.description();
    std::int32_t output = -1;
    for (std::size_t id = 0; id < p.tensors.size(); ++id) {
        const tensor& t = p.tensors[id];
        if (t.role == tensor_role::output) {
            output = static_cast<std::int32_t>(id);
        }
        if (t.binding >= 0 && t.role != tensor_role::factor && t.space == memory_space::host) {
            throw unsupported_error(
                "otimes::tune: X is in host memory; tuning measures kernels, so copy it to a DeviceMatrix first.");
        }
    }
    if (wishes.placement != placement::automatic && wishes.placement != placement::gpu) {
        throw unsupported_error(
            "otimes::tune: it measures plans of one GPU, but options::placement asks for another. Leave it out.");
    }
    options decided = wishes;
    decided.placement = placement::gpu;
    const std::vector<planning::gpu_choice> choices =
        output < 0
            ? std::vector<planning::gpu_choice>{}
            : planning::gpu_candidates(p, gpu, decided, static_cast<std::size_t>(std::max(1, how.most_candidates)));
    if (choices.empty()) {
        throw unsupported_error(
            "otimes::tune: the expression is not one chain of products by dense factors; only those have candidates.");
    }
    const tensor& y = p.at(output);
    const std::int64_t bytes = count_of(p.modes_of(output)) * element_bytes(y.type);
    const scoped_memory wanted(*this, bytes);
    const scoped_memory got(*this, bytes);
    bindings here = b;
    const auto run_into = [&](const prepared_plan& ready, void* to) {
        here.pointers[static_cast<std::size_t>(y.binding)] = to;
        run_on_device(ready, here, {});
    };
    // The independent path: one generic kernel a mode, in the planner's order.
    OTIMES_CUDA_CALL(
        cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(wanted.data()), 0xff, static_cast<std::size_t>(bytes), stream_));
    run_into(*prepare(planning::plan_on_gpu(p, gpu, decided, 0, &choices.front()), false), wanted.data());
    const std::vector<std::byte> want = compared_part(wanted.data(), bytes, stream_);
    const double tolerance = tolerance_of(p, y.type, wishes.precision);
    const scoped_event begin;
    const scoped_event end;
    const auto seconds_of = [&](const prepared_plan& ready, int count) {
        OTIMES_CUDA_CALL(cuEventRecord(begin.get(), stream_));
        for (int i = 0; i < count; ++i) {
            run_into(ready, got.data());
        }
        OTIMES_CUDA_CALL(cuEventRecord(end.get(), stream_));
        OTIMES_CUDA_CALL(cuEventSynchronize(end.get()));
        float milliseconds = 0;
        OTIMES_CUDA_CALL(cuEventElapsedTime(&milliseconds, begin.get(), end.get()));
        return static_cast<double>(milliseconds) * 1e-3 / count;
    };
    tuning_report report;
    for (const planning::gpu_choice& choice : choices) {
        tuned_candidate candidate;
        candidate.choice = planning::choice_text(choice);
        const std::shared_ptr<prepared_plan> ready = prepare(planning::plan_on_gpu(p, gpu, decided, 0, &choice));
        const bool fused =
            std::ranges::any_of(ready->list.slab, [](const launch& l) { return l.kind == launch_kind::fused; });
        if (fused || choice == choices.front()) {  // else its kernels could not be had
            OTIMES_CUDA_CALL(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(got.data()), 0xff,
                                             static_cast<std::size_t>(bytes), stream_));
            run_into(*ready, got.data());
            candidate.difference = relative_difference(compared_part(got.data(), bytes, stream_), want, y.type);
            candidate.valid = candidate.difference <= tolerance;
        }
        if (candidate.valid) {
            const double once = seconds_of(*ready, 1);
            const int count = static_cast<int>(std::clamp(2e-4 / once, 1.0, 64.0));
            std::vector<double> times;
            for (std::int32_t i = 0; i < std::max(1, how.repetitions); ++i) {
                times.push_back(seconds_of(*ready, count));
            }
            std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
            candidate.seconds = times[times.size() / 2];
        }
        report.candidates.push_back(std::move(candidate));
        const tuned_candidate& best = report.candidates[report.best];
        const tuned_candidate& last = report.candidates.back();
        // A change below the noise is none: the planner's choice stays.
        if (last.valid && (!best.valid || last.seconds < (report.best == 0 ? 0.98 : 1.0) * best.seconds)) {
            report.best = report.candidates.size() - 1;
        }
    }
    const tuned_candidate& winner = report.candidates[report.best];
    if (!winner.valid) {
        throw device_error(
            "otimes::tune: no candidate agrees with the generic kernels on these operands (do they hold "
            "values that are not finite?). Nothing was kept.");
    }
    if (how.keep_on_disk) {
        if (const disk_cache& cache = process_cache(); cache.usable()) {
            cache.keep(key_of_tuning(gpu, p), {winner.choice, "tuning"});
        }
    }
    tuned_choices::of_process().keep(gpu, hash_value(p), winner.choice);
    return report;
}

}  // namespace otimes::backend
