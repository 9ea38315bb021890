// SPDX-License-Identifier: MIT
#include "disk_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "sha256.hpp"

namespace otimes::backend {

namespace {

constexpr std::string_view entry_suffix = ".kernel";
constexpr std::int64_t largest_entry_bytes = std::int64_t{64} << 20;

/// Closes a descriptor at the end of its scope.
struct descriptor {
    int value = -1;
    explicit descriptor(int v) : value(v) {}
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    ~descriptor() {
        if (value >= 0) {
            ::close(value);
        }
    }
};

bool privileges_changed() {
    return ::getauxval(AT_SECURE) != 0 || ::geteuid() != ::getuid() || ::getegid() != ::getgid();
}

/// Why nobody should trust this folder; empty: it may be passed through (`own`: and used).
std::string objection(int folder, bool own) {
    struct stat status {};
    if (::fstat(folder, &status) != 0) {
        return "cannot be examined";
    }
    if (!S_ISDIR(status.st_mode)) {
        return "is not a folder";
    }
    if (status.st_uid != ::geteuid() && (own || status.st_uid != 0)) {
        return "belongs to another user";
    }
    const bool others_write = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    const bool sticky = (status.st_mode & S_ISVTX) != 0;
    if (others_write && (own || !sticky)) {
        return "can be written by others";
    }
    return {};
}

bool read_all(int file, std::string& bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
        const ssize_t got = ::read(file, bytes.data() + at, bytes.size() - at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += static_cast<std::size_t>(got);
    }
    return true;
}

bool write_all(int file, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::write(file, bytes.data(), bytes.size());
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    return true;
}

}  // namespace

std::filesystem::path disk_cache::folder_of_environment() {
    if (privileges_changed()) {
        return {};
    }
    if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
        const std::filesystem::path path(cache);
        if (path.is_absolute()) {
            return path / "otimes";
        }
    }
    if (const char* const home = std::getenv("HOME"); home != nullptr && *home != '\0') {
        const std::filesystem::path path(home);
        if (path.is_absolute()) {
            return path / ".cache" / "otimes";
        }
    }
    return {};
}

disk_cache::disk_cache(const std::filesystem::path& folder, std::int64_t limit_bytes) : limit_bytes_(limit_bytes) {
    if (folder.empty() || !folder.is_absolute()) {
        reason_ = folder.empty() ? "no folder is named" : "the path is relative";
        return;
    }
    if (privileges_changed()) {
        reason_ = "the process runs with changed privileges";
        return;
    }
    // A folder on the way is passed through, which takes no right to list it: homes below one of mode 0711 are common.
    constexpr int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    descriptor at(::open("/", flags));
    std::filesystem::path walked("/");
    std::vector<std::string> parts;
    for (const std::filesystem::path& part : folder.lexically_normal().relative_path()) {
        if (!part.empty() && part != ".") {
            parts.push_back(part.string());
        }
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
        walked /= parts[i];
        if (at.value < 0) {
            reason_ = walked.string() + " cannot be opened";
            return;
        }
        const std::string above = objection(at.value, false);
        if (!above.empty()) {
            reason_ = walked.parent_path().string() + " " + above;
            return;
        }
        int next = ::openat(at.value, parts[i].c_str(), flags);
        if (next < 0 && errno == ENOENT) {
            if (::mkdirat(at.value, parts[i].c_str(), S_IRWXU) == 0 || errno == EEXIST) {
                next = ::openat(at.value, parts[i].c_str(), flags);
            }
        }
        if (next < 0) {
            reason_ = walked.string() + (errno == ELOOP || errno == ENOTDIR ? " is a symbolic link or no folder"
                                                                            : " cannot be made or opened");
            return;
        }
        ::close(at.value);
        at.value = next;
    }
    const std::string last = parts.empty() ? "is the root folder" : objection(at.value, true);
    if (!last.empty()) {
        reason_ = walked.string() + " " + last;
        return;
    }
    folder_ = ::openat(at.value, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_ < 0) {
        reason_ = walked.string() + " cannot be read";
    }
}

disk_cache::~disk_cache() {
    if (folder_ >= 0) {
        ::close(folder_);
    }
}

