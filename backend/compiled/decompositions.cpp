// SPDX-License-Identifier: MIT
// otimes::compiled: Eigen's decompositions of dense real matrices for one instruction set, with or without OpenMP.
#define OTIMES_COMPILED
#define OTIMES_COMPILED_EXECUTOR_SOURCE
// The headers of Eigen name its namespace only by this word, so here it is another one for each instruction set: a program that links this
// library keeps the functions of its own Eigen, whatever settings and flags that was compiled with.
#define Eigen OTIMES_CONCAT(eigen_, OTIMES_TARGET_ISA, OTIMES_CONCAT(_, OTIMES_TARGET_THREADING, ))
#include <otimes/exec/target.hpp>

#include <otimes/adapt/eigen/dense_decompositions.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template struct dense_decompositions<float>;
template struct dense_decompositions<double>;

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes
