// SPDX-License-Identifier: MIT
// A CUDA driver and an NVRTC (libcuda.so.1, libnvrtc.so.13) whose GPUs are the host: streams are threads, memory is malloc's, a few kernels
// are loops. It keeps account of what it gave, refuses what a capture refuses, and fails when it is told to (control.hpp). With PRETENDED_LINKS
// set its GPUs reach each other's memory, and NVRTC refuses the kernels that have no loop here.
#include <cuda.h>
#include <nvrtc.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host_device.hpp"

#include <diagonal_scale.cuh>
#include <dot_product.cuh>
#include <exchange_blocks.cuh>
#include <generic_sliced_multiply.cuh>
#include <scaled_copy.cuh>
#include <sparse_multiply.cuh>

#include "control.hpp"
#include "streams.hpp"

namespace {

using work = std::function<void()>;

// Tables are never destroyed: at the end of the process streams may still be at work.

pretended::control control;

// --- failures ---

struct failure {
    int nth;
    int times;
    CUresult code;
};
std::mutex failures_mutex;
auto& failures = *new std::map<std::string, failure>;

void fail(const char* call, int nth, int code, int times) {
    const std::lock_guard lock(failures_mutex);
    if (call == nullptr) {
        failures.clear();
    } else {
        failures[call] = {nth, times, static_cast<CUresult>(code)};
    }
}

CUresult planned_failure(std::string call) {
    if (call.size() > 3 && call[call.size() - 3] == '_' && call[call.size() - 2] == 'v') {
        call.resize(call.size() - 3);
    }
    const std::lock_guard lock(failures_mutex);
    const auto found = failures.find(call);
    if (found == failures.end() || --found->second.nth > 0 || found->second.times-- <= 0) {
        return CUDA_SUCCESS;
    }
    return found->second.code;
}

// --- contexts, graphs, streams ---

struct context {
    int device;
};
context contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
thread_local std::vector<CUcontext> stack;
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUcontext current() { return stack.empty() ? nullptr : stack.back(); }
int device_of(CUcontext c) { return reinterpret_cast<context*>(c)->device; }

struct stream;

/// In the order of the calls; the streams that a capture has joined are branches, between which marks are set and waited for.
struct graph {
    struct node {
        stream* branch;
        work runs;      // or nothing: a mark
        int mark = -1;  // that is set
        int awaited = -1;
    };
    std::vector<node> nodes;
    int marks = 0;
    std::set<void*> owned;  // allocated by a node, and not freed by one
    bool valid = true;
    CUstreamCaptureMode mode{};
    cuuint64_t sequence = 0;
};

struct stream {
    int device;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<work> queue;
    bool busy = false;
    bool ends = false;
    std::shared_ptr<graph> capture;
    std::thread worker;

    explicit stream(int d) : device(d) {
        worker = std::thread([this] {
            static const char* const jitter = std::getenv("PRETENDED_JITTER");
            static const int most = jitter != nullptr ? std::atoi(jitter) : 0;
            unsigned seed = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(this));
            for (;;) {
                work next;
                {
                    std::unique_lock lock(mutex);
                    changed.wait(lock, [&] { return ends || !queue.empty(); });
                    if (queue.empty()) return;
                    next = std::move(queue.front());
                    queue.pop_front();
                    busy = true;
                }
                if (most > 0) {
                    std::this_thread::sleep_for(std::chrono::microseconds(rand_r(&seed) % most));
                }
                next();
                next = nullptr;
                {
                    const std::lock_guard lock(mutex);
                    busy = false;
                }
                changed.notify_all();
            }
        });
    }
    void put(work w) {
        {
            const std::lock_guard lock(mutex);
            if (capture) {
                capture->nodes.push_back({this, std::move(w)});
                return;
            }
            queue.push_back(std::move(w));
        }
        changed.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return queue.empty() && !busy; });
    }
};

std::mutex streams_mutex;
auto& streams = *new std::set<stream*>;

struct event {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0;
    std::uint64_t done = 0;
    std::shared_ptr<graph> captured;  // where it was recorded last
    int mark = -1;
};

