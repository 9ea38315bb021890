// SPDX-License-Identifier: MIT
/// @file kept_by_thread.hpp
/// What a thread keeps from one evaluation to the next, and does without at its end.
#pragma once

namespace otimes::detail {

/// The `Kept` of this thread that `Owner`, a type of its own, tells from others; nullptr once the thread's objects have been destroyed. A
/// static object that evaluates where it is destroyed comes after those of the main thread.
template <class Kept, class Owner>
Kept* kept_by_thread() {
    thread_local bool gone = false;  // nothing destroys it: its memory lasts as long as the thread
    struct holder {
        Kept value{};
        ~holder() { gone = true; }
    };
    if (gone) {
        return nullptr;
    }
    thread_local holder kept;
    return &kept.value;
}

}  // namespace otimes::detail
