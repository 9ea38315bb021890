// SPDX-License-Identifier: MIT
#include "cuda/device_support.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace device_test {

bool gpu_is_there() {
    static const bool there = [] {
        std::string why;
        const bool found = otimes::find_gpu(&why) != nullptr;
        if (!found && std::getenv("OTIMES_TEST_NEEDS_GPU") != nullptr) {
            throw otimes::device_error("these tests need a GPU: " + why);
        }
        if (!found) {
            std::printf("tests on a GPU are skipped: %s\n", why.c_str());  // what ctest looks for
        }
        return found;
    }();
    return there;
}

}  // namespace device_test
