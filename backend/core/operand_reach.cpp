// SPDX-License-Identifier: MIT
#include "operand_reach.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>

namespace otimes::backend {

namespace {

std::string text_of(const void* address) {
    std::array<char, 2 * sizeof(address)> digits{};
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), reinterpret_cast<std::uintptr_t>(address), 16).ptr;
    return "0x" + std::string(digits.data(), end);
}

const char* name_of(tensor_role role) {
    switch (role) {
        case tensor_role::input: return "X";
        case tensor_role::output: return "Y";
        case tensor_role::factor: return "a factor";
        case tensor_role::temporary: break;
    }
    return "an operand";
}

}  // namespace

bool host_reads(const void* address) noexcept {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return true;  // nothing is known: as if it were the host's
    }
    const bool readable = ::write(ends[1], address, 1) == 1;  // EFAULT where a load would fault
    ::close(ends[0]);
    ::close(ends[1]);
    return readable;
}

std::string refusal_of(tensor_role role, const void* address, reach found) {
    const std::string what = std::string("otimes: ") + name_of(role) + ", at " + text_of(address) + ", ";
    switch (found) {
        case reach::here: break;
        case reach::nowhere:
            return std::string("otimes: ") + name_of(role) +
                   " is a null pointer. Give device_map, as_matrix or batched an address of device memory.";
        case reach::host_memory:
            return what +
                   "is in host memory, which this GPU does not reach. Copy it, DeviceMatrix<Scalar> dX(X), or give "
                   "device_map, as_matrix or batched an address of device, managed or page-locked memory.";
        case reach::other_address:
            return what +
                   "is page-locked host memory that this GPU does not reach by that address. Register it with "
                   "cudaHostRegisterMapped and map what cudaHostGetDevicePointer gives, or copy it to a DeviceMatrix.";
        case reach::other_gpu:
            return what +
                   "is in the memory of another GPU, which this one does not reach. Copy a DeviceMatrix by way of the "
                   "host, DeviceMatrix<Scalar> dX(other.to_host(), executor); memory of cudaMalloc is reached after "
                   "cudaDeviceEnablePeerAccess.";
    }
    return what + "is within reach.";
}

std::string refusal_of_alignment(tensor_role role, const void* address, std::int64_t element_bytes) {
    return std::string("otimes: ") + name_of(role) + ", at " + text_of(address) +
           ", is not aligned to its elements of " + std::to_string(element_bytes) +
           " bytes, which kernels read at once. Give device_map, as_matrix or batched an address that is a multiple of "
           "sizeof(Scalar).";
}

std::string refusal_of_workspace(const void* address, reach found) {
    const std::string what = "otimes: the workspace, at " + text_of(address) + ", ";
    if (found == reach::here) {
        return what + "is not aligned to " + std::to_string(workspace_alignment) + " bytes.";
    }
    return what +
           "is where this GPU does not reach. Give plan.run device memory of this GPU, such as that of a DeviceMatrix, "
           "or no "
           "workspace: then the executor's own is taken.";
}

}  // namespace otimes::backend
