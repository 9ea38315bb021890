// SPDX-License-Identifier: MIT
/// @file streaming.hpp
/// Runs a stream plan (plan/streaming.hpp): slabs of host operands pass through device memory, the copies of the neighbouring
/// slabs and the kernels at the same time.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <otimes/plan/streaming.hpp>

#include "device.hpp"

namespace otimes::backend {

struct prepared_plan;

/// A stage with the plans of its slabs ready to run.
struct prepared_stage {
    planning::stream_stage stage;
    std::shared_ptr<const prepared_plan> slab;
    std::shared_ptr<const prepared_plan> rest;
};

struct prepared_stream {
    planning::stream_plan plan;  ///< its stages are in `stages`
    std::vector<prepared_stage> stages;
    std::int64_t budget = 0;
};

/// The streams and events of one run; used again by the next. The kernels run on the executor's stream.
struct stream_lanes {
    CUstream in = nullptr;
    CUstream out = nullptr;
    std::array<CUevent, 2> arrived{};   ///< the slab in this buffer is on the device
    std::array<CUevent, 2> computed{};  ///< its kernels are done
    std::array<CUevent, 2> drained{};   ///< its results have left the device
    CUevent ready = nullptr;            ///< the executor's stream has made the buffers
};

class lanes_pool {
public:
    lanes_pool() = default;
    lanes_pool(const lanes_pool&) = delete;
    lanes_pool& operator=(const lanes_pool&) = delete;

    /// The context is current. @throws device_error
    stream_lanes take();
    void give_back(const stream_lanes& used);

private:
    std::mutex mutex_;
    std::vector<stream_lanes> free_;
};

}  // namespace otimes::backend
