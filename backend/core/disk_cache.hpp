// SPDX-License-Identifier: MIT
/// @file disk_cache.hpp
/// Compiled kernels kept between runs, in `$XDG_CACHE_HOME/otimes` (else `$HOME/.cache/otimes`).
///
/// Trust: code from there is loaded onto a GPU, so the folder and every component above it up to the root must belong to
/// the user or to root and not be writable by others (sticky folders such as /tmp excepted), the last one must be the
/// user's own, and no component and no file may be a symbolic link. The last one alone must be readable: through those above it
/// the user need only pass. A relative path is ignored. A process that runs with
/// changed privileges (setuid) has no cache. Whatever fails a check is not an error: the cache is then absent.
///
/// Entries: one file per key, written aside and renamed, so that a reader never sees half of one. Damaged entries and
/// entries of another key are ignored and replaced. The folder is kept below a size by removing the oldest entries.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "kernel_image.hpp"

namespace otimes::backend {

class disk_cache {
public:
    static constexpr std::int64_t default_limit_bytes = std::int64_t{256} << 20;

    /// Opens the folder, making it where its parent passes the checks; `folder` empty or refused: a cache that is absent.
    explicit disk_cache(const std::filesystem::path& folder, std::int64_t limit_bytes = default_limit_bytes);
    disk_cache(const disk_cache&) = delete;
    disk_cache& operator=(const disk_cache&) = delete;
    ~disk_cache();

    /// The folder that the environment names; empty when it names none that may be used.
    static std::filesystem::path folder_of_environment();

    /// False when the folder was refused; `reason()` says why.
    [[nodiscard]] bool usable() const noexcept { return folder_ >= 0; }
    [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

    /// The image under `key`, or nothing.
    [[nodiscard]] std::optional<kernel_image> find(std::string_view key) const;

    /// Writes an entry; false when it could not be written, which is no error.
    bool keep(std::string_view key, const kernel_image& image) const;

    /// Holds the right to make the entry of a key, among all processes, as long as it lives. Waits at most
    /// `wait_milliseconds`; without a usable cache, or after that time, it holds nothing, and nothing depends on it.
    class claim {
    public:
        claim(const disk_cache& cache, std::string_view key, int wait_milliseconds);
        claim(const claim&) = delete;
        claim& operator=(const claim&) = delete;
        ~claim();

    private:
        int file_ = -1;
    };

    /// File name of a key inside the folder.
    static std::string name_of(std::string_view key);

private:
    void trim() const;

    int folder_ = -1;  // descriptor: later changes of the path cannot redirect it
    std::int64_t limit_bytes_;
    std::string reason_;
};

}  // namespace otimes::backend
