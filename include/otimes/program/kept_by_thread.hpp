// SPDX-License-Identifier: MIT
/// @file kept_by_thread.hpp
/// What a thread keeps from one evaluation to the next, and does without at its end.
#pragma once

#include <optional>

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

/// The same for who cannot do without: the thread's, or one of its own at the thread's end. Nothing that it calls may take the same again.
template <class Kept, class Owner>
class kept_or_own {
public:
    kept_or_own() : kept_(kept_by_thread<Kept, Owner>()) {
        if (kept_ == nullptr) {
            kept_ = &own_.emplace();
        }
    }
    kept_or_own(const kept_or_own&) = delete;
    kept_or_own& operator=(const kept_or_own&) = delete;

    [[nodiscard]] Kept& operator*() noexcept { return *kept_; }

private:
    Kept* kept_;
    std::optional<Kept> own_;
};

}  // namespace otimes::detail
