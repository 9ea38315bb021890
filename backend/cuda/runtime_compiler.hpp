// SPDX-License-Identifier: MIT
/// @file runtime_compiler.hpp
/// NVRTC, found at run time, over the kernels' text inside this library.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <otimes/program/errors.hpp>

#include "../core/fused_group.hpp"
#include "../core/kernel_image.hpp"

namespace otimes::backend {

/// What one compilation makes: a template of a file in kernels/, for one architecture.
struct kernel_request {
    std::string file;        ///< "fused_trailing.cuh"
    std::string expression;  ///< "otimes::kernels::fused_trailing<...>"
    /// Expression whose value the code carries as the global `otimes_value`; empty: none.
    std::string value;
    /// What it reads and writes is the first to leave the second-level cache (kernels/async_copy.cuh). The results are the same.
    bool evict_first = false;
    friend bool operator==(const kernel_request&, const kernel_request&) = default;
};

/// The request of a fused kernel; its value is the shared memory that a block needs.
kernel_request request_of(const planning::gpu_group& group);

/// An architecture: code for exactly `capability` (10 * major + minor), or PTX that newer ones compile.
struct target_architecture {
    int capability = 0;
    bool ptx = false;
    /// Machine code for 9.0 runs nowhere else, so it may use what only 9.0 has.
    [[nodiscard]] std::string option() const {
        return std::string("--gpu-architecture=") + (ptx ? "compute_" : "sm_") + std::to_string(capability) +
               (capability == 90 && !ptx ? "a" : "");
    }
};

/// The text of every file in kernels/: (name, text).
const std::vector<std::pair<std::string, std::string>>& kernel_sources();
/// Hash of all of it.
const std::string& kernel_sources_hash();

/// Everything that compiled code depends on except the compiler's version.
std::string key_of(const kernel_request& request, const target_architecture& architecture);

/// The compiler could not do its work, though it may another time: it had no memory, say. What it refuses is any other device_error.
class compiler_failure : public device_error {
public:
    using device_error::device_error;
};

class runtime_compiler {
public:
    /// The compiler of this process; `usable()` false where NVRTC is not found.
    static const runtime_compiler& instance();

    [[nodiscard]] bool usable() const noexcept { return functions_ != nullptr; }
    [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
    /// "nvrtc 13.0"
    [[nodiscard]] const std::string& version() const noexcept { return version_; }
    /// The newest architecture that it knows and the device can run.
    [[nodiscard]] target_architecture architecture_for(int capability) const;
    /// Compiles. Cost: 0.1 to 2 s. Thread-safe. `report` receives the assembler's account of registers and spills; the code is
    /// the same with and without. @throws device_error with the compiler's log; compiler_failure
    [[nodiscard]] kernel_image compile(const kernel_request& request, const target_architecture& architecture,
                                       std::string* report = nullptr) const;

    struct functions;

private:
    runtime_compiler();
    const functions* functions_ = nullptr;
    std::string reason_;
    std::string version_;
    bool keeps_code_ = false;  // NVRTC from 12.9 on looks into the driver's cache first
    std::vector<int> capabilities_;
};

}  // namespace otimes::backend
