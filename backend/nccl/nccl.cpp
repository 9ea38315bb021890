// SPDX-License-Identifier: MIT
#include "nccl.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace otimes::backend {

namespace {

struct loaded_nccl {
    nccl_functions functions;
    bool usable = false;
    std::string reason;
};

template <class Function>
bool load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

loaded_nccl load_nccl() {
    loaded_nccl result;
    // Multicast over NVLink shares state with other users of a switch, and messages between pairs do not need it.
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    const char* const given = ::secure_getenv("OTIMES_NCCL_LIBRARY");  // not of who calls a setuid program
    void* const library = ::dlopen(given != nullptr ? given : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // never unloaded
    if (library == nullptr) {
        result.reason = std::string("NCCL (") + (given != nullptr ? given : "libnccl.so.2") +
                        ") was not found; install it, or name the file in OTIMES_NCCL_LIBRARY";
        return result;
    }
    nccl_functions& f = result.functions;
    result.usable = load(library, "ncclGetUniqueId", f.get_unique_id) &&
                    load(library, "ncclCommInitRankConfig", f.init_rank) &&
                    load(library, "ncclCommFinalize", f.finalize) && load(library, "ncclCommDestroy", f.destroy) &&
                    load(library, "ncclCommAbort", f.abort) && load(library, "ncclCommGetAsyncError", f.async_error) &&
                    load(library, "ncclGetErrorString", f.error_text) &&
                    load(library, "ncclGroupStart", f.group_start) && load(library, "ncclGroupEnd", f.group_end) &&
                    load(library, "ncclSend", f.send) && load(library, "ncclRecv", f.receive);
    if (!result.usable) {
        result.reason = "the NCCL that was found is older than 2.14";
    }
    return result;
}

}  // namespace

const nccl_functions* find_nccl(std::string* why) {
    static const loaded_nccl loaded = load_nccl();
    if (!loaded.usable && why != nullptr) {
        *why = loaded.reason;
    }
    return loaded.usable ? &loaded.functions : nullptr;
}

}  // namespace otimes::backend
