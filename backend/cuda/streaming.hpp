// SPDX-License-Identifier: MIT
/// @file streaming.hpp
/// Runs a stream plan (plan/streaming.hpp): slabs of host operands pass through device memory, the copies of the neighbouring
/// slabs and the kernels at the same time.
#pragma once

#include <cstdint>
#include <memory>
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

}  // namespace otimes::backend
