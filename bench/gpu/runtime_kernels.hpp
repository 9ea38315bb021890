// SPDX-License-Identifier: MIT
// The kernels' text, compiled at run time with no include path, as the measuring and the checking program need it.
#pragma once
#include <cuda.h>
#include <nvrtc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define CU(call)                                                                                   \
    do {                                                                                           \
        const CUresult code = (call);                                                              \
        if (code != CUDA_SUCCESS) {                                                                \
            const char* text = nullptr;                                                            \
            cuGetErrorString(code, &text);                                                         \
            throw std::runtime_error(std::string(#call) + ": " + (text ? text : "unknown error")); \
        }                                                                                          \
    } while (0)

namespace otimes::bench {

inline std::string read_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline const char* const headers[] = {
    "device_language.cuh",   "async_copy.cuh",     "matrix_unit.cuh",   "mode_group.cuh", "tile_memory.cuh",
    "multiply_add_trip.cuh", "cluster.cuh",        "matrix_trip.cuh",   "pair_trip.cuh",  "warpgroup_unit.cuh",
    "fused_pass.cuh",        "fused_trailing.cuh", "fused_outer.cuh",   "scalars.cuh",    "generic_sliced_multiply.cuh",
    "launch_order.cuh",      "complex_trip.cuh",   "last_step.cuh",     "tile_store.cuh", "endings.cuh",
    "place_factors.cuh",     "ring_pass.cuh",      "tile_schedules.cuh"};
inline std::map<std::string, std::string> header_text;
inline std::vector<std::string> definitions;  // of a trial, "-DNAME=VALUE"

struct compiled {
    std::string log;
    std::vector<char> cubin;
    std::string lowered;
    double seconds = 0;
};

inline compiled compile(const std::string& source, const std::string& expression, bool with_headers) {
    const auto start = std::chrono::steady_clock::now();
    compiled result;
    nvrtcProgram program;
    std::vector<const char*> names, texts;
    if (with_headers)
        for (const auto& [name, text] : header_text) {
            names.push_back(name.c_str());
            texts.push_back(text.c_str());
        }
    nvrtcCreateProgram(&program, source.c_str(), "pass.cu", int(names.size()), texts.data(), names.data());
    if (!expression.empty()) nvrtcAddNameExpression(program, expression.c_str());
    std::vector<const char*> options{"-arch=sm_90a", "-std=c++20", "--ptxas-options=-v", "-default-device"};
    for (const std::string& d : definitions) options.push_back(d.c_str());
    const nvrtcResult code = nvrtcCompileProgram(program, int(options.size()), options.data());
    std::size_t size = 0;
    nvrtcGetProgramLogSize(program, &size);
    result.log.resize(size);
    nvrtcGetProgramLog(program, result.log.data());
    if (code != NVRTC_SUCCESS) {
        nvrtcDestroyProgram(&program);
        throw std::runtime_error("compile " + expression + ": " + result.log);
    }
    nvrtcGetCUBINSize(program, &size);
    result.cubin.resize(size);
    nvrtcGetCUBIN(program, result.cubin.data());
    if (!expression.empty()) {
        const char* lowered = nullptr;
        nvrtcGetLoweredName(program, expression.c_str(), &lowered);
        result.lowered = lowered;
    }
    nvrtcDestroyProgram(&program);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

constexpr int max_modes = 12;
template <class T>
struct group_arguments {  // as in kernels/tile_memory.cuh
    const T* x;
    T* y;
    const T* factor[max_modes];
    long long factor_p_stride[max_modes], factor_q_stride[max_modes];
    alignas(sizeof(T)) T alpha;
    alignas(sizeof(T)) T beta;
    long long lines, parts_per_line, x_line_stride, y_line_stride, inner, x_inner, y_inner;
    long long c_offset;
    alignas(sizeof(T)) T more_alpha[3];
    long long second;
    void* sums_or_d;
    unsigned divisor, magic;
    int shift;
    bool conjugate_y, factors_ready, x_ready;
};

struct job {
    std::string key, source, expression;
    compiled result;
    std::string error;
};

// Every job with its text, on all cores; cache: a folder of compiled images, or empty.
inline void compile_all(std::vector<job>& jobs, const std::string& cache) {
    std::size_t text = 0;
    for (const auto& [name, content] : header_text) text = text * 31 + std::hash<std::string>{}(content);
    for (const std::string& d : definitions) text = text * 31 + std::hash<std::string>{}(d);
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
        workers.emplace_back([&] {
            for (std::size_t j; (j = next++) < jobs.size();) {
                job& work = jobs[j];
                const std::string file =
                    cache.empty()
                        ? ""
                        : cache + "/" +
                              std::to_string(std::hash<std::string>{}(work.source + "\n" + work.expression) ^ text);
                if (!file.empty())
                    if (std::ifstream in{file, std::ios::binary}) {
                        std::getline(in, work.result.lowered);
                        std::string log;
                        std::getline(in, log);
                        work.result.log = log;
                        work.result.cubin.assign(std::istreambuf_iterator<char>(in), {});
                        continue;
                    }
                try {
                    work.result = compile(work.source, work.expression, work.key != "check");
                    if (!file.empty()) {
                        std::string log = work.result.log;
                        for (char& c : log)
                            if (c == '\n') c = ' ';
                        std::ofstream out{file, std::ios::binary};
                        out << work.result.lowered << "\n" << log << "\n";
                        out.write(work.result.cubin.data(), std::streamsize(work.result.cubin.size()));
                    }
                } catch (const std::exception& e) {
                    work.error = e.what();
                }
            }
        });
    for (auto& t : workers) t.join();
}

inline std::string short_report(const std::string& log) {
    std::string registers = "?", spill = "";
    auto at = log.find("Used ");
    if (at != std::string::npos) registers = std::to_string(std::atoi(log.c_str() + at + 5));
    at = log.find("bytes stack frame, ");
    if (at != std::string::npos) {
        const int n = std::atoi(log.c_str() + at + 19);
        if (n) spill = " spill " + std::to_string(n);
    }
    return registers + " regs" + spill;
}

}  // namespace otimes::bench
