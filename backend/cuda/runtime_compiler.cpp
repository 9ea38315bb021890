// SPDX-License-Identifier: MIT
#include "runtime_compiler.hpp"

#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include <otimes/program/errors.hpp>

#include "../core/sha256.hpp"

namespace otimes::backend {

#define OTIMES_NVRTC_FUNCTIONS(each)                                                                                 \
    each(nvrtcVersion) each(nvrtcGetErrorString) each(nvrtcCreateProgram) each(nvrtcDestroyProgram)                  \
        each(nvrtcCompileProgram) each(nvrtcGetProgramLogSize) each(nvrtcGetProgramLog) each(nvrtcAddNameExpression) \
            each(nvrtcGetLoweredName) each(nvrtcGetCUBINSize) each(nvrtcGetCUBIN) each(nvrtcGetPTXSize)              \
                each(nvrtcGetPTX) each(nvrtcGetNumSupportedArchs) each(nvrtcGetSupportedArchs)

struct runtime_compiler::functions {
#define OTIMES_MEMBER(name) decltype(&::name) name = nullptr;
    OTIMES_NVRTC_FUNCTIONS(OTIMES_MEMBER)
#undef OTIMES_MEMBER
};

namespace {

constexpr const char* common_options[] = {"--std=c++20", "--device-as-default-execution-space"};
/// Of requests with evict_first: the loads and stores that are no asynchronous copies.
constexpr const char* evict_first_options[] = {"--ptxas-options=-dlcm=cs", "--ptxas-options=-dscm=cs"};

/// By soname first, so that the system's search path decides; then beside the toolkit of this build or of the user, whom a setuid process does not ask.
void* open_compiler() {
    std::vector<std::string> folders{""};
#ifdef OTIMES_TOOLKIT_LIBRARIES
    folders.push_back(std::string(OTIMES_TOOLKIT_LIBRARIES) + "/");
#endif
    for (const char* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const char* const home = ::secure_getenv(variable); home != nullptr && *home == '/') {
            folders.push_back(std::string(home) + "/lib64/");
        }
    }
    for (const std::string& folder : folders) {
        for (const char* const name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
            if (void* const library = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) {
                return library;
            }
        }
    }
    return nullptr;
}

}  // namespace

const std::string& kernel_sources_hash() {
    // Leaked on purpose: a static object may still evaluate after local statics are gone.
    static const std::string* const hash = [] {
        std::string all;
        for (const auto& [name, text] : kernel_sources()) {
            all += name + '\n' + std::to_string(text.size()) + '\n' + text;
        }
        return new std::string(sha256_hex(all));
    }();
    return *hash;
}

kernel_request request_of(const planning::gpu_group& group) {
    const std::string type = type_expression(group);
    const std::string kernel = kernel_of(group);
    if (!group.moves.empty()) {
        const std::string both = type + "," + moves_expression(group);
        return {kernel + ".cuh", "otimes::kernels::" + kernel + "<" + both + ">",
                "otimes::kernels::terms_memory<" + both + ">::bytes"};
    }
    return {kernel + ".cuh", "otimes::kernels::" + kernel + "<" + type + ">",
            type + (group.sum ? "::sum_bytes" : "::shared_bytes")};
}

std::string key_of(const kernel_request& request, const target_architecture& architecture) {
    std::string key = "architecture " + architecture.option() + "\noptions";
    for (const char* const option : common_options) {
        key += std::string(" ") + option;
    }
    if (request.evict_first) {
        for (const char* const option : evict_first_options) {
            key += std::string(" ") + option;
        }
    }
    return key + "\nsource " + kernel_sources_hash() + "\nfile " + request.file + "\nexpression " + request.expression +
           "\nvalue " + request.value + "\n";
}

