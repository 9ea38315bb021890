// SPDX-License-Identifier: MIT
#include "device.hpp"

#include <algorithm>
#include <array>
#include <complex>
#include <cstring>
#include <exception>
#include <map>
#include <memory>

#include <otimes/plan/machine_table.hpp>
#include <otimes/program/half.hpp>

namespace otimes::backend {

namespace {

int attribute(CUdevice device, CUdevice_attribute which) {
    int value = 0;
    OTIMES_CUDA_CALL(cuDeviceGetAttribute(&value, which, device));
    return value;
}

/// Capabilities and rates: the row of the compute capability, with what the device says about itself.
gpu_description describe_device(CUdevice device) {
    const int capability = 10 * attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                           attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    char name[128] = {};
    OTIMES_CUDA_CALL(cuDeviceGetName(name, sizeof(name) - 1, device));
    gpu_description gpu = gpu_of_capability(capability);
    std::size_t memory = 0;
    OTIMES_CUDA_CALL(cuDeviceTotalMem(&memory, device));
    const int multiprocessors = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    const double share = static_cast<double>(multiprocessors) / std::max(1, gpu.multiprocessors);
    gpu.name = name;
    gpu.compute_capability = capability;
    gpu.multiprocessors = multiprocessors;
    gpu.memory_bytes = static_cast<std::int64_t>(memory);
    gpu.l2_bytes = attribute(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    gpu.shared_bytes_per_block = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    gpu.shared_bytes_per_multiprocessor = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    gpu.compiles = may_compile();
    if (!driver().has_clusters) {
        gpu.cluster_blocks = 1;
    }
    gpu.registers_per_multiprocessor = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    for (double* const rate : {&gpu.flops_f32, &gpu.flops_f64, &gpu.flops_f32_split, &gpu.flops_f64_mma}) {
        *rate *= share;
    }
    const double bus = attribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8.0;
    const double clock = attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * 1e3;
    if (bus > 0 && clock > 0) {
        gpu.memory_bytes_per_second = 0.88 * 2.0 * bus * clock;  // what a copy sees of the data sheet's rate
    }
    return gpu;
}

/// True where the device holds a cluster of so many blocks at once. More than portable_cluster_blocks must be neighbours in a group of
/// multiprocessors, of which a part of a device, or a device sold with few, has too few left; nothing but an occupancy says so.
bool holds_cluster(CUfunction function, std::int32_t blocks) {
    OTIMES_CUDA_CALL(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    int count = 0;
    const cluster_launch one(blocks, 256, 0);
    return driver().cuOccupancyMaxActiveClusters(&count, function, &one.config) == CUDA_SUCCESS && count > 0;
}

/// The number one of each type, 16 bytes apart.
struct ones_of_types {
    alignas(16) std::array<std::byte, 16 * 8> bytes{};
    ones_of_types() {
        put(dtype::f16, half(1.0f));
        put(dtype::bf16, bfloat16(1.0f));
        put(dtype::f32, 1.0f);
        put(dtype::f64, 1.0);
        put(dtype::c64, std::complex<float>(1));
        put(dtype::c128, std::complex<double>(1));
    }
    template <class Number>
    void put(dtype type, const Number& value) {
        std::memcpy(bytes.data() + 16 * static_cast<std::size_t>(type), &value, sizeof(value));
    }
};

}  // namespace

device_context::device_context(CUcontext context, CUdevice device)
    : context_(context), description_(describe_device(device)), kernels_(context, description_.compute_capability) {
    const context_scope scope(context);
    const beside_captures making;
    // Where one of these fails the next call begins anew: what there is by then is given back. The kernel comes last, since its module would stay.
    struct unfinished {
        device_context* made;
        CUstream stream = nullptr;
        unfinished(const unfinished&) = delete;
        unfinished& operator=(const unfinished&) = delete;
        explicit unfinished(device_context* m) : made(m) {}
        ~unfinished() {
            if (stream != nullptr) {
                driver().cuStreamDestroy(stream);
            }
            if (made != nullptr && made->ones_ != 0) {
                driver().cuMemFree(made->ones_);
            }
            if (made != nullptr && made->pool_ != nullptr) {
                driver().cuMemPoolDestroy(made->pool_);
            }
        }
    } guard(this);
    unsigned flags = 0;
    OTIMES_CUDA_CALL(cuCtxGetFlags(&flags));
    waits_awake_ = (flags & (CU_CTX_SCHED_YIELD | CU_CTX_SCHED_BLOCKING_SYNC)) == 0;
    takes_host_pages_ = attribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) != 0;
    takes_registered_pages_ = attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) != 0;
    if (driver().has_pools && attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device;
        OTIMES_CUDA_CALL(cuMemPoolCreate(&pool_, &properties));
        // Memory that was freed stays in the pool: a second evaluation asks the system for nothing.
        cuuint64_t keep = ~cuuint64_t{0};
        OTIMES_CUDA_CALL(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    }
    // Static: a copy that is queued reads it, also where waiting for that fails.
    static const ones_of_types ones;
    OTIMES_CUDA_CALL(cuMemAlloc(&ones_, ones.bytes.size()));
    OTIMES_CUDA_CALL(cuStreamCreate(&guard.stream, CU_STREAM_NON_BLOCKING));
    OTIMES_CUDA_CALL(cuMemcpyHtoDAsync(ones_, ones.bytes.data(), ones.bytes.size(), guard.stream));
    OTIMES_CUDA_CALL(cuStreamSynchronize(guard.stream));
    // A device that no code is for is none: find_gpu() tells why, and make_executor() takes the CPU.
    std::string why;
    const std::shared_ptr<const loaded_kernel> any = kernels_.get(
        {"generic_sliced_multiply.cuh", "otimes::kernels::generic_sliced_multiply<float, float>", ""}, &why);
    if (any == nullptr) {
        throw device_error("otimes: no kernel can be had for this GPU: " + why +
                           ". Compute on otimes::cpu(), as otimes::make_executor() does then.");
    }
    if (description_.cluster_blocks > portable_cluster_blocks &&
        !holds_cluster(any->function, description_.cluster_blocks)) {
        description_.cluster_blocks = portable_cluster_blocks;
    }
    guard.made = nullptr;
}

namespace {

device_context& context_object(CUcontext context, CUdevice device) {
    static std::mutex* const mutex = new std::mutex;  // with the map, as long as the process
    static auto* const known = new std::map<CUcontext, std::unique_ptr<device_context>>;
    const std::lock_guard lock(*mutex);
    std::unique_ptr<device_context>& slot = (*known)[context];
    if (!slot) {
        slot = std::make_unique<device_context>(context, device);
    }
    return *slot;
}

}  // namespace

device_context& device_context::current() {
    CUcontext context = nullptr;
    CUdevice device = 0;
    OTIMES_CUDA_CALL(cuCtxGetCurrent(&context));
    if (context != nullptr) {
        OTIMES_CUDA_CALL(cuCtxGetDevice(&device));
    } else {
        OTIMES_CUDA_CALL(cuDeviceGet(&device, 0));
        OTIMES_CUDA_CALL(cuDevicePrimaryCtxRetain(&context, device));
    }
    return context_object(context, device);
}

device_context& device_context::of(CUstream stream) {
    if (stream == nullptr) {
        return current();  // the legacy default stream belongs to whatever is current
    }
    CUcontext context = nullptr;
    OTIMES_CUDA_CALL(cuStreamGetCtx(stream, &context));
    CUdevice device = 0;
    {
        const context_scope scope(context);
        OTIMES_CUDA_CALL(cuCtxGetDevice(&device));
    }
    return context_object(context, device);
}

void* device_context::allocate(std::size_t bytes, CUstream stream) {
    CUdeviceptr memory = 0;
    if (pool_ != nullptr) {
        OTIMES_CUDA_CALL(cuMemAllocFromPoolAsync(&memory, bytes, pool_, stream));
    } else {
        const beside_captures allocating;
        OTIMES_CUDA_CALL(cuMemAlloc(&memory, bytes));
    }
    return reinterpret_cast<void*>(memory);
}

reach device_context::reach_of(const void* address) const {
    if (address == nullptr) {
        return reach::nowhere;
    }
    const auto at = reinterpret_cast<CUdeviceptr>(address);
    // False: the driver has no answer for this address. Other failures are those of work in front of it.
    const auto ask = [at](CUpointer_attribute what, void* answer) {
        const CUresult code = driver().cuPointerGetAttribute(answer, what, at);
        if (code != CUDA_ERROR_INVALID_VALUE && code != CUDA_ERROR_NOT_SUPPORTED) {
            check(code, "cuPointerGetAttribute");
        }
        return code == CUDA_SUCCESS;
    };
    CUdeviceptr as_seen = 0;
    if (ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, &as_seen) && as_seen == at) {
        return reach::here;
    }
    unsigned int type = 0;
    if (!ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &type)) {
        return takes_host_pages_ ? reach::here : reach::host_memory;
    }
    if (type == CU_MEMORYTYPE_HOST) {
        return takes_host_pages_ || takes_registered_pages_ ? reach::here : reach::other_address;
    }
    // Another GPU's, and nothing says that this one was given access; the rest is left to who gives it.
    int owner = -1;
    CUdevice mine = 0;
    CUdevice other = 0;
    unsigned long long access = 0;
    OTIMES_CUDA_CALL(cuCtxGetDevice(&mine));
    const bool of_another = ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &owner) && owner >= 0 &&
                            driver().cuDeviceGet(&other, owner) == CUDA_SUCCESS && other != mine;
    const bool given =
        of_another && ask(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, &access) && (access & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0;
    return of_another && !given ? reach::other_gpu : reach::here;
}

