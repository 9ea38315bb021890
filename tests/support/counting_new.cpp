// SPDX-License-Identifier: MIT
#include "support/counting_new.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OTIMES_TEST_OWN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OTIMES_TEST_OWN_MALLOC 1
#endif
#endif

#if defined(__GLIBC__) && !defined(OTIMES_TEST_OWN_MALLOC)
#define OTIMES_TEST_COUNTS_ALLOCATIONS 1
#else
#define OTIMES_TEST_COUNTS_ALLOCATIONS 0
#endif

namespace {

// Constant-initialised: malloc is called before any constructor runs.
constinit std::atomic<bool> counting{false};
constinit std::atomic<std::int64_t> count{0};
constinit std::atomic<std::size_t> largest_bytes{0};
constinit std::atomic<std::size_t> total_bytes{0};
constinit std::atomic<bool> limited{false};
constinit std::atomic<std::size_t> limit_bytes{0};
constinit std::atomic<std::size_t> taken_bytes{0};
constinit std::atomic<std::size_t> most_at_once{static_cast<std::size_t>(-1)};

}  // namespace

#if OTIMES_TEST_COUNTS_ALLOCATIONS

namespace {

// False: refuse it.
bool allowed(std::size_t bytes) {
    if (bytes > most_at_once.load(std::memory_order_relaxed)) {
        errno = ENOMEM;
        return false;
    }
    if (!limited.load(std::memory_order_relaxed)) return true;
    if (taken_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_bytes) return true;
    errno = ENOMEM;
    return false;
}

void note(std::size_t bytes) {
    if (!counting.load(std::memory_order_relaxed)) return;
    count.fetch_add(1, std::memory_order_relaxed);
    total_bytes.fetch_add(bytes, std::memory_order_relaxed);
    std::size_t largest = largest_bytes.load(std::memory_order_relaxed);
    while (bytes > largest && !largest_bytes.compare_exchange_weak(largest, bytes, std::memory_order_relaxed)) {
    }
}

}  // namespace

// glibc lets a program define the malloc family itself; libstdc++'s operator new calls malloc or aligned_alloc. free
// stays glibc's.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t items, std::size_t item_bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
    note(bytes);
    return allowed(bytes) ? __libc_malloc(bytes) : nullptr;
}
void* calloc(std::size_t items, std::size_t item_bytes) noexcept {
    note(items * item_bytes);
    return allowed(items * item_bytes) ? __libc_calloc(items, item_bytes) : nullptr;
}
void* realloc(void* old, std::size_t bytes) noexcept {
    note(bytes);
    return allowed(bytes) ? __libc_realloc(old, bytes) : nullptr;
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
    note(bytes);
    return allowed(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
    note(bytes);
    return allowed(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
}
int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) noexcept {
    note(bytes);
    void* memory = allowed(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
    if (memory == nullptr) return ENOMEM;
    *result = memory;
    return 0;
}
}  // extern "C"

#endif

namespace support {

bool allocations_are_counted() { return OTIMES_TEST_COUNTS_ALLOCATIONS != 0; }

allocation_counter::allocation_counter() {
    count = 0;
    largest_bytes = 0;
    total_bytes = 0;
    counting = true;
}

allocation_counter::~allocation_counter() { counting = false; }

allocation_limit::allocation_limit(std::size_t bytes) {
    taken_bytes = 0;
    limit_bytes = bytes;
    limited = true;
}

allocation_limit::~allocation_limit() { limited = false; }

allocation_size_limit::allocation_size_limit(std::size_t bytes) { most_at_once = bytes; }

allocation_size_limit::~allocation_size_limit() { most_at_once = static_cast<std::size_t>(-1); }

allocations allocation_counter::seen() const { return {count.load(), largest_bytes.load(), total_bytes.load()}; }

}  // namespace support