runtime_compiler::runtime_compiler() {
    void* const library = open_compiler();
    if (library == nullptr) {
        reason_ = "libnvrtc.so.13 or libnvrtc.so.12 was not found";
        return;
    }
    auto* const found = new functions;  // as long as the process: see driver.cpp
    bool complete = true;
#define OTIMES_LOAD(name)                                                           \
    found->name = reinterpret_cast<decltype(found->name)>(::dlsym(library, #name)); \
    complete = complete && found->name != nullptr;
    OTIMES_NVRTC_FUNCTIONS(OTIMES_LOAD)
#undef OTIMES_LOAD
    int major = 0;
    int minor = 0;
    int count = 0;
    if (!complete || found->nvrtcVersion(&major, &minor) != NVRTC_SUCCESS ||
        found->nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS) {
        reason_ = "the NVRTC that was found is too old";
        delete found;
        return;
    }
    capabilities_.resize(static_cast<std::size_t>(count));
    found->nvrtcGetSupportedArchs(capabilities_.data());
    std::sort(capabilities_.begin(), capabilities_.end());
    version_ = "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
    keeps_code_ = major > 12 || (major == 12 && minor >= 9);
    functions_ = found;
}

const runtime_compiler& runtime_compiler::instance() {
    static const runtime_compiler* const compiler = new runtime_compiler;
    return *compiler;
}

target_architecture runtime_compiler::architecture_for(int capability) const {
    target_architecture best;
    for (const int known : capabilities_) {
        if (known <= capability) {
            best = {known, known != capability};
        }
    }
    if (best.capability == 0) {
        throw device_error("otimes: " + version_ + " has no code for compute capability " +
                           std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                           ". Compute on otimes::cpu(), as otimes::make_executor() does then, or on a newer GPU.");
    }
    return best;
}

kernel_image runtime_compiler::compile(const kernel_request& request, const target_architecture& architecture,
                                       std::string* report) const {
    if (!usable()) {
        throw device_error("otimes: no kernel can be compiled: " + reason_ + ".");
    }
    const functions& f = *functions_;
    std::string source = request.evict_first ? "#define OTIMES_EVICT_FIRST\n" : "";
    source += "#include \"scalars.cuh\"\n#include \"" + request.file + "\"\n";
    if (!request.value.empty()) {
        source += "__device__ int otimes_value = " + request.value + ";\n";
    }
    std::vector<const char*> names;
    std::vector<const char*> texts;
    for (const auto& [name, text] : kernel_sources()) {
        names.push_back(name.c_str());
        texts.push_back(text.c_str());
    }
    nvrtcProgram program = nullptr;
    nvrtcResult code = f.nvrtcCreateProgram(&program, source.c_str(), "otimes_kernel.cu",
                                            static_cast<int>(names.size()), texts.data(), names.data());
    const auto log_of_program = [&] {
        std::string log;
        std::size_t size = 0;
        if (program != nullptr && f.nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1) {
            log.resize(size);
            f.nvrtcGetProgramLog(program, log.data());
            log.resize(size - 1);
        }
        return log;
    };
    const auto fail = [&](const char* call) {
        const std::string log = log_of_program().substr(0, 2000);
        const std::string text = std::string("otimes: ") + call + " failed for " + request.expression + ": " +
                                 f.nvrtcGetErrorString(code) + (log.empty() ? "" : "\n" + log);
        if (program != nullptr) {
            f.nvrtcDestroyProgram(&program);
        }
        if (code == NVRTC_ERROR_COMPILATION || code == NVRTC_ERROR_INVALID_OPTION) {
            throw device_error(text);
        }
        throw compiler_failure(text);
    };
    if (code != NVRTC_SUCCESS) {
        fail("nvrtcCreateProgram");
    }
    code = f.nvrtcAddNameExpression(program, request.expression.c_str());
    if (code != NVRTC_SUCCESS) {
        fail("nvrtcAddNameExpression");
    }
    const std::string option = architecture.option();
    std::vector<const char*> options{option.c_str()};
    options.insert(options.end(), std::begin(common_options), std::end(common_options));
    if (request.evict_first && !architecture.ptx) {
        options.insert(options.end(), std::begin(evict_first_options), std::end(evict_first_options));
    }
    if (report != nullptr) {
        options.push_back("--ptxas-options=-v");
        if (keeps_code_) {
            options.push_back("--no-cache");  // of code that it finds in the driver's cache it reports nothing
        }
    }
    code = f.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    if (code != NVRTC_SUCCESS) {
        fail("nvrtcCompileProgram");
    }
    kernel_image image;
    const char* lowered = nullptr;
    std::size_t size = 0;
    code = f.nvrtcGetLoweredName(program, request.expression.c_str(), &lowered);
    if (code == NVRTC_SUCCESS) {
        image.function = lowered;
        code = architecture.ptx ? f.nvrtcGetPTXSize(program, &size) : f.nvrtcGetCUBINSize(program, &size);
    }
    if (code == NVRTC_SUCCESS) {
        image.code.resize(size);
        code =
            architecture.ptx ? f.nvrtcGetPTX(program, image.code.data()) : f.nvrtcGetCUBIN(program, image.code.data());
    }
    if (code != NVRTC_SUCCESS) {
        fail("nvrtcGetCUBIN");
    }
    if (report != nullptr) {
        *report = log_of_program();
    }
    f.nvrtcDestroyProgram(&program);
    return image;
}

}  // namespace otimes::backend
