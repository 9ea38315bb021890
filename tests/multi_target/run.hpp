// SPDX-License-Identifier: MIT
// What each file of this test offers to main.cpp: the name of its own executor, and a product evaluated by it.
#pragma once

#include <string>
#include <vector>

struct target_result {
    std::string executor;        // of the file
    std::vector<double> values;  // of a fixed product, row by row
};

// A product without elements, by a file that has made nothing but dense products: 1 when it went well.
int empty_product();
target_result run_a();
target_result run_b();
