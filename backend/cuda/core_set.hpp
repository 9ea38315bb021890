// SPDX-License-Identifier: MIT
/// @file core_set.hpp
/// Which kernels are compiled ahead of time, and in which order a device looks for its own among them.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/gpu_tiles.hpp>

#include "runtime_compiler.hpp"

namespace otimes::backend {

/// One kernel of the core set, for one architecture.
struct core_request {
    kernel_request request;
    target_architecture architecture;
};

/// The generic kernel of a storage type and the type that it is computed in, as the kernels write them.
inline kernel_request generic_request(const std::string& types) {
    return {"generic_sliced_multiply.cuh", "otimes::kernels::generic_sliced_multiply<" + types + ">", ""};
}

/// The kernel of long factors for few fibres, of which a thread sums so many at once.
inline kernel_request few_fibres_request(const std::string& types, int fibres) {
    const std::string shape = "otimes::kernels::few_fibres_shape<" + types + "," + std::to_string(fibres) + ">";
    return {"few_fibres.cuh", "otimes::kernels::few_fibres_multiply<" + shape + ">", shape + "::shared_bytes"};
}

/// A kernel of long factors by blocks, of types as the kernels write them; along_p: whether the values of p are neighbours in X, and in F.
inline kernel_request blocked_request(const planning::blocked_kernel& k, const std::string& types, bool x_along_p,
                                      bool f_along_p, gpu_ending ending = gpu_ending::stored) {
    const auto flag = [](bool value) { return value ? ",true" : ",false"; };
    const std::string end = ending == gpu_ending::stored ? ">" : "," + std::to_string(static_cast<int>(ending)) + ">";
    if (k.together != 0) {
        const std::string single = k.arithmetic == sweep_kernel::mma_tf32 ? "true" : "false";
        if (k.staying_steps != 0) {
            const std::string scalar = k.type == dtype::f64 ? "double" : "float";
            const std::string shape = "otimes::kernels::staying_factor_shape<" + scalar + "," + single +
                                      flag(x_along_p) + "," + std::to_string(k.staying_steps) + "," +
                                      std::to_string(k.together) + end;
            return {"staying_factor.cuh", "otimes::kernels::staying_factor<" + shape + ">", shape + "::shared_bytes"};
        }
        const std::string shape = "otimes::kernels::warpgroup_blocks_shape<" + single + flag(x_along_p) +
                                  flag(f_along_p) + "," + std::to_string(k.together) + end;
        return {"warpgroup_blocks.cuh", "otimes::kernels::warpgroup_blocks<" + shape + ">", shape + "::shared_bytes"};
    }
    const std::string shape = "otimes::kernels::blocked_shape<" + types + flag(k.unit()) +
                              flag(k.arithmetic == sweep_kernel::mma_tf32) + flag(x_along_p) + flag(f_along_p) + "," +
                              std::to_string(k.warps_of_q) + end;
    return {"blocked_multiply.cuh", "otimes::kernels::blocked_multiply<" + shape + ">", shape + "::shared_bytes"};
}

/// The kernel of copies, multiples and sums of matrices, likewise.
inline kernel_request copy_request(const std::string& types) {
    return {"scaled_copy.cuh", "otimes::kernels::scaled_copy<" + types + ">", ""};
}

/// The kernel that multiplies by the elements of a vector.
inline kernel_request scale_request(const std::string& types) {
    return {"diagonal_scale.cuh", "otimes::kernels::diagonal_scale<" + types + ">", ""};
}

/// The kernels of sparse factors in device memory: of X where it lies, or from tiles in shared memory.
inline kernel_request sparse_request(const std::string& types, bool tiles) {
    return tiles ? kernel_request{"sparse_multiply.cuh", "otimes::kernels::sparse_tiles<" + types + ">",
                                  "otimes::kernels::sparse_tiles_shape<" + types + ">::shared_bytes"}
                 : kernel_request{"sparse_multiply.cuh", "otimes::kernels::sparse_multiply<" + types + ">", ""};
}

/// The kernels of dot products and norms: storage type, and the type that sums are computed in.
inline std::vector<kernel_request> dot_requests() {
    std::vector<kernel_request> requests;
    for (const char* const types :
         {"float, double", "double, double", "otimes::kernels::complex<float>, otimes::kernels::complex<double>",
          "otimes::kernels::complex<double>, otimes::kernels::complex<double>"}) {
        for (const char* const kernel : {"partial_dots<", "finish_dot<"}) {
            requests.push_back({"dot_product.cuh", std::string("otimes::kernels::") + kernel + types + ">", ""});
        }
    }
    return requests;
}

/// The kernel that moves blocks between GPUs.
inline kernel_request exchange_request() { return {"exchange_blocks.cuh", "otimes::kernels::exchange_blocks", ""}; }

/// The kernel that waits for what other GPUs store.
inline kernel_request arrivals_request() { return {"arrivals.cuh", "otimes::kernels::await_arrivals", ""}; }

/// The core set: the generic kernel, those of copies, scalings, sparse factors and dot products for every storage type, as machine code for the common architectures and as PTX for all
/// others, the kernel of exchanges likewise, and the fused kernels of planning::core_groups.
inline std::vector<core_request> core_set_contents(const runtime_compiler& compiler) {
    const auto knows = [&](int capability) { return compiler.architecture_for(capability).capability == capability; };
    std::vector<core_request> contents;
    std::vector<kernel_request> everywhere{exchange_request(), arrivals_request()};
    for (const char* const types :
         {"float, float", "double, double", "otimes::kernels::complex<float>, otimes::kernels::complex<float>",
          "otimes::kernels::complex<double>, otimes::kernels::complex<double>", "otimes::kernels::half, float",
          "otimes::kernels::bfloat16, float"}) {
        everywhere.push_back(generic_request(types));
        everywhere.push_back(copy_request(types));
    }
    for (const char* const types :
         {"float, float", "double, double", "otimes::kernels::complex<float>, otimes::kernels::complex<float>",
          "otimes::kernels::complex<double>, otimes::kernels::complex<double>"}) {
        everywhere.push_back(scale_request(types));
        everywhere.push_back(sparse_request(types, false));
        everywhere.push_back(sparse_request(types, true));
    }
    for (kernel_request& request : dot_requests()) {
        everywhere.push_back(std::move(request));
    }
    for (const kernel_request& request : everywhere) {
        contents.push_back({request, {75, true}});
        for (const int capability : {80, 90, 100, 120}) {
            if (knows(capability)) {
                contents.push_back({request, {capability, false}});
            }
        }
    }
    for (const int capability : {80, 90}) {
        if (!knows(capability)) {
            continue;
        }
        for (const planning::gpu_group& group : planning::core_groups(capability)) {
            contents.push_back({request_of(group), {capability, false}});
            // The warpgroup's unit is in machine code for 9.0 alone; newer GPUs have none, and their plans do not ask for it.
            if (capability == 90 && !std::ranges::any_of(group.tile.trips, &gpu_trip::warpgroup)) {
                contents.push_back({request_of(group), {capability, true}});
            }
        }
    }
    return contents;
}

/// The architectures whose code a device runs, best first: machine code of its own and of earlier minor capabilities, then PTX.
/// That for 9.0 is architecture-specific and runs on 9.0 alone.
inline std::vector<target_architecture> code_that_runs_on(int capability) {
    std::vector<target_architecture> order;
    for (int c = capability; c >= capability / 10 * 10; --c) {
        if (c != 90 || capability == 90) {
            order.push_back({c, false});
        }
    }
    for (int c = capability; c >= 75; --c) {
        order.push_back({c, true});
    }
    return order;
}

}  // namespace otimes::backend
