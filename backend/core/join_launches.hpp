// SPDX-License-Identifier: MIT
/// @file join_launches.hpp
/// Fewer launches for the same result: products of one X, sums into one Y, and what is done to Y after the last of them.
#pragma once

#include <vector>

#include <otimes/plan/machine.hpp>

#include "launch_list.hpp"

namespace otimes::backend {

/// Replaces neighbouring launches of `list` by one where a kernel does the work of several: terms that share factors, mode products
/// of one X, a matrix that is added, a scaling of Y. Each reads or writes X or Y once instead of once a launch; the launches that
/// remain keep their order. Where `gpu` cannot compile at run time only those join whose kernels are compiled ahead of time.
void join_launches(std::vector<launch>& list, const gpu_description& gpu);

}  // namespace otimes::backend