stream* of(CUstream s) { return reinterpret_cast<stream*>(s); }
event* of(CUevent e) { return reinterpret_cast<event*>(e); }

// --- memory ---

struct block {
    std::size_t bytes;
    int device;  // -1: the host's
    bool by_malloc = true;
};
std::mutex blocks_mutex;
auto& blocks = *new std::map<char*, block>;

const block* block_at(const void* address) {
    const auto* const at = static_cast<const char*>(address);
    auto found = blocks.upper_bound(const_cast<char*>(at));
    if (found == blocks.begin()) return nullptr;
    --found;
    return at < found->first + found->second.bytes ? &found->second : nullptr;
}

constexpr std::size_t page = 4096;  // of one GPU alone

void* take(std::size_t bytes, int device) {
    const std::lock_guard lock(blocks_mutex);
    if (device >= 0) {
        long used = 0;
        for (const auto& [at, b] : blocks) used += b.device == device ? static_cast<long>(b.bytes) : 0;
        if (used + static_cast<long>(bytes) > control.memory_bytes) return nullptr;
    }
    auto* const at = static_cast<char*>(std::aligned_alloc(page, (bytes + page - 1) / page * page));
    if (at == nullptr) return nullptr;
    std::memset(at, 0xff, bytes);
    blocks[at] = {bytes, device};
    if (device >= 0) {
        ++control.device_blocks;
        control.device_bytes += static_cast<long>(bytes);
    } else {
        ++control.pinned_blocks;
    }
    return at;
}

bool give(void* memory) {
    const std::lock_guard lock(blocks_mutex);
    const auto found = blocks.find(static_cast<char*>(memory));
    if (found == blocks.end()) {
        ++control.frees_of_nothing;
        return false;
    }
    if (found->second.device >= 0) {
        --control.device_blocks;
        control.device_bytes -= static_cast<long>(found->second.bytes);
    } else {
        --control.pinned_blocks;
    }
    std::free(memory);
    blocks.erase(found);
    return true;
}

// --- what a call looks at first ---

enum class kind { plain, unsafe_in_captures };

