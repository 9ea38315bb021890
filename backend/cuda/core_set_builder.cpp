// SPDX-License-Identifier: MIT
// Compiles the core set with NVRTC and writes it as a C++ file that includes a binary one: core_set_builder OUTPUT.cpp OUTPUT.bin
// The core set is what must run without a compiler on the user's machine: the generic kernel for every storage type, as
// machine code for the common architectures and as PTX for all others, and the fused kernels of planning::core_groups.
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

#include <otimes/plan/gpu_tiles.hpp>

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
    for (const int capability : {80, 90}) {
        if (compiler.architecture_for(capability).capability != capability) {
            continue;
        }
        for (const otimes::planning::gpu_group& group : otimes::planning::core_groups(capability)) {
            entries.push_back({request_of(group), {capability, false}, {}});
            if (capability == 90) {
                entries.push_back({request_of(group), {capability, true}, {}});
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
