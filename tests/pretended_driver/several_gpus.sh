#!/bin/sh
# The transport of several GPUs on the driver whose GPUs are the host (driver.cpp): tests/distributed/gpus.cpp and captures.cpp with two and
# three of them, by stores into each other's memory and by messages of a pretended NCCL. Streams are threads, so that the thread sanitizer, where the compiler has it, sees what no event
# orders. Left out are the cases that ask for kernels which store into peers.
#
#   several_gpus.sh ROOT CMAKE COMPILER [FLAG...]
set -u
. "$(dirname "$0")/build.sh"

sanitized="-fsanitize=thread"
takes "$1" "$sanitized" || sanitized=""
# Some versions of that sanitizer end where the system puts things at addresses that they do not expect.
still="setarch $(uname -m) -R"
$still true 2>/dev/null || still=""

driver "$sanitized" "$@"
distributed=$root/backend/distributed
# shellcheck disable=SC2086
compile "$@" -w -O1 $sanitized "-I$root" "-I$root/tests" "-I$root/include" "-I$root/backend" "-I$root/backend/cuda" \
    "$root/tests/support/main.cpp" "$root/tests/distributed/gpus.cpp" "$root/tests/distributed/captures.cpp" "$distributed/communicator.cpp" "$distributed/host_transport.cpp" \
    "$root/backend/nccl/gpu_transport.cpp" "$root/backend/nccl/nccl.cpp" "$root/backend/none/no_mpi.cpp" $back_end -o "$work/tests" -ldl -pthread

export LD_LIBRARY_PATH="$work" OTIMES_NCCL_LIBRARY="$work/libcuda.so.1" XDG_CACHE_HOME="$work/cache" OMP_NUM_THREADS=1
export PRETENDED_LINKS=1 PRETENDED_JITTER=50
failed=0
for gpus in 2 3; do
    # shellcheck disable=SC2086
    PRETENDED_GPUS=$gpus $still "$work/tests" \
        --test-case-exclude='stages that begin*,a pass leaves*,products in a row*' >"$work/said" 2>&1 || failed=1
    head -c 20000 "$work/said"
    if grep -q "there is no GPU" "$work/said"; then failed=1; fi
done
exit $failed
