// SPDX-License-Identifier: MIT
// The few driver calls that tests make themselves: streams, captures, graphs.
#pragma once

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <cstddef>

struct CUstream_st;

namespace support {

/// With the primary context of the first GPU current.
struct driver {
    using stream = CUstream_st*;
    int (*stream_create)(stream*, unsigned);
    int (*stream_destroy)(stream);
    int (*stream_synchronize)(stream);
    int (*stream_wait)(stream, void*, unsigned);
    int (*event_create)(void**, unsigned);
    int (*event_record)(void*, stream);
    int (*begin_capture)(stream, int);
    int (*end_capture)(stream, void**);
    int (*instantiate)(void**, void*, unsigned long long);
    int (*graph_launch)(void*, stream);
    int (*node_count)(void*, void**, std::size_t*);
    int (*context_push)(void*);
    int (*context_pop)(void**);
    int (*primary_retain)(void**, int);
    template <class Function>
    static void load(Function& f, const char* name) {
        static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
        f = reinterpret_cast<Function>(::dlsym(library, name));
        REQUIRE((f != nullptr));
    }
    driver() {
        load(stream_create, "cuStreamCreate");
        load(stream_destroy, "cuStreamDestroy_v2");
        load(stream_synchronize, "cuStreamSynchronize");
        load(stream_wait, "cuStreamWaitEvent");
        load(event_create, "cuEventCreate");
        load(event_record, "cuEventRecord");
        load(begin_capture, "cuStreamBeginCapture_v2");
        load(end_capture, "cuStreamEndCapture");
        load(instantiate, "cuGraphInstantiateWithFlags");
        load(graph_launch, "cuGraphLaunch");
        load(node_count, "cuGraphGetNodes");
        load(context_push, "cuCtxPushCurrent_v2");
        load(context_pop, "cuCtxPopCurrent_v2");
        load(primary_retain, "cuDevicePrimaryCtxRetain");
        void* context = nullptr;
        REQUIRE(primary_retain(&context, 0) == 0);
        REQUIRE(context_push(context) == 0);
    }
};

}  // namespace support
