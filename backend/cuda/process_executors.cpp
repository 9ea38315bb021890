// SPDX-License-Identifier: MIT
// The executors of the process: one for each stream and memory resource, one for all GPUs.
#include "executor.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <otimes/plan/planner.hpp>
#include <otimes/program/errors.hpp>

#include "../core/default_streams.hpp"
#include "../core/process_launcher.hpp"

namespace otimes::backend {

namespace {

/// The executors that there are. Of a stream of ours, one in each context, the key has no stream.
struct executor_table {
    struct key {
        CUcontext context;
        CUstream stream;
        device_memory_resource* resource;
        auto operator<=>(const key&) const = default;
    };
    using executors = std::map<key, std::unique_ptr<gpu_executor>>;

    static executor_table& of_process() {
        static auto* const table = new executor_table;  // never destroyed: matrices may outlive static objects
        return *table;
    }

    std::mutex mutex;
    executors known;
};

const device_executor& executor_of(device_context& device, CUstream stream, bool own_stream,
                                   device_memory_resource* resource) {
    executor_table& table = executor_table::of_process();
    const std::lock_guard lock(table.mutex);
    std::unique_ptr<gpu_executor>& slot = table.known[{device.handle(), own_stream ? nullptr : stream, resource}];
    if (!slot) {
        if (own_stream) {
            const context_scope scope(device.handle());
            const beside_captures making;
            OTIMES_CUDA_CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            try {
                slot = std::make_unique<gpu_executor>(device, stream, own_stream, resource);
            } catch (...) {
                driver().cuStreamDestroy(stream);
                throw;
            }
        } else {
            slot = std::make_unique<gpu_executor>(device, stream, own_stream, resource);
        }
        if (own_stream) {
            device.kernels().run_on(stream);
        }
    }
    return *slot;
}

}  // namespace

}  // namespace otimes::backend

namespace otimes {

const device_executor& gpu() {
    return backend::executor_of(backend::device_context::current(), nullptr, true, nullptr);
}

namespace {

/// @throws device_error the stream is one of CUDA's default streams
void require_own_stream(CUstream_st* stream, const char* call) {
    const std::string objection = backend::objection_to_stream(stream, call);
    if (!objection.empty()) {
        throw device_error(objection);
    }
}

}  // namespace

const device_executor& gpu(CUstream_st* stream) {
    require_own_stream(stream, "gpu(stream)");
    return backend::executor_of(backend::device_context::of(stream), stream, false, nullptr);
}

const device_executor& gpu(CUstream_st* stream, device_memory_resource& resource) {
    require_own_stream(stream, "gpu(stream, resource)");
    return backend::executor_of(backend::device_context::of(stream), stream, false, &resource);
}

bool forget_gpu(CUstream_st* stream) {
    // Destroyed when the table is free again: a memory resource that takes memory back may ask for an executor.
    backend::executor_table::executors forgotten;
    backend::executor_table& table = backend::executor_table::of_process();
    const std::lock_guard lock(table.mutex);
    for (const bool remove : {false, true}) {
        for (auto next = table.known.begin(); next != table.known.end();) {
            const auto at = next++;
            if (stream == nullptr || at->first.stream != stream || at->second == nullptr) {
                continue;  // ours; another's; one that could not be made
            }
            if (remove) {
                forgotten.insert(table.known.extract(at));
            } else {
                at->second->require_unused();
            }
        }
    }
    return !forgotten.empty();
}

namespace {

/// The executor on a stream of its own on GPU `number`, in its primary context.
const executor& executor_of_gpu(std::size_t number) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    OTIMES_CUDA_CALL(cuDeviceGet(&device, static_cast<int>(number)));
    OTIMES_CUDA_CALL(cuDevicePrimaryCtxRetain(&context, device));
    const backend::context_scope scope(context);
    return gpu();
}

/// How many GPUs the process sees; 0 without a driver.
int visible_gpus() {
    const backend::driver_functions* const f = backend::find_driver(nullptr);
    int count = 0;
    return f != nullptr && f->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

}  // namespace

const executor& gpus() {
    static const spreading_executor* const all = [] {
        static_cast<void>(backend::driver("gpus()"));
        const executor& first = executor_of_gpu(0);
        machine target = first.target();
        const auto count = static_cast<std::size_t>(std::max(visible_gpus(), 1));
        target.gpus.assign(count, target.gpus.front());
        return new spreading_executor(std::to_string(count) + " of " + std::string(first.name()), std::move(target),
                                      executor_of_gpu);  // as long as the process
    }();
    return *all;
}

const executor* find_gpus() { return visible_gpus() > 1 && !backend::is_one_rank_of_several() ? &gpus() : nullptr; }

const device_executor* find_gpu(std::string* why) {
    if (backend::find_driver(why) == nullptr) {
        return nullptr;
    }
    try {
        return &gpu();
    } catch (const device_error& failure) {
        if (why != nullptr) {
            *why = failure.what();
        }
        return nullptr;
    }
}

}  // namespace otimes
