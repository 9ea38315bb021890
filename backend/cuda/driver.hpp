// SPDX-License-Identifier: MIT
/// @file driver.hpp
/// The CUDA driver, found at run time: a program that is linked with this library starts where there is none.
#pragma once

#include <cuda.h>

#include <string>

#include <otimes/program/errors.hpp>

namespace otimes::backend {

// Names pass through the header's own renaming (cuMemAlloc is cuMemAlloc_v2), so each is the version that it declares.
#define OTIMES_DRIVER_FUNCTIONS(each)                                                                                  \
    each(cuInit) each(cuDriverGetVersion) each(cuGetErrorName) each(cuGetErrorString) each(cuDeviceGet)                \
        each(cuDeviceGetCount) each(cuDeviceGetName) each(cuDeviceGetAttribute) each(cuDeviceTotalMem)                 \
            each(cuDevicePrimaryCtxRetain) each(cuCtxGetCurrent) each(cuCtxPushCurrent) each(cuCtxPopCurrent) each(    \
                cuCtxGetDevice) each(cuCtxSynchronize) each(cuCtxGetStreamPriorityRange) each(cuStreamCreate)          \
                each(cuStreamCreateWithPriority) each(cuStreamDestroy) each(cuStreamSynchronize) each(cuStreamGetCtx)  \
                    each(cuCtxGetFlags) each(cuStreamIsCapturing) each(cuStreamWaitEvent) each(cuEventCreate)          \
                        each(cuEventDestroy) each(cuEventRecord) each(cuEventQuery) each(cuEventSynchronize)           \
                            each(cuMemAlloc) each(cuMemFree) each(cuMemAllocHost) each(cuMemFreeHost)                  \
                                each(cuMemcpyHtoDAsync) each(cuMemcpyDtoHAsync) each(cuMemcpyDtoDAsync)                \
                                    each(cuMemcpy2DAsync) each(cuMemcpy3DAsync) each(cuMemsetD8Async)                  \
                                        each(cuModuleLoadData) each(cuModuleUnload) each(cuModuleGetFunction)          \
                                            each(cuFuncSetAttribute) each(cuFuncGetAttribute)                          \
                                                each(cuOccupancyMaxActiveBlocksPerMultiprocessor) each(cuLaunchKernel) \
                                                    each(cuModuleGetGlobal) each(cuPointerGetAttribute)                \
                                                        each(cuDeviceCanAccessPeer)                                    \
                                                            each(cuThreadExchangeStreamCaptureMode)                    \
                                                                each(cuMemHostRegister) each(cuMemHostUnregister)
/// Renamed by 12.8; older drivers have what serves as well by the first name.
#define OTIMES_RENAMED_FUNCTIONS(each) each(cuEventElapsedTime)

/// Since 11.2; a driver without them gets plain allocations.
#define OTIMES_POOL_FUNCTIONS(each)                                                                        \
    each(cuMemPoolCreate) each(cuMemPoolDestroy) each(cuMemPoolSetAttribute) each(cuMemAllocFromPoolAsync) \
        each(cuMemFreeAsync) each(cuMemPoolSetAccess)

/// Since 11.8; a driver without it has no device with clusters.
#define OTIMES_CLUSTER_FUNCTIONS(each) each(cuOccupancyMaxActiveClusters)

/// Since 11.8; used from 12.3 on, which captures a launch that may begin early into a graph as such.
#define OTIMES_LAUNCH_FUNCTIONS(each) each(cuLaunchKernelEx) each(cuStreamGetCaptureInfo)

struct driver_functions {
#define OTIMES_MEMBER(name) decltype(&::name) name = nullptr;
    OTIMES_DRIVER_FUNCTIONS(OTIMES_MEMBER)
    OTIMES_RENAMED_FUNCTIONS(OTIMES_MEMBER)
    OTIMES_POOL_FUNCTIONS(OTIMES_MEMBER)
    OTIMES_CLUSTER_FUNCTIONS(OTIMES_MEMBER)
    OTIMES_LAUNCH_FUNCTIONS(OTIMES_MEMBER)
#undef OTIMES_MEMBER
    bool has_pools = false;
    bool has_clusters = false;
    bool has_early_launch = false;  ///< a kernel may be launched before the one in front of it has ended
};

/// The loaded driver, or nullptr with the reason in `why`. Thread-safe, tried once.
const driver_functions* find_driver(std::string* why = nullptr);

/// The loaded driver. @throws device_error there is none; the text begins with the call of otimes that asks.
const driver_functions& driver(const char* call = "gpu()");

/// Text of a failed call: the call, the error's CUDA name and its meaning.
std::string describe(CUresult code, const char* call);

/// @throws device_error with `describe` unless `code` is CUDA_SUCCESS; device_memory_error where that is why.
void check(CUresult code, const char* call);

#define OTIMES_CUDA_CALL(call) ::otimes::backend::check(::otimes::backend::driver().call, #call)

/// True while the stream is being captured into a graph. @throws device_error
bool is_captured(CUstream stream);

/// Where a stream stands that is being captured. The same node of the same sequence later: nothing has come between.
struct captured_place {
    bool captured = false;
    cuuint64_t sequence = 0;  ///< of the capture, unique in the process
    CUgraphNode node =
        nullptr;  ///< the only one that what comes next will follow; none where there are more, or none yet
    friend bool operator==(const captured_place&, const captured_place&) = default;
};

/// Where the stream stands; not captured where the driver cannot tell.
captured_place place_in_capture(CUstream stream);

/// Lets this thread take memory that stays, load code and wait for a stream of its own while a stream is being captured, by this thread or another
/// one: unless the capture is relaxed, such calls fail and make it invalid. What is queued on a captured stream is captured as ever.
class beside_captures {
public:
    beside_captures();
    beside_captures(const beside_captures&) = delete;
    beside_captures& operator=(const beside_captures&) = delete;
    ~beside_captures();

private:
    CUstreamCaptureMode before_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// True where a kernel that calls after_earlier_launches() (kernels/launch_order.cuh) was compiled with its wait, and the driver can launch
/// it before the one in front has ended.
bool may_launch_early(CUfunction function);

/// Queues a kernel on a 1-D grid; the stream's context is current. @param early @pre may_launch_early(function)
void launch_kernel(CUfunction function, unsigned grid, unsigned threads, unsigned shared_bytes, CUstream stream,
                   void** parameters, bool early);

/// A launch of one cluster, as the driver wants it described.
struct cluster_launch {
    cluster_launch(std::int32_t blocks, std::int32_t threads, unsigned shared_bytes) {
        size.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        size.value.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
        config.gridDimX = static_cast<unsigned>(blocks);
        config.gridDimY = config.gridDimZ = 1;
        config.blockDimX = static_cast<unsigned>(threads);
        config.blockDimY = config.blockDimZ = 1;
        config.sharedMemBytes = shared_bytes;
        config.attrs = &size;
        config.numAttrs = 1;
    }
    cluster_launch(const cluster_launch&) = delete;
    cluster_launch& operator=(const cluster_launch&) = delete;

    CUlaunchAttribute size{};
    CUlaunchConfig config{};  ///< points to size
};

/// Makes a context current for a scope; where it is current already, which is the usual case, that costs a look.
class context_scope {
public:
    explicit context_scope(CUcontext context);
    context_scope(const context_scope&) = delete;
    context_scope& operator=(const context_scope&) = delete;
    ~context_scope();

private:
    bool pushed_ = false;
};

}  // namespace otimes::backend
