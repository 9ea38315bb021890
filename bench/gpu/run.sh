#!/bin/sh
# Builds the measuring program and runs it: sh bench/gpu/run.sh OUTPUT_FOLDER [options of gpu_kernels]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?"usage: sh bench/gpu/run.sh OUTPUT_FOLDER [options of gpu_kernels]"}
shift
cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$out"
${CXX:-g++} -std=c++20 -O2 -Wall -Wextra -o "$out/gpu_kernels" "$root/bench/gpu/gpu_kernels.cpp" "$root/backend/core/fused_group.cpp" -I"$root/include" -I"$cuda/include" -L"$cuda/lib64" -L"$cuda/lib64/stubs" -lcuda -lnvrtc -ldl -pthread
LD_LIBRARY_PATH="$cuda/lib64:${LD_LIBRARY_PATH:-}" exec "$out/gpu_kernels" "$root" "$@"
