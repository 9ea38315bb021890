// SPDX-License-Identifier: MIT
/// @file algebra.hpp
/// What needs factorisations: solving with Kronecker products and their sums, inverses, determinants, ranks, decompositions,
/// preconditioners, nearest Kronecker products. Included when used; the umbrella header declares the members
/// (`K.solve(B)`, `K.determinant()`) and a plain product stays cheap to compile. docs/algebra/solving.md has the methods and costs.
#pragma once

#include <otimes/adapt/eigen/decompositions.hpp>
#include <otimes/adapt/eigen/kron_eigen.hpp>
#include <otimes/adapt/eigen/nearest_kron.hpp>
#include <otimes/adapt/eigen/preconditioners.hpp>
#include <otimes/adapt/eigen/solvers.hpp>
#include <otimes/otimes.hpp>
