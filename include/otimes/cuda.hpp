// SPDX-License-Identifier: MIT
/// @file cuda.hpp
/// Public face of the GPU executors: matrices in device memory, `dY = dX * kron(dA, dB)`, and the executors that evaluate
/// them. Link otimes::cuda. Needs neither a CUDA header nor Eigen; any C++20 compiler will do.
///
/// Everything is asynchronous and in the order of a stream: an assignment returns when its kernels are queued.
/// `to_host()` and `synchronize()` wait. Errors of the device are `otimes::device_error` with the CUDA error's name.
/// An expression, also of a plan, runs on the executor that `otimes::on` or the default executor names if that one is a GPU, else on the
/// executor of its destination, else of its first operand that has one. It waits for the others that its operands belong to, and they for it.
#pragma once

#include <otimes/device/evaluate.hpp>
#include <otimes/device/executors.hpp>
#include <otimes/device/expressions.hpp>
#include <otimes/device/kron.hpp>
#include <otimes/device/matrix.hpp>
#include <otimes/device/misuse.hpp>
#include <otimes/device/operands.hpp>
#include <otimes/device/operators.hpp>
#include <otimes/device/run.hpp>
#include <otimes/device/sums.hpp>

#include <otimes/device_algebra.hpp>