std::string disk_cache::name_of(std::string_view key) {
    return sha256_hex(key).substr(0, 40) + std::string(entry_suffix);
}

std::optional<kernel_image> disk_cache::find(std::string_view key) const {
    if (!usable()) {
        return std::nullopt;
    }
    const descriptor file(::openat(folder_, name_of(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (file.value < 0 || ::fstat(file.value, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0 || status.st_size <= 0 ||
        status.st_size > largest_entry_bytes) {
        return std::nullopt;
    }
    std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
    if (!read_all(file.value, bytes)) {
        return std::nullopt;
    }
    std::optional<kernel_entry> entry = deserialize(bytes);
    if (!entry || entry->key != key) {
        return std::nullopt;
    }
    ::futimens(file.value, nullptr);  // the size limit removes what was not used for longest
    return std::move(entry->image);
}

bool disk_cache::keep(std::string_view key, const kernel_image& image) const {
    if (!usable()) {
        return false;
    }
    static std::atomic<unsigned> counter{0};
    const std::string aside =
        ".new-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1, std::memory_order_relaxed));
    const std::string bytes = serialize({std::string(key), image});
    // Writing more than a process may (ulimit -f) is a signal that ends it.
    struct rlimit most {};
    if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes.size() > most.rlim_cur) {
        return false;
    }
    bool written = false;
    {
        const descriptor file(
            ::openat(folder_, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
        if (file.value < 0) {
            return false;
        }
        written = write_all(file.value, bytes);
    }
    if (!written || ::renameat(folder_, aside.c_str(), folder_, name_of(key).c_str()) != 0) {
        ::unlinkat(folder_, aside.c_str(), 0);
        return false;
    }
    trim();
    return true;
}

void disk_cache::trim() const {
    const int copy = ::openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (copy < 0) {
        return;
    }
    DIR* const listing = ::fdopendir(copy);
    if (listing == nullptr) {
        ::close(copy);
        return;
    }
    struct found {
        std::string name;
        std::int64_t bytes;
        std::int64_t used;
        std::int64_t used_nanoseconds;
    };
    std::vector<found> entries;
    std::int64_t total = 0;
    const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    while (const dirent* const one = ::readdir(listing)) {
        const std::string name(one->d_name);
        struct stat status {};
        if (::fstatat(folder_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) {
            continue;
        }
        if (name.rfind(".new-", 0) == 0 && std::abs(now - status.st_mtime) > 3600) {
            ::unlinkat(folder_, name.c_str(),
                       0);  // its writer died; at an hour yet to come, if the clock has been put back
        } else if (name.size() > entry_suffix.size() && name.ends_with(entry_suffix)) {
            entries.push_back({name, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec});
            total += status.st_size;
        }
    }
    ::closedir(listing);
    std::sort(entries.begin(), entries.end(), [](const found& a, const found& b) {
        return std::pair(a.used, a.used_nanoseconds) < std::pair(b.used, b.used_nanoseconds);
    });
    for (const found& oldest : entries) {
        if (total <= limit_bytes_) {
            break;
        }
        if (::unlinkat(folder_, oldest.name.c_str(), 0) == 0) {
            total -= oldest.bytes;
        }
    }
}

disk_cache::claim::claim(const disk_cache& cache, std::string_view key, int wait_milliseconds) {
    if (!cache.usable()) {
        return;
    }
    // One lock file for every 256th key: they are never removed, since removing a lock file that another process waits for
    // would let two of them in.
    const std::string name = ".lock-" + sha256_hex(key).substr(0, 2);
    file_ = ::openat(cache.folder_, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file_ < 0) {
        return;
    }
    for (int waited = 0; ::flock(file_, LOCK_EX | LOCK_NB) != 0; waited += 5) {
        // Some file systems have no locks (ENOSYS, ENOLCK): there is nobody to wait for.
        if (waited >= wait_milliseconds || (errno != EWOULDBLOCK && errno != EINTR)) {
            ::close(file_);
            file_ = -1;
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

disk_cache::claim::~claim() {
    if (file_ >= 0) {
        ::close(file_);
    }
}

}  // namespace otimes::backend
