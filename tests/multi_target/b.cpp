// SPDX-License-Identifier: MIT
#include "here.hpp"

target_result run_b() { return run_here(); }
