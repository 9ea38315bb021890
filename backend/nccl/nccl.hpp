// SPDX-License-Identifier: MIT
/// @file nccl.hpp
/// NCCL, found at run time: a program that is linked with this library starts where there is none. The few declarations that are
/// needed are written here, so that nothing but the library itself has to be installed; they are those of NCCL 2.14 and later.
#pragma once

#include <cstddef>
#include <string>

struct CUstream_st;

namespace otimes::backend {

struct nccl_communicator;  // ncclComm

/// ncclUniqueId: passed by value, as there.
struct nccl_identity {
    char bytes[128];
};

/// The head of ncclConfig_t as it was in 2.14; NCCL fills in what a newer one has.
struct nccl_configuration {
    std::size_t size = sizeof(nccl_configuration);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
};

constexpr int nccl_success = 0;
constexpr int nccl_in_progress = 7;
constexpr int nccl_bytes = 0;  ///< ncclInt8

struct nccl_functions {
    int (*get_unique_id)(nccl_identity*) = nullptr;
    int (*init_rank)(nccl_communicator**, int, nccl_identity, int, nccl_configuration*) = nullptr;
    int (*finalize)(nccl_communicator*) = nullptr;
    int (*destroy)(nccl_communicator*) = nullptr;
    int (*abort)(nccl_communicator*) = nullptr;
    int (*async_error)(nccl_communicator*, int*) = nullptr;
    const char* (*error_text)(int) = nullptr;
    int (*group_start)() = nullptr;
    int (*group_end)() = nullptr;
    int (*send)(const void*, std::size_t, int, int, nccl_communicator*, CUstream_st*) = nullptr;
    int (*receive)(void*, std::size_t, int, int, nccl_communicator*, CUstream_st*) = nullptr;
};

/// The loaded library, or nullptr with the reason in `why`. Tried once.
const nccl_functions* find_nccl(std::string* why);

}  // namespace otimes::backend
