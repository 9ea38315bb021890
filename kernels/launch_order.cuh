// SPDX-License-Identifier: MIT
// A kernel that may be placed on the multiprocessors while the one before it still runs (programmatic dependent launch).
//
// Contract: after after_earlier_launches() everything that was launched before this kernel on its stream is done and visible to
// it; the blocks of the next such kernel may take what room this one leaves. These are its two halves: wait_for_earlier_launches, and
// let_later_launches_begin for a kernel that lets them in later, or when it ends.
// Requires: every thread calls it before its first access to device memory; arguments may be read earlier, and what the launch in front does not
// write (tile_memory.cuh: factors_ready): since that one has called it before it let this one begin, everything before it is visible.
// Below compute capability 9.0 empty: there a kernel never begins before the one in front of it has ended.
#pragma once
#include "device_language.cuh"

namespace otimes::kernels {

#ifndef OTIMES_HOST_DEVICE  // tests/kernels/host_device.hpp

__device__ __forceinline__ void wait_for_earlier_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_later_launches_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif

__device__ __forceinline__ void after_earlier_launches() {
    wait_for_earlier_launches();
    let_later_launches_begin();
}

}  // namespace otimes::kernels
