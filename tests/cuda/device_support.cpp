// SPDX-License-Identifier: MIT
#include "cuda/device_support.hpp"

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
        return found;
    }();
    return there;
}

}  // namespace device_test