bool device_context::share_memory_with(CUdevice other) {
    if (pool_ == nullptr) {
        return false;
    }
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = other;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver().cuMemPoolSetAccess(pool_, &access, 1) == CUDA_SUCCESS;
}

void device_context::release(void* memory, CUstream stream) noexcept {
    // At the end of the process the driver may be gone already; then there is nothing left to free.
    if (const driver_functions* const f = find_driver()) {
        if (pool_ != nullptr) {
            f->cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(memory), stream);
        } else {
            // As beside_captures, which throws where the context is lost.
            CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            f->cuThreadExchangeStreamCaptureMode(&mode);
            f->cuStreamSynchronize(stream);
            f->cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
            f->cuThreadExchangeStreamCaptureMode(&mode);
        }
    }
}

template <class Condition>
std::optional<pinned_blocks::block> pinned_blocks::taken_from_free(const Condition& fits) {
    const auto found = std::ranges::find_if(free_, fits);
    if (found == free_.end()) {
        return std::nullopt;
    }
    const block taken = *found;
    free_.erase(found);
    return taken;
}

pinned_blocks::block pinned_blocks::take(std::size_t bytes, CUstream stream) {
    constexpr std::ptrdiff_t most_in_flight = 16;  // of a stream
    const auto large_enough = [&](const block& b) { return b.bytes >= bytes; };
    const auto same_stream = [&](const block& b) { return large_enough(b) && b.stream == stream; };
    std::unique_lock lock(mutex_);
    std::optional<block> idle = taken_from_free([&](const block& b) { return large_enough(b) && b.idle; });
    std::optional<beside_captures> waiting;
    if (!idle) {
        waiting.emplace();  // another thread may capture a stream that has nothing to do with this one
        idle = taken_from_free(
            [&](const block& b) { return large_enough(b) && driver().cuEventQuery(b.done) == CUDA_SUCCESS; });
    }
    if (idle) {
        idle->stream = stream;
        idle->idle = false;
        return *idle;
    }
    std::optional<block> busy;
    if (std::ranges::count_if(free_, same_stream) >= most_in_flight) {
        busy = taken_from_free(same_stream);
    } else {
        lock.unlock();
        block fresh{nullptr, std::max(bytes, block_bytes), nullptr, stream};
        void* memory = nullptr;
        const char* call = "cuMemAllocHost";
        CUresult code = driver().cuMemAllocHost(&memory, fresh.bytes);
        if (code == CUDA_SUCCESS) {
            fresh.data = static_cast<std::byte*>(memory);
            call = "cuEventCreate";
            code = driver().cuEventCreate(&fresh.done, CU_EVENT_DISABLE_TIMING);
            if (code == CUDA_SUCCESS) {
                return fresh;
            }
            driver().cuMemFreeHost(memory);  // a block without its event is none
        }
        lock.lock();
        // The system pins no more: one in flight will do, best one that this stream waits for anyway.
        busy = taken_from_free(same_stream);
        if (!busy) {
            busy = taken_from_free(large_enough);
        }
        if (!busy || code != CUDA_ERROR_OUT_OF_MEMORY) {
            if (busy) {
                free_.push_back(*busy);
            }
            check(code, call);
        }
    }
    lock.unlock();
    OTIMES_CUDA_CALL(cuEventSynchronize(busy->done));
    busy->stream = stream;
    return *busy;
}

