// SPDX-License-Identifier: MIT
#include "kernel_store.hpp"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

#include <otimes/program/errors.hpp>

#include "core_set.hpp"
#include "driver.hpp"

namespace otimes::backend {

namespace {

/// The newest code of the core set that this device runs: exact machine code, else PTX.
std::optional<kernel_image> find_in_core_set(const kernel_request& request, int capability) {
    const core_set set = compiled_core_set();
    for (const target_architecture& architecture : code_that_runs_on(capability)) {
        const std::string key = key_of(request, architecture);
        for (std::size_t i = 0; i < set.count; ++i) {
            const core_set_entry& entry = set.entries[i];
            if (key == entry.key) {
                return kernel_image{{reinterpret_cast<const char*>(set.code) + entry.offset, entry.bytes},
                                    entry.function};
            }
        }
    }
    return std::nullopt;
}

}  // namespace

const disk_cache& process_cache() {
    static const disk_cache* const cache = new disk_cache(disk_cache::folder_of_environment());
    return *cache;
}

bool may_compile(std::string* why) {
    const char* const wish = std::getenv("OTIMES_NVRTC");
    const bool allowed = wish == nullptr || std::string_view(wish) != "off";
    if (why != nullptr) {
        *why = allowed ? runtime_compiler::instance().reason() : "run-time compilation is off (OTIMES_NVRTC=off)";
    }
    return allowed && runtime_compiler::instance().usable();
}

std::string_view to_string(kernel_source source) {
    switch (source) {
        case kernel_source::core_set: return "core_set";
        case kernel_source::cache: return "cache";
        case kernel_source::nvrtc: return "nvrtc";
    }
    return "?";
}

const loaded_kernel* kernel_store::get(const kernel_request& request, std::string* why) {
    const std::string key = request.expression + "\n" + request.value;
    std::promise<outcome> mine;
    std::shared_future<outcome> result;
    bool first = false;
    {
        const std::lock_guard lock(mutex_);
        auto [at, inserted] = kernels_.try_emplace(key);
        if (inserted) {
            at->second = mine.get_future().share();
        }
        result = at->second;
        first = inserted;
    }
    if (first) {
        try {
            mine.set_value(load(request));
        } catch (...) {
            mine.set_exception(std::current_exception());
            const std::lock_guard lock(mutex_);
            kernels_.erase(key);  // the next one tries again
        }
    }
    const outcome& found = result.get();  // the map holds the shared state, so the address stays
    if (!found.kernel) {
        if (why != nullptr) {
            *why = found.reason;
        }
        return nullptr;
    }
    return &*found.kernel;
}

kernel_store::outcome kernel_store::load(const kernel_request& request) const {
    const auto start = std::chrono::steady_clock::now();
    const auto finish = [&](const kernel_image& image, kernel_source source) {
        outcome done;
        done.kernel = load_module(image, request, source);
        done.kernel->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return done;
    };
    if (const std::optional<kernel_image> image = find_in_core_set(request, capability_)) {
        return finish(*image, kernel_source::core_set);
    }
    std::string why;
    if (!may_compile(&why)) {
        return {std::nullopt, why};
    }
    const runtime_compiler& compiler = runtime_compiler::instance();
    const target_architecture architecture = compiler.architecture_for(capability_);
    const std::string key = key_of(request, architecture) + "compiler " + compiler.version() + "\n";
    const disk_cache& cache = process_cache();
    if (const std::optional<kernel_image> image = cache.find(key)) {
        return finish(*image, kernel_source::cache);
    }
    const disk_cache::claim claim(cache, key, 10000);
    if (const std::optional<kernel_image> image = cache.find(key)) {  // another process was faster
        return finish(*image, kernel_source::cache);
    }
    kernel_image image;
    try {
        image = compiler.compile(request, architecture);
    } catch (const compiler_failure&) {
        throw;
    } catch (const device_error& failure) {
        return {std::nullopt, failure.what()};
    }
    cache.keep(key, image);
    return finish(image, kernel_source::nvrtc);
}

loaded_kernel kernel_store::load_module(const kernel_image& image, const kernel_request& request,
                                        kernel_source source) const {
    const context_scope current(context_);
    const beside_captures loading;  // in this thread, which may be one of several that load a plan's kernels
    loaded_kernel kernel;
    kernel.source = source;
    CUmodule module = nullptr;
    // PTX must end with a zero; std::string's data does.
    OTIMES_CUDA_CALL(cuModuleLoadData(&module, image.code.c_str()));
    OTIMES_CUDA_CALL(cuModuleGetFunction(&kernel.function, module, image.function.c_str()));
    if (!request.value.empty()) {
        CUdeviceptr at = 0;
        std::size_t bytes = 0;
        OTIMES_CUDA_CALL(cuModuleGetGlobal(&at, &bytes, module, "otimes_value"));
        CUstream stream = nullptr;
        OTIMES_CUDA_CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OTIMES_CUDA_CALL(cuMemcpyDtoHAsync(&kernel.value, at, sizeof(kernel.value), stream));
        OTIMES_CUDA_CALL(cuStreamSynchronize(stream));
        OTIMES_CUDA_CALL(cuStreamDestroy(stream));
    }
    return kernel;
}

}  // namespace otimes::backend
