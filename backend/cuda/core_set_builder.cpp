// SPDX-License-Identifier: MIT
// Compiles the core set with NVRTC and writes it as a C++ file: core_set_builder OUTPUT.cpp
// The core set is what must run without a compiler on the user's machine: the generic kernel for every storage type, as
// machine code for the common architectures and as PTX for all others.
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

#include "runtime_compiler.hpp"

namespace {

using namespace otimes::backend;

struct entry {
    kernel_request request;
    target_architecture architecture;
    kernel_image image;
};

/// A string literal: hexadecimal escapes would swallow following digits, octal ones of three digits do not.
void write_bytes(std::ostream& out, const std::string& bytes) {
    out << '"';
    std::size_t column = 0;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        out << '\\' << static_cast<char>('0' + (byte >> 6)) << static_cast<char>('0' + (byte >> 3 & 7))
            << static_cast<char>('0' + (byte & 7));
        if (++column % 4096 == 0) {
            out << "\"\n\"";
        }
    }
    out << '"';
}

int build(const char* path) {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        throw std::runtime_error(compiler.reason());
    }
    std::vector<entry> entries;
    for (const char* const types :
         {"float, float", "double, double", "otimes::kernels::complex<float>, otimes::kernels::complex<float>",
          "otimes::kernels::complex<double>, otimes::kernels::complex<double>", "otimes::kernels::half, float",
          "otimes::kernels::bfloat16, float"}) {
        const kernel_request generic{"generic_sliced_multiply.cuh",
                                     std::string("otimes::kernels::generic_sliced_multiply<") + types + ">", ""};
        entries.push_back({generic, {75, true}, {}});
        for (const int capability : {80, 90, 100, 120}) {
            if (compiler.architecture_for(capability).capability == capability) {
                entries.push_back({generic, {capability, false}, {}});
            }
        }
    }
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_mutex;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
        threads.emplace_back([&] {
            for (std::size_t at = next++; at < entries.size(); at = next++) {
                try {
                    entries[at].image = compiler.compile(entries[at].request, entries[at].architecture);
                } catch (...) {
                    const std::lock_guard lock(failure_mutex);
                    failure = std::current_exception();
                }
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
    std::ofstream out(path, std::ios::binary);
    out << "// Written by core_set_builder.\n#include \"kernel_store.hpp\"\n\nnamespace otimes::backend {\n\nnamespace "
           "{\n\n";
    for (std::size_t i = 0; i < entries.size(); ++i) {
        out << "alignas(64) const char code_" << i << "[] =\n";
        write_bytes(out, entries[i].image.code);
        out << ";\n";
    }
    out << "\nconst core_set_entry entries[] = {\n";
    for (std::size_t i = 0; i < entries.size(); ++i) {
        out << "    {R\"otimes_text(" << key_of(entries[i].request, entries[i].architecture) << ")otimes_text\", \""
            << entries[i].image.function << "\", reinterpret_cast<const unsigned char*>(code_" << i << "), sizeof(code_"
            << i << ") - 1},\n";
    }
    out << "};\n\n}  // namespace\n\ncore_set compiled_core_set() { return {entries, std::size(entries)}; }\n\n"
           "}  // namespace otimes::backend\n";
    return out.flush() ? 0 : 1;
}

}  // namespace

// An exception that leaves main shows its text and stops the build.
int main(int argc, char** argv) { return argc == 2 ? build(argv[1]) : 2; }