void pinned_blocks::give_back(const block& used) {
    const std::lock_guard lock(mutex_);
    free_.push_back(used);
}

stream_lanes lanes_pool::take() {
    {
        const std::lock_guard lock(mutex_);
        if (!free_.empty()) {
            const stream_lanes found = free_.back();
            free_.pop_back();
            return found;
        }
    }
    const beside_captures making;
    stream_lanes fresh;
    const std::array<CUevent*, 7> events{
        &fresh.ready,           &fresh.arrived.front(), &fresh.arrived.back(), &fresh.computed.front(),
        &fresh.computed.back(), &fresh.drained.front(), &fresh.drained.back()};
    try {
        OTIMES_CUDA_CALL(cuStreamCreate(&fresh.in, CU_STREAM_NON_BLOCKING));
        OTIMES_CUDA_CALL(cuStreamCreate(&fresh.out, CU_STREAM_NON_BLOCKING));
        for (CUevent* const e : events) {
            OTIMES_CUDA_CALL(cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
        }
    } catch (const device_error&) {
        for (const CUevent* const e : events) {
            if (*e != nullptr) {
                driver().cuEventDestroy(*e);
            }
        }
        for (const CUstream s : {fresh.in, fresh.out}) {
            if (s != nullptr) {
                driver().cuStreamDestroy(s);
            }
        }
        throw;
    }
    return fresh;
}

void lanes_pool::give_back(const stream_lanes& used) {
    const std::lock_guard lock(mutex_);
    free_.push_back(used);
}

held_block::~held_block() {
    try {
        block_.idle = idle_;
        if (!idle_ && driver().cuEventRecord(block_.done, stream_) != CUDA_SUCCESS) {
            check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
        }
        pool_.give_back(block_);
    } catch (const std::exception&) {  // a lost context: the block is lost with it
    }
}

}  // namespace otimes::backend
