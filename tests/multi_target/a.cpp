// SPDX-License-Identifier: MIT
#include "here.hpp"

target_result run_a() { return run_here(); }
