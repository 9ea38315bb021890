// SPDX-License-Identifier: MIT
/// @file workspace_pool.hpp
/// Scratch memory of a thread: grown on demand, kept for the next run, freed when the thread ends. So a plan that is run
/// again allocates nothing.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include <otimes/exec/target.hpp>
#include <otimes/program/kept_by_thread.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// A block of memory aligned to 64 bytes, and whether a run of this thread is using it.
class workspace_pool {
public:
    workspace_pool() = default;
    workspace_pool(const workspace_pool&) = delete;
    workspace_pool& operator=(const workspace_pool&) = delete;
    ~workspace_pool() { release(); }

    /// At least `bytes` bytes. @throws std::bad_alloc
    void* reserve(std::size_t bytes) {
        if (bytes > bytes_) {
            release();
            data_ = ::operator new (bytes, std::align_val_t{64});
            bytes_ = bytes;
        }
        return data_;
    }
    /// The pool of the calling thread; null when the thread has ended.
    static workspace_pool* mine() { return detail::kept_by_thread<workspace_pool, workspace_pool>(); }
    bool busy = false;

private:
    void release() noexcept {
        ::operator delete (data_, std::align_val_t{64});
        data_ = nullptr;
        bytes_ = 0;
    }
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Takes the thread's pool for one run; a run inside another (a callback that evaluates) gets memory of its own.
class workspace_lease {
public:
    explicit workspace_lease(std::size_t bytes) {
        workspace_pool* const pool = workspace_pool::mine();
        if (pool != nullptr && !pool->busy) {
            data_ = pool->reserve(bytes);
            pool->busy = true;
            pool_ = pool;
        } else {
            data_ = own_.reserve(bytes);
        }
    }
    workspace_lease(const workspace_lease&) = delete;
    workspace_lease& operator=(const workspace_lease&) = delete;
    ~workspace_lease() {
        if (pool_ != nullptr) {
            pool_->busy = false;
        }
    }
    [[nodiscard]] void* data() const noexcept { return data_; }

private:
    workspace_pool* pool_ = nullptr;
    workspace_pool own_;
    void* data_ = nullptr;
};

/// A vector, empty at first, whose memory the thread keeps for the next one of the same use; inside another run (a callback that
/// evaluates) it has memory of its own.
template <class Value, class Use>
class kept_vector {
public:
    kept_vector() noexcept {
        exchange();
        own_.clear();
    }
    kept_vector(const kept_vector&) = delete;
    kept_vector& operator=(const kept_vector&) = delete;
    ~kept_vector() { exchange(); }

    [[nodiscard]] std::vector<Value>& operator*() noexcept { return own_; }
    [[nodiscard]] std::vector<Value>* operator->() noexcept { return &own_; }

private:
    void exchange() noexcept {
        if (std::vector<Value>* const kept = detail::kept_by_thread<std::vector<Value>, Use>()) {
            own_.swap(*kept);
        }
    }
    std::vector<Value> own_;
};

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes
