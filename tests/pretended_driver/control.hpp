// SPDX-License-Identifier: MIT
// What tests see of the pretended driver, and tell it.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace pretended {

struct control {
    std::atomic<long> memory_bytes{8l << 30};  ///< of a GPU
    std::atomic<long> device_bytes{0};         ///< in use, of all GPUs
    std::atomic<int> device_blocks{0};
    std::atomic<int> pinned_blocks{0};
    std::atomic<int> events{0};
    std::atomic<int> streams{0};
    std::atomic<int> modules{0};
    std::atomic<int> pools{0};
    std::atomic<int> launches{0};
    std::atomic<int> ended_launches{0};
    std::atomic<int> frees_of_nothing{0};    ///< of memory that a call may not free there
    std::atomic<int> early_launches{0};      ///< before the one in front has ended
    std::atomic<int> occupancy{2};           ///< blocks of any kernel that a multiprocessor holds
    std::atomic<unsigned> last_grid{0};      ///< blocks of the last launch
    std::atomic<int> invalidated{0};         ///< captures that a call made invalid
    std::atomic<bool> lost[8]{};             ///< the context of a GPU
    std::atomic<unsigned> context_flags{0};  ///< of every context
    std::atomic<bool> knows_all{false};      ///< modules have every kernel that is asked for; they do nothing
    std::atomic<int> compilations{0};
    std::atomic<int> compilations_past_cache{0};  ///< those whose loads and stores leave the second-level cache first
    std::atomic<int> copies_of_lines{0};          ///< by the device alone: cuMemcpy2DAsync
    /// The nth call of that name from now on, and the `times - 1` behind it, return `code`. A null name forgets all.
    void (*fail)(const char* call, int nth, int code, int times) = nullptr;
};

inline control& driver() {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    static auto* const found = reinterpret_cast<control* (*)()>(::dlsym(library, "pretended_control"))();
    return *found;
}

/// Calls fail as long as it lives.
class failing {
public:
    explicit failing(const char* call, int code = 2, int nth = 1, int times = 1 << 30) {
        driver().fail(call, nth, code, times);
    }
    failing(const failing&) = delete;
    failing& operator=(const failing&) = delete;
    ~failing() { driver().fail(nullptr, 0, 0, 0); }
};

}  // namespace pretended
