// SPDX-License-Identifier: MIT
// Whether the long form of the tests was asked for (`sh tests/run.sh full`).
//
// A case that is always long carries [long] in its name and is left out of the default run. A case that can be made
// longer, by more sizes or more repetitions, asks long_tests().
#pragma once

#include <cstdlib>
#include <cstring>

namespace support {

inline bool long_tests() {
    const char* value = std::getenv("OTIMES_TEST_LONG");
    return value != nullptr && std::strcmp(value, "") != 0 && std::strcmp(value, "0") != 0;
}

}  // namespace support
