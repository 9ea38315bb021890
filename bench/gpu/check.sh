#!/bin/sh
# Builds the checking program and runs it, kernels from both compilers: sh bench/gpu/check.sh OUTPUT_FOLDER [--sanitize]
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?"usage: sh bench/gpu/check.sh OUTPUT_FOLDER [--sanitize]"}
cuda=${CUDA_HOME:-/usr/local/cuda}
export LD_LIBRARY_PATH="$cuda/lib64:${LD_LIBRARY_PATH:-}"
mkdir -p "$out/images"
"$cuda/bin/nvcc" -std=c++20 -arch=sm_90 -cubin -I"$root/kernels" -o "$out/ahead_of_time.cubin" "$root/bench/gpu/ahead_of_time.cu" &
${CXX:-g++} -std=c++20 -O2 -Wall -Wextra -o "$out/gpu_kernels" "$root/bench/gpu/gpu_kernels.cpp" "$root/backend/core/fused_group.cpp" -I"$root/include" -I"$cuda/include" -L"$cuda/lib64" -L"$cuda/lib64/stubs" -lcuda -lnvrtc -ldl -pthread || exit 1
wait
"$out/gpu_kernels" "$root" --check --cache "$out/images" --ahead-of-time "$out/ahead_of_time.cubin" || failed=1
if [ "${2:-}" = --sanitize ]; then
    for tool in memcheck racecheck; do
        timeout 200 compute-sanitizer --tool $tool --print-limit 5 "$out/gpu_kernels" "$root" --check --brief --cache "$out/images" 2>&1 | grep -v '^ok' | tail -25
    done
fi
exit ${failed:-0}
