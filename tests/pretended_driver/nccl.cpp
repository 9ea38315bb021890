// SPDX-License-Identifier: MIT
// An NCCL between the pretended GPUs of one process: a message is a copy that waits on the receiver's stream for the sender's, and holds both until it
// is done. What is not answered waits until its communicator is aborted.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/nccl/nccl.hpp"

#include "streams.hpp"

namespace {

using otimes::backend::nccl_configuration;
using otimes::backend::nccl_identity;

constexpr int wrong_argument = 4;

struct message {
    const void* data = nullptr;
    std::size_t bytes = 0;
    bool done = false;
};

/// The ranks that have one identity.
struct world {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<message>>> sent;  ///< from, to
    std::vector<bool> aborted;
    int error = 0;  ///< of all ranks
};

std::mutex worlds_mutex;
auto& worlds = *new std::map<std::string, std::shared_ptr<world>>;

struct rank_of {
    std::shared_ptr<world> in;
    int rank = 0;
};
rank_of* of(otimes::backend::nccl_communicator* c) { return reinterpret_cast<rank_of*>(c); }

struct operation {
    rank_of* rank = nullptr;
    bool sends = false;
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    int peer = 0;
    CUstream stream = nullptr;
};
thread_local int depth = 0;
thread_local std::vector<operation> group;

/// All messages of a rank in a group go on at the same time.
void exchange(const std::shared_ptr<world>& in, int rank, const std::vector<operation>& all) {
    std::unique_lock lock(in->mutex);
    const auto mine = static_cast<std::size_t>(rank);
    std::vector<std::shared_ptr<message>> own;
    for (const operation& o : all) {
        if (o.sends) {
            own.push_back(std::make_shared<message>(message{o.from, o.bytes, false}));
            in->sent[{rank, o.peer}].push_back(own.back());
        }
    }
    in->changed.notify_all();
    for (const operation& o : all) {
        if (o.sends) {
            continue;
        }
        auto& box = in->sent[{o.peer, rank}];
        in->changed.wait(lock, [&] { return in->aborted[mine] || !box.empty(); });
        if (in->aborted[mine]) {
            return;
        }
        const std::shared_ptr<message> m = box.front();
        box.pop_front();
        if (m->bytes != o.bytes) {
            in->error = wrong_argument;
        } else {
            std::memcpy(o.to, m->data, o.bytes);
        }
        m->done = true;
        in->changed.notify_all();
    }
    for (const std::shared_ptr<message>& m : own) {
        in->changed.wait(lock, [&] { return in->aborted[mine] || m->done; });
    }
}

int end_group() {
    std::map<std::pair<rank_of*, CUstream>, std::vector<operation>> parts;
    for (const operation& o : group) {
        parts[{o.rank, o.stream}].push_back(o);
    }
    group.clear();
    for (const auto& [where, all] : parts) {
        pretended::put_on_stream(where.second,
                                 [in = where.first->in, rank = where.first->rank, all] { exchange(in, rank, all); });
    }
    return 0;
}

int add(const operation& o) {
    group.push_back(o);
    return depth == 0 ? end_group() : 0;
}

}  // namespace

extern "C" {

int ncclGetUniqueId(nccl_identity* id) {
    static std::atomic<int> number{0};
    std::memset(id->bytes, 0, sizeof(id->bytes));
    const std::string text = "pretended " + std::to_string(++number);
    std::memcpy(id->bytes, text.data(), text.size());
    return 0;
}
int ncclCommInitRankConfig(otimes::backend::nccl_communicator** c, int size, nccl_identity id, int rank,
                           nccl_configuration*) {
    const std::lock_guard lock(worlds_mutex);
    std::shared_ptr<world>& in = worlds[std::string(id.bytes, sizeof(id.bytes))];
    if (!in) {
        in = std::make_shared<world>();
        in->aborted.resize(static_cast<std::size_t>(size));
    }
    *c = reinterpret_cast<otimes::backend::nccl_communicator*>(new rank_of{in, rank});
    return 0;
}
int ncclCommFinalize(otimes::backend::nccl_communicator*) { return 0; }
int ncclCommDestroy(otimes::backend::nccl_communicator* c) {
    delete of(c);
    return 0;
}
int ncclCommAbort(otimes::backend::nccl_communicator* c) {
    {
        const std::lock_guard lock(of(c)->in->mutex);
        of(c)->in->aborted[static_cast<std::size_t>(of(c)->rank)] = true;
    }
    of(c)->in->changed.notify_all();
    delete of(c);
    return 0;
}
int ncclCommGetAsyncError(otimes::backend::nccl_communicator* c, int* state) {
    const std::lock_guard lock(of(c)->in->mutex);
    *state = of(c)->in->error;
    return 0;
}
const char* ncclGetErrorString(int) { return "pretended"; }
int ncclGroupStart() {
    ++depth;
    return 0;
}
int ncclGroupEnd() { return --depth == 0 ? end_group() : 0; }
int ncclSend(const void* data, std::size_t bytes, int, int peer, otimes::backend::nccl_communicator* c,
             CUstream_st* s) {
    return add({of(c), true, data, nullptr, bytes, peer, s});
}
int ncclRecv(void* data, std::size_t bytes, int, int peer, otimes::backend::nccl_communicator* c, CUstream_st* s) {
    return add({of(c), false, nullptr, data, bytes, peer, s});
}

}  // extern "C"
