// SPDX-License-Identifier: MIT
/// @file eigen.hpp
/// Kronecker products over Eigen matrices: the expressions that users write. See docs/architecture.md for what happens
/// between `Y = X * kron(A, B)` and the kernels.
#pragma once

#include <otimes/adapt/eigen/applied_sums.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/adapt/eigen/misuse.hpp>
#include <otimes/adapt/eigen/operators.hpp>
#include <otimes/adapt/eigen/printing.hpp>
#include <otimes/adapt/eigen/reductions.hpp>
#include <otimes/adapt/eigen/row_pairs.hpp>
#include <otimes/adapt/eigen/row_products.hpp>
#include <otimes/adapt/eigen/run.hpp>
#include <otimes/adapt/eigen/selected.hpp>
#include <otimes/adapt/eigen/structured.hpp>
#include <otimes/adapt/eigen/sums.hpp>
#include <otimes/adapt/eigen/vec.hpp>
