// SPDX-License-Identifier: MIT
/// @file thread_kept.hpp
/// What a thread keeps from one evaluation to the next.
#pragma once

namespace otimes {

/// The T that the calling thread keeps for `Use`: made on first use and destroyed with the thread. Null from then on: destructors of static
/// objects, which may evaluate too, run behind those of the main thread's own and do without it.
template <class T, class Use>
T* thread_kept() {
    thread_local bool gone = false;  // has no destructor, so that it can be read to the very end
    if (gone) {
        return nullptr;
    }
    struct kept_value {
        T value{};
        ~kept_value() { gone = true; }
    };
    thread_local kept_value kept;
    return &kept.value;
}

}  // namespace otimes
