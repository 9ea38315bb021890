// SPDX-License-Identifier: MIT
// An executor whose device memory is host memory and whose kernels are the reference's loops.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <otimes/cuda.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/structured_steps.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>

namespace device_test {

class pretended_gpu : public otimes::device_executor {
public:
    pretended_gpu() : machine_(otimes::gpu_machine(otimes::h200())) {
        otimes::enable_structured_steps<std::complex<double>>();  // the reference's loops of sparse factors
        otimes::enable_structured_steps<double>();
    }
    std::string_view name() const noexcept override { return "pretended gpu"; }
    const otimes::machine& target() const noexcept override { return machine_; }
    otimes::placement where() const noexcept override { return otimes::placement::gpu; }
    otimes::plan plan_for(const otimes::program& p) const override { return make_plan_for(p, {}); }
    otimes::plan make_plan_for(const otimes::program& p, const otimes::options& wishes) const override {
        otimes::options decided = wishes;
        if (decided.placement == otimes::placement::automatic) {
            decided.placement = otimes::placement::gpu;
        }
        return otimes::make_plan(p, machine_, decided);
    }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view) const override {
        evaluate(p.source, b);
    }
    void evaluate(const otimes::program& p, const otimes::bindings& b) const override {
        ++evaluations;
        for (const otimes::tensor& t : p.tensors) {
            if (t.binding >= 0 && t.role != otimes::tensor_role::factor) {
                CHECK(t.space == otimes::memory_space::device);
            }
        }
        switch (otimes::computing_type(p)) {
            case otimes::dtype::f32: return otimes::reference_run<float>(p, b);
            case otimes::dtype::f64: return otimes::reference_run<double>(p, b);
            case otimes::dtype::c128: return otimes::reference_run<std::complex<double>>(p, b);
            default: throw otimes::unsupported_error("otimes: the pretended gpu does not know this type");
        }
    }
    std::string describe(const otimes::plan&) const override { return {}; }
    otimes::tuning_report tune(const otimes::program&, const otimes::bindings&, const otimes::options&,
                               const otimes::tuning_options&) const override {
        return {};
    }
    CUstream_st* stream() const noexcept override { return nullptr; }
    void synchronize() const override {}
    void* allocate(std::int64_t bytes) const override {
        auto memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes));
        std::memset(memory.get(), 0xff, static_cast<std::size_t>(bytes));
        void* const at = memory.get();
        most = std::max(most, bytes);
        owned_[at] = std::move(memory);
        return at;
    }
    void release(void* memory, std::int64_t) const noexcept override { owned_.erase(memory); }
    void upload(void* to, const otimes::host_tensor& from) const override {
        ++uploads;
        copy(from, [&](std::byte* host, std::int64_t i) {
            std::memcpy(static_cast<std::byte*>(to) + i * from.element_bytes, host,
                        static_cast<std::size_t>(from.element_bytes));
        });
    }
    void download(const otimes::host_tensor& to, const void* from) const override {
        copy(to, [&](std::byte* host, std::int64_t i) {
            std::memcpy(host, static_cast<const std::byte*>(from) + i * to.element_bytes,
                        static_cast<std::size_t>(to.element_bytes));
        });
    }
    void wait_for(const otimes::device_executor&) const override {}

    std::size_t in_use() const { return owned_.size(); }
    mutable int evaluations = 0;
    mutable int uploads = 0;
    mutable std::int64_t most = 0;  ///< bytes that were asked for at once

private:
    template <class Use>
    static void copy(const otimes::host_tensor& t, const Use& use) {
        std::int64_t at = 0;
        for (std::int64_t i = 0; i < t.modes[0].extent; ++i) {
            for (std::int64_t j = 0; j < t.modes[1].extent; ++j) {
                use(static_cast<std::byte*>(t.data) + (i * t.modes[0].stride + j * t.modes[1].stride) * t.element_bytes,
                    at++);
            }
        }
    }
    otimes::machine machine_;
    mutable std::map<void*, std::unique_ptr<std::byte[]>> owned_;
};

}  // namespace device_test
