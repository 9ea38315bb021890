// SPDX-License-Identifier: MIT
// Compiles the core set with NVRTC and writes it as a C++ file that includes a binary one: core_set_builder OUTPUT.cpp OUTPUT.bin
// What is in it, and what for: core_set.hpp.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../core/threads.hpp"
#include "core_set.hpp"
#include "runtime_compiler.hpp"

namespace {

using namespace otimes::backend;

struct entry {
    kernel_request request;
    target_architecture architecture;
    kernel_image image;
};

int build(const char* path, const char* code_path) {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        throw std::runtime_error(compiler.reason());
    }
    std::vector<entry> entries;
    for (const core_request& one : core_set_contents(compiler)) {
        entries.push_back({one.request, one.architecture, {}});
    }
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto work = [&](std::size_t) {
        for (std::size_t at = next++; at < entries.size(); at = next++) {
            try {
                entries[at].image = compiler.compile(entries[at].request, entries[at].architecture);
            } catch (...) {
                const std::lock_guard lock(failure_mutex);
                failure = std::current_exception();
            }
        }
    };
    std::vector<std::thread> threads;
    otimes::backend::start_threads(threads, std::max(1u, std::thread::hardware_concurrency()) - 1, work);
    work(0);
    for (std::thread& t : threads) {
        t.join();
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
    std::ofstream code(code_path, std::ios::binary);
    std::ofstream out(path, std::ios::binary);
    out << "// Written by core_set_builder.\n#include \"kernel_store.hpp\"\n\n"
        << "asm(\".section .rodata\\n.balign 64\\n.hidden otimes_core_set_code\\n.global otimes_core_set_code\\n\"\n"
        << "    \"otimes_core_set_code:\\n.incbin \\\"" << code_path << "\\\"\\n.previous\\n\");\n"
        << "extern \"C\" const unsigned char otimes_core_set_code[];\n\nnamespace otimes::backend {\n\nnamespace {\n\n"
        << "const core_set_entry entries[] = {\n";
    std::size_t offset = 0;
    for (const entry& e : entries) {
        out << "    {R\"otimes_text(" << key_of(e.request, e.architecture) << ")otimes_text\", \"" << e.image.function
            << "\", " << offset << ", " << e.image.code.size() << "},\n";
        const std::size_t padded = (e.image.code.size() + 63) / 64 * 64;
        code << e.image.code << std::string(padded - e.image.code.size(), '\0');
        offset += padded;
    }
    out << "};\n\n}  // namespace\n\ncore_set compiled_core_set() { return {otimes_core_set_code, entries, "
           "std::size(entries)}; }\n\n"
           "}  // namespace otimes::backend\n";
    return code.flush() && out.flush() ? 0 : 1;
}

}  // namespace

// An exception that leaves main shows its text and stops the build.
int main(int argc, char** argv) { return argc == 3 ? build(argv[1], argv[2]) : 2; }
