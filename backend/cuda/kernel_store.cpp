// SPDX-License-Identifier: MIT
#include "kernel_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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

/// Then the table has no exception, since that one is not kept.
template <class Outcome>
bool is_ready(const std::shared_future<Outcome>& result) {
    return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
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

std::shared_ptr<const loaded_kernel> kernel_store::get(const kernel_request& request, std::string* why) {
    const std::string key = request.expression + "\n" + request.value + (request.evict_first ? "\nevict first" : "");
    for (;;) {
        std::promise<outcome> mine;
        std::shared_future<outcome> result;
        bool first = false;
        {
            const std::lock_guard lock(mutex_);
            auto [at, inserted] = kernels_.try_emplace(key);
            if (inserted) {
                at->second.result = mine.get_future().share();
            }
            at->second.asked = ++asked_;
            result = at->second.result;
            first = inserted;
        }
        if (first) {
            try {
                outcome loaded = load(request);
                if (!loaded.kernel && request.evict_first) {  // the core set has none of them
                    kernel_request usual = request;
                    usual.evict_first = false;
                    loaded = load(usual);
                }
                mine.set_value(std::move(loaded));
            } catch (...) {
                {
                    const std::lock_guard lock(mutex_);
                    kernels_.erase(key);  // the next one tries again
                }
                mine.set_exception(std::current_exception());
            }
        }
        const outcome& found = result.get();
        if (!found.kernel) {
            if (why != nullptr) {
                *why = found.reason;
            }
            return nullptr;
        }
        // From the table, so that nobody unloads it meanwhile.
        std::shared_ptr<const loaded_kernel> kernel;
        {
            const std::lock_guard lock(mutex_);
            const auto at = kernels_.find(key);
            if (at != kernels_.end() && is_ready(at->second.result)) {
                kernel = at->second.result.get().kernel;
            }
        }
        if (first) {
            trim();
        }
        if (kernel) {
            return kernel;
        }
    }
}

void kernel_store::trim() {
    std::vector<std::shared_ptr<const loaded_kernel>> unloaded;
    {
        const std::lock_guard lock(mutex_);
        if (kernels_.size() > most_kernels_ && stream_ != nullptr) {
            std::vector<std::map<std::string, entry>::iterator> unused;
            for (auto at = kernels_.begin(); at != kernels_.end(); ++at) {
                if (!is_ready(at->second.result)) {
                    continue;
                }
                const std::shared_ptr<const loaded_kernel>& kernel = at->second.result.get().kernel;
                if (kernel == nullptr || (kernel.use_count() == 1 && !kernel->kept)) {
                    unused.push_back(at);
                }
            }
            std::ranges::sort(unused, {}, [](const auto& at) { return at->second.asked; });
            unused.resize(std::min(unused.size(), most_kernels_ / 4 + 1));
            for (const auto& at : unused) {
                if (at->second.result.get().kernel) {
                    retired_.push_back(at->second.result.get().kernel);
                }
                kernels_.erase(at);
            }
        }
        if (!retired_.empty() && !is_captured(stream_)) {
            unloaded.swap(retired_);
        }
    }
    // Nobody has them any more, but they may still run.
    const context_scope current(context_);
    const beside_captures waiting;
    if (!unloaded.empty() && driver().cuStreamSynchronize(stream_) == CUDA_SUCCESS) {
        for (const std::shared_ptr<const loaded_kernel>& kernel : unloaded) {
            driver().cuModuleUnload(kernel->module);
        }
    }
}

kernel_store::outcome kernel_store::load(const kernel_request& request) const {
    const auto start = std::chrono::steady_clock::now();
    const auto finish = [&](const kernel_image& image, kernel_source source) {
        const std::shared_ptr<loaded_kernel> kernel = load_module(image, request, source);
        kernel->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return outcome{kernel, {}};
    };
    if (const std::optional<kernel_image> image = find_in_core_set(request, capability_)) {
        return finish(*image, kernel_source::core_set);
    }
    std::string why;
    if (!may_compile(&why)) {
        return {nullptr, why};
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
        return {nullptr, failure.what()};
    }
    cache.keep(key, image);
    return finish(image, kernel_source::nvrtc);
}

std::shared_ptr<loaded_kernel> kernel_store::load_module(const kernel_image& image, const kernel_request& request,
                                                         kernel_source source) const {
    const context_scope current(context_);
    const beside_captures loading;  // in this thread, which may be one of several that load a plan's kernels
    struct loading_state {
        CUmodule module = nullptr;
        CUstream stream = nullptr;
        ~loading_state() {
            if (stream != nullptr) {
                driver().cuStreamDestroy(stream);
            }
            if (module != nullptr) {
                driver().cuModuleUnload(module);
            }
        }
    } state;
    auto kernel = std::make_shared<loaded_kernel>();
    kernel->source = source;
    // PTX must end with a zero; std::string's data does.
    OTIMES_CUDA_CALL(cuModuleLoadData(&state.module, image.code.c_str()));
    OTIMES_CUDA_CALL(cuModuleGetFunction(&kernel->function, state.module, image.function.c_str()));
    if (!request.value.empty()) {
        CUdeviceptr at = 0;
        std::size_t bytes = 0;
        OTIMES_CUDA_CALL(cuModuleGetGlobal(&at, &bytes, state.module, "otimes_value"));
        OTIMES_CUDA_CALL(cuStreamCreate(&state.stream, CU_STREAM_NON_BLOCKING));
        OTIMES_CUDA_CALL(cuMemcpyDtoHAsync(&kernel->value, at, sizeof(kernel->value), state.stream));
        OTIMES_CUDA_CALL(cuStreamSynchronize(state.stream));
    }
    kernel->module = std::exchange(state.module, nullptr);
    return kernel;
}

}  // namespace otimes::backend
