// SPDX-License-Identifier: MIT
// Each file must have run its own code (the executors' names say which), and both must agree.
#include <cstdio>

#include "run.hpp"

int main() {
    if (empty_product() != 1) {  // first: nothing has asked for other loops yet
        std::printf("a product without elements should have its shape\n");
        return 1;
    }
    const target_result a = run_a();
    const target_result b = run_b();
    const target_result again = run_a();
    std::printf("a: %s\nb: %s\n", a.executor.c_str(), b.executor.c_str());
    if (a.executor == b.executor || a.executor.rfind("cpu ", 0) != 0) {
        std::printf("the two files should have executors of their own\n");
        return 1;
    }
    if (a.values.empty() || a.values != b.values || a.values != again.values) {
        std::printf("the two files should agree\n");
        return 1;
    }
    return 0;
}