CUresult enter(const char* call, kind k = kind::plain) {
    if (current() == nullptr) {
        std::fprintf(stderr, "%s: no context is current\n", call);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (control.lost[device_of(current())]) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (k == kind::unsafe_in_captures && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        const std::lock_guard lock(streams_mutex);
        for (stream* const s : streams) {
            const std::lock_guard own(s->mutex);
            if (s->capture && s->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
                s->capture->valid = false;
                ++control.invalidated;
                return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
        }
    }
    return planned_failure(call);
}

#define ENTER(...)                                                          \
    if (const CUresult code = enter(__func__ __VA_OPT__(, ) __VA_ARGS__)) { \
        return code;                                                        \
    }

/// A call that waits for a stream, or asks whether it is done, ends its capture.
CUresult not_captured(stream* s) {
    if (control.lost[s->device]) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const std::lock_guard lock(s->mutex);
    if (s->capture) {
        s->capture->valid = false;
        ++control.invalidated;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult queue(CUstream s, work w) {
    of(s)->put(std::move(w));
    return CUDA_SUCCESS;
}

// --- kernels ---

template <class T>
T op(T value, bool conjugates) {
    return conjugates ? otimes::kernels::conjugate(value) : value;
}

template <class T>
void multiply(const otimes::kernels::sliced_multiply_arguments<T, T>& a) {
    long count = a.q_extent;
    for (int i = 0; i < a.free_count; ++i) count *= a.free_extent[i];
    for (long k = 0; k < count; ++k) {
        const long q = k % a.q_extent;
        long rest = k / a.q_extent, x = 0, y = q * a.y_q_stride, f = q * a.f_q_stride;
        for (int i = 0; i < a.free_count; ++i) {
            const long at = rest % a.free_extent[i];
            rest /= a.free_extent[i];
            x += at * a.x_stride[i];
            y += at * a.y_stride[i];
            f += at * a.f_stride[i];
        }
        T sum(0);
        for (long p = 0; p < a.p_extent; ++p) {
            sum += op(a.x[x + p * a.x_p_stride], a.conjugate_x) * op(a.f[f + p * a.f_p_stride], a.conjugate_f);
        }
        sum = a.alpha * sum;
        if (!otimes::kernels::is_zero(a.beta)) sum += a.beta * a.y[y];
        a.y[y] = sum;
    }
}

template <class T>
void copy(const otimes::kernels::scaled_copy_arguments<T, T>& a) {
    for (long l = 0; l < a.lines; ++l) {
        for (long i = 0; i < a.count; ++i) {
            T& y = a.y[l * a.y_line_stride + i];
            T x = a.alpha * op(a.x[l * a.x_line_stride + i], a.conjugate_x);
            if (!otimes::kernels::is_zero(a.beta)) x += a.beta * y;
            y = x;
        }
    }
}

template <class T>
void scale(const otimes::kernels::diagonal_arguments<T, T>& a) {
    for (long l = 0; l < a.lines; ++l) {
        for (long i = 0; i < a.count; ++i) {
            T& y = a.y[l * a.y_line_stride + i];
            const T x = a.alpha * a.x[l * a.x_line_stride + i] * a.d[l % a.d_lines * a.d_line_stride + i * a.d_stride];
            y = a.beta == T(0) ? x : x + a.beta * y;
        }
    }
}

void multiply_sparse(const otimes::kernels::sparse_multiply_arguments<double, double>& a) {
    long count = a.turns;
    for (int i = 0; i < a.free_count; ++i) count *= a.free_extent[i];
    for (long k = 0; k < count; ++k) {
        long rest = k / a.turns, from = k % a.turns * a.x_turn_stride, to = k % a.turns * a.y_turn_stride;
        for (int i = 0; i < a.free_count; ++i) {
            from += rest % a.free_extent[i] * a.x_stride[i];
            to += rest % a.free_extent[i] * a.y_stride[i];
            rest /= a.free_extent[i];
        }
        for (long o = 0; o < a.outputs; ++o) {
            double sum = 0;
            for (int e = a.starts[o]; e < a.starts[o + 1]; ++e) {
                sum += a.values[e] * a.x[from + a.inner[e] * a.x_inner_stride];
            }
            double& y = a.y[to + o * a.y_outer_stride];
            y = a.beta == 0 ? a.alpha * sum : a.alpha * sum + a.beta * y;
        }
    }
}

/// Block b takes element b and every so many blocks-th one behind it, and writes its sum once.
template <class T, class Sum>
void sum_products(const otimes::kernels::dot_arguments<T, Sum>& a, unsigned blocks) {
    std::vector<Sum> sums(blocks, Sum(0));
    for (long l = 0; l < a.lines; ++l) {
        for (long i = 0; i < a.count; ++i) {
            const auto x = op(otimes::kernels::widen<Sum>(a.x[l * a.x_line_stride + i * a.x_stride]), a.conjugate_x);
            const auto y = op(otimes::kernels::widen<Sum>(a.y[l * a.y_line_stride + i * a.y_stride]), a.conjugate_y);
            const Sum difference = x - y;
            sums[static_cast<std::size_t>(l * a.count + i) % blocks] +=
                a.distance ? difference * otimes::kernels::conjugate(difference) : x * y;
        }
    }
    std::ranges::copy(sums, a.sums);
}

template <class T, class Sum>
void add_up(const otimes::kernels::finish_arguments<T, Sum>& a) {
    Sum sum(0);
    for (int i = 0; i < a.count; ++i) sum += a.sums[i];
    sum = a.alpha * sum;
    if (!otimes::kernels::is_zero(a.beta)) sum += a.beta * otimes::kernels::widen<Sum>(*a.result);
    *a.result = otimes::kernels::narrow<T>(sum);
}

void exchange(const otimes::kernels::exchange_arguments& a) {
    for (int m = 0; m < a.count; ++m) {
        const otimes::kernels::block_move& b = a.moves[m];
        for (long i = 0; i < b.counts[0]; ++i) {
            for (long j = 0; j < b.counts[1]; ++j) {
                for (long k = 0; k < b.counts[2]; ++k) {
                    std::memcpy(b.to + i * b.to_strides[0] + j * b.to_strides[1] + k * b.to_strides[2],
                                b.from + i * b.from_strides[0] + j * b.from_strides[1] + k * b.from_strides[2],
                                static_cast<std::size_t>(b.run));
                }
            }
        }
    }
}

struct function {
    std::string name;
};

template <class Arguments, class Run>
work launch_of(void** parameters, const Run& run) {
    return [arguments = *static_cast<Arguments*>(parameters[0]), run] { run(arguments); };
}

work launch_of(const std::string& name, unsigned blocks, void** parameters) {
    using namespace otimes::kernels;
    using complexes = complex<double>;
    const bool doubles = name.find("<double, double>") != std::string::npos;
    const bool floats = name.find("<float, float>") != std::string::npos;
    const bool floats_in_doubles = name.find("<float, double>") != std::string::npos;
    const bool complex_doubles = name.find("complex<double>, otimes::kernels::complex<double>>") != std::string::npos;
    if (name.find("generic_sliced_multiply") != std::string::npos) {
        return doubles  ? launch_of<sliced_multiply_arguments<double, double>>(parameters, multiply<double>)
               : floats ? launch_of<sliced_multiply_arguments<float, float>>(parameters, multiply<float>)
               : complex_doubles
                   ? launch_of<sliced_multiply_arguments<complexes, complexes>>(parameters, multiply<complexes>)
                   : nullptr;
    }
    if (name.find("scaled_copy") != std::string::npos) {
        return doubles           ? launch_of<scaled_copy_arguments<double, double>>(parameters, copy<double>)
               : floats          ? launch_of<scaled_copy_arguments<float, float>>(parameters, copy<float>)
               : complex_doubles ? launch_of<scaled_copy_arguments<complexes, complexes>>(parameters, copy<complexes>)
                                 : nullptr;
    }
    if (name.find("diagonal_scale") != std::string::npos && doubles) {
        return launch_of<diagonal_arguments<double, double>>(parameters, scale<double>);
    }
    if (name.find("diagonal_scale") != std::string::npos && floats) {
        return launch_of<diagonal_arguments<float, float>>(parameters, scale<float>);
    }
    if ((name.find("sparse_multiply") != std::string::npos || name.find("sparse_tiles") != std::string::npos) &&
        doubles) {
        return launch_of<sparse_multiply_arguments<double, double>>(parameters, multiply_sparse);
    }
    if (name.find("partial_dots") != std::string::npos) {
        const auto run = [blocks](const auto& a) { sum_products(a, blocks); };
        return doubles             ? launch_of<dot_arguments<double, double>>(parameters, run)
               : floats_in_doubles ? launch_of<dot_arguments<float, double>>(parameters, run)
               : complex_doubles   ? launch_of<dot_arguments<complexes, complexes>>(parameters, run)
                                   : nullptr;
    }
    if (name.find("finish_dot") != std::string::npos) {
        const auto run = [](const auto& a) { add_up(a); };
        return doubles             ? launch_of<finish_arguments<double, double>>(parameters, run)
               : floats_in_doubles ? launch_of<finish_arguments<float, double>>(parameters, run)
               : complex_doubles   ? launch_of<finish_arguments<complexes, complexes>>(parameters, run)
                                   : nullptr;
    }
    if (name.find("exchange_blocks") != std::string::npos) {
        return launch_of<exchange_arguments>(parameters, exchange);
    }
    return nullptr;
}

bool has_loop(const std::string& kernel) {
    return std::ranges::any_of(std::initializer_list<const char*>{"generic_sliced_multiply", "scaled_copy",
                                                                  "diagonal_scale", "sparse_multiply", "sparse_tiles",
                                                                  "partial_dots", "finish_dot", "exchange_blocks"},
                               [&](const char* known) { return kernel.find(known) != std::string::npos; });
}

bool has_links() { return std::getenv("PRETENDED_LINKS") != nullptr; }

int number_of_gpus() {
    const char* const wish = std::getenv("PRETENDED_GPUS");
    return wish != nullptr ? std::atoi(wish) : 1;
}

}  // namespace

void pretended::put_on_stream(CUstream s, std::function<void()> w) { of(s)->put(std::move(w)); }

extern "C" {

pretended::control* pretended_control() {
    control.fail = fail;
    return &control;
}

CUresult cuInit(unsigned) { return planned_failure(__func__); }
CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult code, const char** text) {
    static thread_local std::string name;
    name = code == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_" + std::to_string(code);
    *text = name.c_str();
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "pretended";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int number) {
    *device = number;
    return number < number_of_gpus() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetCount(int* count) {
    *count = number_of_gpus();
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int room, CUdevice) {
    std::snprintf(name, static_cast<std::size_t>(room), "pretended GPU");
    return CUDA_SUCCESS;
}
static int capability() {
    const char* const wish = std::getenv("PRETENDED_CAPABILITY");
    return wish != nullptr ? std::atoi(wish) : 90;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute what, CUdevice) {
    switch (what) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability() / 10; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability() % 10; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 * 1024; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 228 * 1024; break;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
            *value = std::getenv("PRETENDED_NO_POOLS") == nullptr ? 1 : 0;
            break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
    const char* const wish = std::getenv("PRETENDED_MEMORY");
    if (wish != nullptr) control.memory_bytes = std::atol(wish);
    *bytes = static_cast<std::size_t>(control.memory_bytes);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice device) {
    *c = reinterpret_cast<CUcontext>(&contexts[device]);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
    *c = current();
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext c) {
    if (const CUresult code = planned_failure(__func__)) return code;
    stack.push_back(c);
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* c) {
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *c = current();
    stack.pop_back();
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
    if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = device_of(current());
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = *greatest = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* s, unsigned) {
    ENTER(kind::unsafe_in_captures)
    auto* const made = new stream(device_of(current()));
    const std::lock_guard lock(streams_mutex);
    streams.insert(made);
    ++control.streams;
    *s = reinterpret_cast<CUstream>(made);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream* s, unsigned flags, int) { return cuStreamCreate(s, flags); }
CUresult cuStreamDestroy(CUstream s) {
    {
        const std::lock_guard lock(streams_mutex);
        streams.erase(of(s));
    }
    --control.streams;
    {
        const std::lock_guard lock(of(s)->mutex);
        of(s)->ends = true;
    }
    of(s)->changed.notify_all();
    of(s)->worker.join();
    delete of(s);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream s) {
    if (const CUresult code = not_captured(of(s))) return code;
    if (const CUresult code = planned_failure(__func__)) return code;
    of(s)->wait();
    return CUDA_SUCCESS;
}
CUresult cuCtxGetFlags(unsigned* flags) {
    ENTER()
    *flags = control.context_flags;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream s, CUcontext* c) {
    *c = reinterpret_cast<CUcontext>(&contexts[of(s)->device]);
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* status) {
    if (control.lost[of(s)->device]) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const std::lock_guard lock(of(s)->mutex);
    *status = !of(s)->capture         ? CU_STREAM_CAPTURE_STATUS_NONE
              : of(s)->capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                      : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus* status, cuuint64_t* sequence, CUgraph* graph_out,
                                   const CUgraphNode** nodes, const CUgraphEdgeData** edges, std::size_t* count) {
    if (const CUresult code = cuStreamIsCapturing(s, status)) return code;
    static thread_local CUgraphNode last;
    const std::lock_guard lock(of(s)->mutex);
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        last = reinterpret_cast<CUgraphNode>(of(s)->capture->nodes.size());
        *sequence = of(s)->capture->sequence;
        *graph_out = nullptr;
        *nodes = &last;
        *edges = nullptr;
        *count = of(s)->capture->nodes.empty() ? 0 : 1;
    }
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
    static std::atomic<cuuint64_t> sequence{0};
    const std::lock_guard lock(of(s)->mutex);
    of(s)->capture = std::make_shared<graph>();
    of(s)->capture->mode = mode;
    of(s)->capture->sequence = ++sequence;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph* out) {
    const std::lock_guard all(streams_mutex);
    const std::lock_guard lock(of(s)->mutex);
    const bool valid = of(s)->capture->valid;
    const std::shared_ptr<graph> made = of(s)->capture;
    *out = valid ? reinterpret_cast<CUgraph>(new std::shared_ptr<graph>(made)) : nullptr;
    for (stream* const joined : streams) {
        if (joined != of(s)) {
            const std::lock_guard own(joined->mutex);
            joined->capture = joined->capture == made ? nullptr : joined->capture;
        }
    }
    of(s)->capture = nullptr;
    return valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph g, unsigned long long) {
    *out = reinterpret_cast<CUgraphExec>(g);
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec g, CUstream s) {
    const std::shared_ptr<graph> launched = *reinterpret_cast<std::shared_ptr<graph>*>(g);
    std::map<stream*, std::vector<const graph::node*>> branches;
    for (const graph::node& n : launched->nodes) branches[n.branch].push_back(&n);
    if (branches.size() == 1) {
        for (const graph::node& n : launched->nodes) {
            if (n.runs) of(s)->put(n.runs);
        }
        return CUDA_SUCCESS;
    }
    of(s)->put([launched, branches] {
        std::mutex mutex;
        std::condition_variable changed;
        std::vector<bool> set(static_cast<std::size_t>(launched->marks));
        std::vector<std::thread> threads;
        for (const auto& [branch, nodes] : branches) {
            threads.emplace_back([&, nodes = nodes] {
                for (const graph::node* const n : nodes) {
                    if (n->runs) {
                        n->runs();
                        continue;
                    }
                    std::unique_lock lock(mutex);
                    if (n->mark >= 0) set[static_cast<std::size_t>(n->mark)] = true;
                    changed.notify_all();
                    changed.wait(lock, [&] { return n->awaited < 0 || set[static_cast<std::size_t>(n->awaited)]; });
                }
            });
        }
        for (std::thread& t : threads) t.join();
    });
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph g, CUgraphNode*, std::size_t* count) {
    const std::vector<graph::node>& all = (*reinterpret_cast<std::shared_ptr<graph>*>(g))->nodes;
    *count =
        static_cast<std::size_t>(std::ranges::count_if(all, [](const graph::node& n) { return n.runs != nullptr; }));
    return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* e, unsigned) {
    ENTER()
    ++control.events;
    *e = reinterpret_cast<CUevent>(new event);
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent) {  // its memory stays: a stream may still come to it
    --control.events;
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent e, CUstream s) {
    ENTER()
    std::uint64_t number = 0;
    {
        const std::lock_guard captured(of(s)->mutex);
        const std::lock_guard lock(of(e)->mutex);
        of(e)->captured = of(s)->capture;
        if (of(s)->capture) {
            of(e)->mark = of(s)->capture->marks++;
            of(s)->capture->nodes.push_back({of(s), nullptr, of(e)->mark});
            return CUDA_SUCCESS;
        }
        number = ++of(e)->recorded;
    }
    return queue(s, [e, number] {
        {
            const std::lock_guard lock(of(e)->mutex);
            of(e)->done = std::max(of(e)->done, number);
        }
        of(e)->changed.notify_all();
    });
}
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
    ENTER()
    std::uint64_t number = 0;
    {
        const std::lock_guard captured(of(s)->mutex);
        const std::lock_guard lock(of(e)->mutex);
        if (of(e)->captured && of(e)->captured->valid) {  // of a capture, which the stream joins
            if (of(s)->capture && of(s)->capture != of(e)->captured) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
            of(s)->capture = of(e)->captured;
            of(s)->capture->nodes.push_back({of(s), nullptr, -1, of(e)->mark});
            return CUDA_SUCCESS;
        }
        if (of(s)->capture) {  // an event from before it
            of(s)->capture->valid = false;
            ++control.invalidated;
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
        number = of(e)->recorded;
    }
    return queue(s, [e, number] {
        std::unique_lock lock(of(e)->mutex);
        of(e)->changed.wait(lock, [&] { return of(e)->done >= number; });
    });
}
CUresult cuEventQuery(CUevent e) {
    ENTER(kind::unsafe_in_captures)
    const std::lock_guard lock(of(e)->mutex);
    return of(e)->done >= of(e)->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(CUevent e) {
    ENTER()
    std::unique_lock lock(of(e)->mutex);
    const std::uint64_t number = of(e)->recorded;
    of(e)->changed.wait(lock, [&] { return of(e)->done >= number; });
    return CUDA_SUCCESS;
}
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
    *milliseconds = 1;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* p, std::size_t bytes) {
    ENTER(kind::unsafe_in_captures)
    *p = reinterpret_cast<CUdeviceptr>(take(bytes, device_of(current())));
    return *p != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr p) {
    ENTER(kind::unsafe_in_captures)
    return give(reinterpret_cast<void*>(p)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemAllocHost(void** p, std::size_t bytes) {
    ENTER(kind::unsafe_in_captures)
    *p = take(bytes, -1);
    return *p != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFreeHost(void* p) {
    ENTER(kind::unsafe_in_captures)
    return give(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemHostRegister(void* p, std::size_t bytes, unsigned) {
    ENTER(kind::unsafe_in_captures)
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(blocks_mutex);
    if (block_at(p) != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    blocks[static_cast<char*>(p)] = {bytes, -1, false};
    return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* p) {
    ENTER(kind::unsafe_in_captures)
    const std::lock_guard lock(blocks_mutex);
    return blocks.erase(static_cast<char*>(p)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
    ENTER()
    ++control.pools;
    *pool = reinterpret_cast<CUmemoryPool>(1);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool) {
    --control.pools;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) {
    ENTER()
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc*, std::size_t) { return CUDA_SUCCESS; }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* p, std::size_t bytes, CUmemoryPool, CUstream s) {
    ENTER()
    void* memory = take(bytes, of(s)->device);
    if (memory == nullptr && not_captured(of(s)) == CUDA_SUCCESS) {
        of(s)->wait();  // what the stream frees in front of this is there
        memory = take(bytes, of(s)->device);
    }
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::lock_guard lock(of(s)->mutex);
    if (of(s)->capture) of(s)->capture->owned.insert(memory);
    *p = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
}
// "During stream capture, this function results in the creation of a free node and must therefore be passed the address of a graph allocation."
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) {
    if (control.lost[of(s)->device]) return CUDA_ERROR_ILLEGAL_ADDRESS;
    void* const memory = reinterpret_cast<void*>(p);
    {
        const std::lock_guard lock(of(s)->mutex);
        if (of(s)->capture) {
            if (of(s)->capture->owned.erase(memory) == 0) {
                of(s)->capture->valid = false;
                ++control.invalidated;
                ++control.frees_of_nothing;
                return CUDA_ERROR_INVALID_VALUE;
            }
            return CUDA_SUCCESS;  // its memory stays: the graph may run
        }
    }
    return queue(s, [memory] { give(memory); });
}

static CUresult copy_bytes(const char* call, void* to, const void* from, std::size_t bytes, CUstream s) {
    if (const CUresult code = enter(call)) return code;
    return queue(s, [=] { std::memcpy(to, from, bytes); });
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream s) {
    return copy_bytes(__func__, reinterpret_cast<void*>(to), from, bytes, s);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream s) {
    return copy_bytes(__func__, to, reinterpret_cast<void*>(from), bytes, s);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream s) {
    return copy_bytes(__func__, reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, s);
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream s) {
    ENTER()
    ++control.copies_of_lines;
    return queue(s, [c = *given] {
        auto* const to = static_cast<char*>(
            c.dstMemoryType == CU_MEMORYTYPE_HOST ? c.dstHost : reinterpret_cast<void*>(c.dstDevice));
        const auto* const from = static_cast<const char*>(
            c.srcMemoryType == CU_MEMORYTYPE_HOST ? c.srcHost : reinterpret_cast<void*>(c.srcDevice));
        for (std::size_t i = 0; i < c.Height; ++i) {
            std::memcpy(to + i * c.dstPitch, from + i * c.srcPitch, c.WidthInBytes);
        }
    });
}
/// Between GPUs.
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* given, CUstream s) {
    ENTER()
    return queue(s, [c = *given] {
        for (std::size_t k = 0; k < c.Depth; ++k) {
            for (std::size_t i = 0; i < c.Height; ++i) {
                std::memcpy(reinterpret_cast<char*>(c.dstDevice) + (k * c.dstHeight + i) * c.dstPitch,
                            reinterpret_cast<const char*>(c.srcDevice) + (k * c.srcHeight + i) * c.srcPitch,
                            c.WidthInBytes);
            }
        }
    });
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream s) {
    ENTER()
    return queue(s, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}

CUresult cuModuleLoadData(CUmodule* module, const void*) {
    ENTER(kind::unsafe_in_captures)
    ++control.modules;
    *module = reinterpret_cast<CUmodule>(1);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) {
    ENTER(kind::unsafe_in_captures)
    --control.modules;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) {
    ENTER()
    const std::string text(name);
    if (!control.knows_all && !has_loop(text)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *f = reinterpret_cast<CUfunction>(new function{text});
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr* at, std::size_t* bytes, CUmodule, const char*) {
    static int shared_bytes = 4096;
    *at = reinterpret_cast<CUdeviceptr>(&shared_bytes);
    *bytes = sizeof(shared_bytes);
    return control.knows_all ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
    *value = 90;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int, std::size_t) {
    *count = control.occupancy;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig*) {
    *count = 16;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream s, void** parameters, void**) {
    ENTER()
    ++control.launches;
    control.last_grid = blocks;
    work w = launch_of(reinterpret_cast<function*>(f)->name, blocks, parameters);
    if (!w && !control.knows_all) return CUDA_ERROR_NOT_SUPPORTED;
    return queue(s, [w = std::move(w)] {
        if (w) {
            w();
        }
        ++control.ended_launches;
    });
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** parameters, void** extra) {
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            ++control.early_launches;
        }
    }
    return cuLaunchKernel(f, c->gridDimX, 1, 1, c->blockDimX, 1, 1, c->sharedMemBytes, c->hStream, parameters, extra);
}

CUresult cuPointerGetAttribute(void* answer, CUpointer_attribute what, CUdeviceptr p) {
    const std::lock_guard lock(blocks_mutex);
    const block* const found = block_at(reinterpret_cast<void*>(p));
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (what) {
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *static_cast<CUdeviceptr*>(answer) = p;
            return found->device < 0 || found->device == device_of(current()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned*>(answer) = found->device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(answer) = found->device; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}
CUresult cuDeviceCanAccessPeer(int* value, CUdevice, CUdevice) {
    *value = has_links() ? 1 : 0;
    return CUDA_SUCCESS;
}

// --- NVRTC ---

struct pretended_program {
    std::string name;
};
nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "pretended"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* p, const char*, const char*, int, const char* const*, const char* const*) {
    *p = reinterpret_cast<nvrtcProgram>(new pretended_program);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
    delete reinterpret_cast<pretended_program*>(*p);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char* name) {
    reinterpret_cast<pretended_program*>(p)->name = name;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int count, const char* const* options) {
    ++control.compilations;
    if (has_links() && !has_loop(reinterpret_cast<pretended_program*>(p)->name)) {
        return NVRTC_ERROR_COMPILATION;
    }
    control.compilations_past_cache +=
        std::any_of(options, options + count, [](const char* o) { return std::strstr(o, "-dscm=cs") != nullptr; });
    return static_cast<nvrtcResult>(planned_failure(__func__));
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t* bytes) {
    *bytes = 1;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* text) {
    *text = 0;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char*, const char** name) {
    *name = reinterpret_cast<pretended_program*>(p)->name.c_str();
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t* bytes) {
    *bytes = 16;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* code) {
    std::memset(code, 1, 16);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, std::size_t* bytes) { return nvrtcGetCUBINSize(p, bytes); }
nvrtcResult nvrtcGetPTX(nvrtcProgram p, char* code) { return nvrtcGetCUBIN(p, code); }
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = 2;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* known) {
    known[0] = 75;
    known[1] = 90;
    return NVRTC_SUCCESS;
}

}  // extern "C"
