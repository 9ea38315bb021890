// SPDX-License-Identifier: MIT
// The disk cache of compiled kernels: what it keeps, what it refuses to trust.
#include <doctest/doctest.h>

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../../backend/core/disk_cache.hpp"
#include "../../backend/core/sha256.hpp"

namespace {

namespace fs = std::filesystem;
using otimes::backend::disk_cache;
using otimes::backend::kernel_image;

// A folder of its own below the temporary one, removed at the end.
class temporary_folder {
public:
    temporary_folder() {
        std::string pattern = (fs::temp_directory_path() / "otimes_cache_test_XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    temporary_folder(const temporary_folder&) = delete;
    temporary_folder& operator=(const temporary_folder&) = delete;
    ~temporary_folder() { fs::remove_all(path_); }
    const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

std::string read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
void write(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

std::atomic<bool> no_locks{false};  // as file systems that have none

const kernel_image image{std::string("code\0with zeros", 15), "a_function"};

}  // namespace

// In front of the library's.
extern "C" int flock(int file, int operation) noexcept {
    if (no_locks) {
        errno = ENOSYS;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_flock, file, operation));
}

TEST_CASE("SHA-256 has the digests of FIPS 180-4") {
    using otimes::backend::sha256_hex;
    CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha256_hex(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("an entry is found again, by another object too") {
    const temporary_folder folder;
    const disk_cache cache(folder.path() / "made" / "otimes");
    REQUIRE_MESSAGE(cache.usable(), cache.reason());
    CHECK(!cache.find("key"));
    CHECK(cache.keep("key", image));
    CHECK(cache.find("key") == image);
    CHECK(!cache.find("another key"));
    CHECK(disk_cache(folder.path() / "made" / "otimes").find("key") == image);
    CHECK(cache.keep("key", {"newer", "f"}));
    CHECK(cache.find("key") == kernel_image{"newer", "f"});
    struct stat status {};
    REQUIRE(::stat((folder.path() / "made" / "otimes" / disk_cache::name_of("key")).c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    REQUIRE(::stat((folder.path() / "made" / "otimes").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    for (const auto& entry : fs::directory_iterator(folder.path() / "made" / "otimes"))
        CHECK(entry.path().filename().string().rfind(".new", 0) == std::string::npos);
}

TEST_CASE("damaged, cut and foreign entries are ignored and replaced") {
    const temporary_folder folder;
    const disk_cache cache(folder.path());
    REQUIRE(cache.keep("key", image));
    const fs::path file = folder.path() / disk_cache::name_of("key");
    const std::string good = read(file);
    for (std::size_t i = 0; i < good.size(); ++i) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ 0x20);
        write(file, bad);
        CHECK(!cache.find("key"));
        write(file, good.substr(0, i));
        CHECK(!cache.find("key"));
    }
    write(file, good + "x");
    CHECK(!cache.find("key"));
    // the entry of another key under this name
    REQUIRE(cache.keep("other", image));
    fs::copy_file(folder.path() / disk_cache::name_of("other"), file, fs::copy_options::overwrite_existing);
    CHECK(!cache.find("key"));
    CHECK(cache.keep("key", image));
    CHECK(cache.find("key") == image);
}

TEST_CASE("links, writable folders and relative paths are refused") {
    const temporary_folder folder;
    const fs::path good = folder.path() / "good";
    fs::create_directory(good);
    ::chmod(good.c_str(), 0700);
    SUBCASE("relative") { CHECK(!disk_cache("relative/otimes").usable()); }
    SUBCASE("empty") { CHECK(!disk_cache("").usable()); }
    SUBCASE("the folder is a link") {
        fs::create_directory_symlink(good, folder.path() / "link");
        CHECK(!disk_cache(folder.path() / "link").usable());
    }
    SUBCASE("a folder above is a link") {
        fs::create_directory_symlink(good, folder.path() / "link");
        CHECK(!disk_cache(folder.path() / "link" / "otimes").usable());
        CHECK(!fs::exists(good / "otimes"));
    }
    SUBCASE("others may write the folder") {
        ::chmod(good.c_str(), 0777);
        CHECK(!disk_cache(good).usable());
        ::chmod(good.c_str(), 0770);
        CHECK(!disk_cache(good).usable());
        ::chmod(good.c_str(), 01777);  // sticky: a folder above may be, the own one not
        CHECK(!disk_cache(good).usable());
        CHECK(disk_cache(good / "otimes").usable());
    }
    SUBCASE("others may write a folder above") {
        ::chmod(good.c_str(), 0777);
        const disk_cache cache(good / "otimes");
        CHECK(!cache.usable());
        CHECK(cache.reason().find("can be written by others") != std::string::npos);
    }
    SUBCASE("a file stands where the folder should") {
        write(folder.path() / "file", "text");
        CHECK(!disk_cache(folder.path() / "file").usable());
    }
    SUBCASE("an entry is a link") {
        const disk_cache cache(good);
        REQUIRE(cache.keep("key", image));
        const fs::path file = good / disk_cache::name_of("key");
        fs::rename(file, folder.path() / "elsewhere");
        fs::create_symlink(folder.path() / "elsewhere", file);
        CHECK(!cache.find("key"));
    }
    SUBCASE("others may write an entry") {
        const disk_cache cache(good);
        REQUIRE(cache.keep("key", image));
        ::chmod((good / disk_cache::name_of("key")).c_str(), 0666);
        CHECK(!cache.find("key"));
    }
    SUBCASE("an entry belongs to another user") {
        if (::geteuid() == 0) {
            const disk_cache cache(good);
            REQUIRE(cache.keep("key", image));
            REQUIRE(::chown((good / disk_cache::name_of("key")).c_str(), 12345, 12345) == 0);
            CHECK(!cache.find("key"));
        }
    }
    SUBCASE("an entry is a pipe: nothing hangs") {
        const disk_cache cache(good);
        REQUIRE(::mkfifo((good / disk_cache::name_of("key")).c_str(), 0600) == 0);
        CHECK(!cache.find("key"));
    }
    SUBCASE("the folder belongs to another user") {
        if (::geteuid() == 0) {
            REQUIRE(::chown(good.c_str(), 12345, 12345) == 0);
            CHECK(!disk_cache(good).usable());
            CHECK(!disk_cache(good / "otimes").usable());
        }
    }
    SUBCASE("a refused cache finds and keeps nothing, without an error") {
        const disk_cache cache("relative");
        CHECK(!cache.find("key"));
        CHECK(!cache.keep("key", image));
        const disk_cache::claim claim(cache, "key", 0);
    }
}

TEST_CASE("folders on the way need not be readable") {
    const temporary_folder folder;
    const fs::path home = folder.path() / "home";
    fs::create_directory(home);
    const bool root = ::geteuid() == 0;  // who reads everywhere, so another user asks
    if (root) REQUIRE(::chown(home.c_str(), 12345, 12345) == 0);
    ::chmod(folder.path().c_str(), root ? 0711 : 0311);
    constexpr int passes = 0, unusable = 1, forgets = 2, trusts = 3, cannot_try = 4;
    const pid_t child = ::fork();
    if (child == 0) {
        if (root && (::setgid(12345) != 0 || ::setuid(12345) != 0)) ::_exit(cannot_try);
        if (::access(home.c_str(), W_OK) != 0) ::_exit(cannot_try);  // the temporary folder is root's alone
        const disk_cache cache(home / ".cache" / "otimes");
        if (!cache.usable()) ::_exit(unusable);
        if (!cache.keep("key", image) || cache.find("key") != image) ::_exit(forgets);
        if (::symlink(home.c_str(), (home / "link").c_str()) != 0) ::_exit(cannot_try);
        if (disk_cache(home / "link" / "otimes").usable()) ::_exit(trusts);
        ::chmod((home / ".cache").c_str(), 0733);
        ::_exit(disk_cache(home / ".cache" / "otimes").usable() ? trusts : passes);
    }
    REQUIRE(child > 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    ::chmod(folder.path().c_str(), 0700);
    REQUIRE(WIFEXITED(status));
    if (WEXITSTATUS(status) == cannot_try) {
        MESSAGE("not tried: no other user may pass to " << folder.path().string());
        return;
    }
    CHECK(WEXITSTATUS(status) == passes);
}

TEST_CASE("a last folder that cannot be read is refused") {
    if (::geteuid() == 0) return;  // root reads everywhere
    const temporary_folder folder;
    ::chmod(folder.path().c_str(), 0300);
    const disk_cache cache(folder.path());
    CHECK(!cache.usable());
    CHECK(cache.reason().find("cannot be read") != std::string::npos);
    ::chmod(folder.path().c_str(), 0700);
}

TEST_CASE("a folder that cannot be written is no error") {
    if (::geteuid() == 0) return;  // root writes everywhere
    const temporary_folder folder;
    ::chmod(folder.path().c_str(), 0500);
    const disk_cache cache(folder.path());
    CHECK(!cache.keep("key", image));
    ::chmod(folder.path().c_str(), 0700);
}

TEST_CASE("the size is bounded: what was not used for longest goes") {
    const temporary_folder folder;
    const kernel_image large{std::string(10000, 'x'), "f"};
    const disk_cache cache(folder.path(), 45000);
    for (int i = 0; i < 12; ++i) {
        REQUIRE(cache.keep("key " + std::to_string(i), large));
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
        if (i >= 1) CHECK(cache.find("key 0"));  // used, so it stays
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
    }
    std::uintmax_t total = 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) total += entry.file_size();
    CHECK(total <= 45000);
    CHECK(cache.find("key 11"));
    CHECK(!cache.find("key 5"));
}

TEST_CASE("an entry longer than a process may write is not kept, and does not end the process") {
    const temporary_folder folder;
    const disk_cache cache(folder.path());
    constexpr int passes = 0, keeps = 1, forgets = 2;
    const pid_t child = ::fork();
    if (child == 0) {
        const struct rlimit most { 2000, 2000 };
        if (::setrlimit(RLIMIT_FSIZE, &most) != 0) ::_exit(passes);
        if (cache.keep("key", {std::string(2000, 'x'), "f"})) ::_exit(keeps);
        ::_exit(cache.keep("other", image) && cache.find("other") == image ? passes : forgets);
    }
    REQUIRE(child > 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));  // else by a signal
    CHECK(WEXITSTATUS(status) == passes);
}

TEST_CASE("what a process that ended has left is removed, also where the clock has been put back since") {
    const temporary_folder folder;
    const disk_cache cache(folder.path());
    const auto now = fs::file_time_type::clock::now();
    for (const int hours : {-3, 0, 3}) {
        const fs::path file = folder.path() / (".new-" + std::to_string(hours + 10));
        write(file, "half an entry");
        fs::last_write_time(file, now + std::chrono::hours(hours));
    }
    REQUIRE(cache.keep("key", image));
    CHECK(!fs::exists(folder.path() / ".new-7"));
    CHECK(fs::exists(folder.path() / ".new-10"));  // it may be at work
    CHECK(!fs::exists(folder.path() / ".new-13"));
}

TEST_CASE("threads that write and read one key see whole entries") {
    const temporary_folder folder;
    const disk_cache cache(folder.path());
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                if (t % 2 == 0) {
                    cache.keep("key", {std::string(5000, static_cast<char>('a' + t)), "f"});
                } else if (const auto found = cache.find("key")) {
                    const bool whole = found->code == std::string(5000, 'a') || found->code == std::string(5000, 'c');
                    wrong += whole ? 0 : 1;
                }
            }
        });
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
}

TEST_CASE("one claim at a time holds a key") {
    const temporary_folder folder;
    const disk_cache cache(folder.path());
    std::atomic<int> inside{0};
    std::atomic<int> most{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            const disk_cache::claim claim(cache, "key", 5000);
            const int now = ++inside;
            if (now > most) most = now;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            --inside;
        });
    for (std::thread& t : threads) t.join();
    CHECK(most == 1);
}

TEST_CASE("a claim waits for nobody where the file system has no locks") {
    const temporary_folder folder;
    const disk_cache cache(folder.path());
    no_locks = true;
    const auto start = std::chrono::steady_clock::now();
    { const disk_cache::claim claim(cache, "key", 2000); }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1000));
    no_locks = false;
}

TEST_CASE("the environment names the folder") {
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    const std::string old_cache = cache != nullptr ? cache : "", old_home = home != nullptr ? home : "";
    ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
    CHECK(disk_cache::folder_of_environment() == "/somewhere/otimes");
    ::setenv("XDG_CACHE_HOME", "relative", 1);
    ::setenv("HOME", "/home/someone", 1);
    CHECK(disk_cache::folder_of_environment() == "/home/someone/.cache/otimes");
    ::unsetenv("XDG_CACHE_HOME");
    ::setenv("HOME", "relative", 1);
    CHECK(disk_cache::folder_of_environment().empty());
    cache != nullptr ? ::setenv("XDG_CACHE_HOME", old_cache.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
    home != nullptr ? ::setenv("HOME", old_home.c_str(), 1) : ::unsetenv("HOME");
}
