// SPDX-License-Identifier: MIT
#include "driver.hpp"

#include <dlfcn.h>

#include <string_view>
#include <utility>

namespace otimes::backend {

namespace {

#define OTIMES_NAME_OF_EXPANDED(name) #name
#define OTIMES_NAME_OF(name) OTIMES_NAME_OF_EXPANDED(name)

struct loaded_driver {
    driver_functions functions;
    bool usable = false;
    std::string reason;
};

template <class Function>
bool load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

/// True where what is short is page-locked memory of the host.
bool is_about_host_memory(std::string_view call) {
    return call.starts_with("cuMemAllocHost") || call.starts_with("cuMemHostRegister");
}

/// What to do about an error; empty where nobody knows.
std::string_view advice_for(CUresult code, std::string_view call) {
    switch (code) {
        case CUDA_ERROR_OUT_OF_MEMORY:
            return is_about_host_memory(call)
                       ? "The system gives no more page-locked memory of the host. Free memory there, raise the limit "
                         "of the container, or end what holds some, such as a pinned_scope."
                       : "Free device memory, cut the rows of X, or set options::workspace_limit_bytes.";
        case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
            return "This memory, or some that shares a page with it, is pinned already. One pinned_scope is enough.";
        case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
        case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
        case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
            return "Run the expression once before it is captured, with operands that no other stream still writes.";
        case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
            return "An earlier call, perhaps not of otimes, has made the capture invalid. End it by "
                   "cudaStreamEndCapture and begin again without that call.";
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ASSERT:
            return "The context is lost; an earlier kernel of this process, perhaps not of otimes, read or wrote "
                   "memory that is not there, or stopped by itself. compute-sanitizer finds it. Every later call fails "
                   "likewise: end the process.";
        case CUDA_ERROR_LAUNCH_TIMEOUT:
            return "The context is lost: a kernel ran longer than the system allows on a GPU that drives a display. "
                   "Cut the rows of X, or turn that limit off; go on in a new process.";
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_CONTAINED:
            return "The context is lost by a fault of the hardware. See nvidia-smi -q; go on in a new process.";
        case CUDA_ERROR_INVALID_HANDLE:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
            return "Something has been destroyed that executors or matrices of otimes still use: a stream, by "
                   "cudaStreamDestroy, or a whole context, by cudaDeviceReset or cuCtxDestroy. Streams must outlive "
                   "their matrices, contexts the process's use of otimes.";
        case CUDA_ERROR_NOT_INITIALIZED:
            return "A process that was forked after CUDA had been used cannot use it. Fork before, or start programs "
                   "anew.";
        case CUDA_ERROR_DEINITIALIZED: return "The process ends, and CUDA has ended already.";
        case CUDA_ERROR_NO_DEVICE: return "No GPU is visible: see nvidia-smi, and CUDA_VISIBLE_DEVICES.";
        case CUDA_ERROR_DEVICE_UNAVAILABLE: return "Another process has the GPU to itself (nvidia-smi -c).";
        case CUDA_ERROR_STUB_LIBRARY:
            return "The libcuda.so.1 that was found is a toolkit's stub. Take its folder out of LD_LIBRARY_PATH.";
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
            return "libcuda.so.1 and the driver in the kernel are of different versions. Start the machine again after "
                   "an update of the driver; in a container take the host's libcuda.so.1.";
        case CUDA_ERROR_SYSTEM_NOT_READY:
            return "A service of the system that the GPUs need is not running (nvidia-fabricmanager, "
                   "nvidia-persistenced).";
        case CUDA_ERROR_INVALID_IMAGE:
        case CUDA_ERROR_INVALID_PTX:
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
            return "The driver cannot load code of the toolkit that otimes was built with, or of the NVRTC that it "
                   "found. "
                   "Update the driver, or build otimes with an older toolkit.";
        case CUDA_ERROR_MPS_CONNECTION_FAILED:
        case CUDA_ERROR_MPS_RPC_FAILURE:
        case CUDA_ERROR_MPS_SERVER_NOT_READY:
        case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
        case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
        case CUDA_ERROR_MPS_CLIENT_TERMINATED:
            return "The server that shares the GPU among processes (MPS) does not serve this one: see its log.";
        default: return {};
    }
}

loaded_driver load_driver() {
    loaded_driver result;
    // Never unloaded: executors may be used until the process ends.
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        result.reason = "there is no NVIDIA driver (libcuda.so.1) on this machine";
        return result;
    }
    driver_functions& f = result.functions;
    bool complete = true;
    const char* missing = "";
#define OTIMES_LOAD(name)                               \
    if (!load(library, OTIMES_NAME_OF(name), f.name)) { \
        complete = false;                               \
        missing = OTIMES_NAME_OF(name);                 \
    }
    OTIMES_DRIVER_FUNCTIONS(OTIMES_LOAD)
#undef OTIMES_LOAD
#define OTIMES_LOAD(name)                                                                \
    if (!load(library, OTIMES_NAME_OF(name), f.name) && !load(library, #name, f.name)) { \
        complete = false;                                                                \
        missing = #name;                                                                 \
    }
    OTIMES_RENAMED_FUNCTIONS(OTIMES_LOAD)
#undef OTIMES_LOAD
    if (!complete) {
        result.reason = std::string("the NVIDIA driver is too old: it has no ") + missing;
        return result;
    }
    f.has_pools = true;
#define OTIMES_LOAD(name) f.has_pools = load(library, OTIMES_NAME_OF(name), f.name) && f.has_pools;
    OTIMES_POOL_FUNCTIONS(OTIMES_LOAD)
#undef OTIMES_LOAD
    f.has_clusters = true;
#define OTIMES_LOAD(name) f.has_clusters = load(library, OTIMES_NAME_OF(name), f.name) && f.has_clusters;
    OTIMES_CLUSTER_FUNCTIONS(OTIMES_LOAD)
#undef OTIMES_LOAD
    int version = 0;
    f.has_early_launch = f.cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= 12030;
#define OTIMES_LOAD(name) f.has_early_launch = load(library, OTIMES_NAME_OF(name), f.name) && f.has_early_launch;
    OTIMES_LAUNCH_FUNCTIONS(OTIMES_LOAD)
#undef OTIMES_LOAD
    const CUresult code = f.cuInit(0);
    if (code != CUDA_SUCCESS) {
        const char* name = nullptr;
        f.cuGetErrorName(code, &name);
        result.reason = std::string("cuInit failed with ") + (name != nullptr ? name : "an unknown error");
        if (const std::string_view advice = advice_for(code, "cuInit"); !advice.empty()) {
            result.reason.append(". ").append(advice.substr(0, advice.size() - 1));
        }
        return result;
    }
    int count = 0;
    if (f.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
        result.reason = "the NVIDIA driver finds no GPU";
        return result;
    }
    result.usable = true;
    return result;
}

const loaded_driver& the_driver() {
    // Leaked on purpose: a static object may still free device memory after local statics are gone.
    static const loaded_driver* const loaded = new loaded_driver(load_driver());
    return *loaded;
}

}  // namespace

const driver_functions* find_driver(std::string* why) {
    const loaded_driver& loaded = the_driver();
    if (!loaded.usable && why != nullptr) {
        *why = loaded.reason;
    }
    return loaded.usable ? &loaded.functions : nullptr;
}

const driver_functions& driver(const char* call) {
    const loaded_driver& loaded = the_driver();
    if (!loaded.usable) {
        throw device_error("otimes::" + std::string(call) + ": " + loaded.reason +
                           ". Evaluate on otimes::cpu(), or use otimes::make_executor(), which takes what there is.");
    }
    return loaded.functions;
}

bool is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    OTIMES_CUDA_CALL(cuStreamIsCapturing(stream, &status));
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

captured_place place_in_capture(CUstream stream) {
    captured_place place;
    if (!driver().has_early_launch) {
        return place;
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = nullptr;
    const CUgraphNode* nodes = nullptr;
    std::size_t count = 0;
#if CUDA_VERSION >= 13000
    const CUgraphEdgeData* edges = nullptr;
    const CUresult code =
        driver().cuStreamGetCaptureInfo(stream, &status, &place.sequence, &graph, &nodes, &edges, &count);
#else
    const CUresult code = driver().cuStreamGetCaptureInfo(stream, &status, &place.sequence, &graph, &nodes, &count);
#endif
    place.captured = code == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    place.node = place.captured && count == 1 ? nodes[0] : nullptr;
    return place;
}

beside_captures::beside_captures() { OTIMES_CUDA_CALL(cuThreadExchangeStreamCaptureMode(&before_)); }
beside_captures::~beside_captures() { driver().cuThreadExchangeStreamCaptureMode(&before_); }

bool may_launch_early(CUfunction function) {
    int architecture = 0;
    return driver().has_early_launch &&
           driver().cuFuncGetAttribute(&architecture, CU_FUNC_ATTRIBUTE_PTX_VERSION, function) == CUDA_SUCCESS &&
           architecture >= 90;
}

void launch_kernel(CUfunction function, unsigned grid, unsigned threads, unsigned shared_bytes, CUstream stream,
                   void** parameters, bool early) {
    if (!early) {
        OTIMES_CUDA_CALL(
            cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, nullptr));
        return;
    }
    CUlaunchAttribute order{};
    order.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    order.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = grid;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = shared_bytes;
    config.hStream = stream;
    config.attrs = &order;
    config.numAttrs = 1;
    OTIMES_CUDA_CALL(cuLaunchKernelEx(&config, function, parameters, nullptr));
}

std::string describe(CUresult code, const char* call) {
    const driver_functions& f = driver();
    const char* name = nullptr;
    const char* meaning = nullptr;
    f.cuGetErrorName(code, &name);
    f.cuGetErrorString(code, &meaning);
    std::string text(call);
    text = text.substr(0, text.find('('));
    text = "otimes: " + text +
           " failed: " + (name != nullptr ? name : "error " + std::to_string(static_cast<int>(code))) +
           (meaning != nullptr ? std::string(" (") + meaning + ")" : std::string()) + ".";
    if (const std::string_view advice = advice_for(code, call); !advice.empty()) {
        text.append(" ").append(advice);
    }
    return text;
}

void check(CUresult code, const char* call) {
    if (code == CUDA_ERROR_OUT_OF_MEMORY && !is_about_host_memory(call)) {
        throw device_memory_error(describe(code, call));
    }
    if (code != CUDA_SUCCESS) {
        throw device_error(describe(code, call));
    }
}

context_scope::context_scope(CUcontext context) {
    CUcontext current = nullptr;
    OTIMES_CUDA_CALL(cuCtxGetCurrent(&current));
    if (current != context) {
        OTIMES_CUDA_CALL(cuCtxPushCurrent(context));
        pushed_ = true;
    }
}
context_scope::~context_scope() {
    CUcontext popped = nullptr;
    if (pushed_) {
        driver().cuCtxPopCurrent(&popped);
    }
}

}  // namespace otimes::backend
