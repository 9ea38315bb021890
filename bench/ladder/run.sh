#!/bin/sh
# Builds and climbs the ladder: sh bench/ladder/run.sh FOLDER [--brief]. Leaves FOLDER/ladder.csv and the picture FOLDER/ladder.svg. Without nvcc only
# the rungs of the CPU.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?"usage: sh bench/ladder/run.sh FOLDER [--brief]"}
shift
mkdir -p "$out"
eigen=${OTIMES_EIGEN_DIR:-/usr/include/eigen3}
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
failed=0
${CXX:-g++} -std=c++20 -O3 -march=native -fopenmp -I"$root/include" -isystem "$eigen" -o "$out/ladder_cpu" "$root/bench/ladder/ladder_cpu.cpp" || exit 1
echo "rung,ms,gflops,gbps_min,relerr,remark" >"$out/ladder.csv"
"$out/ladder_cpu" "$@" >>"$out/ladder.csv" || failed=1
if [ -x "$nvcc" ]; then
    "$nvcc" -std=c++20 -O3 -arch=native -I"$root/kernels" -o "$out/ladder_gpu" "$root/bench/ladder/ladder_gpu.cu" || exit 1
    "$out/ladder_gpu" >>"$out/ladder.csv" || failed=1
fi
awk -f "$root/bench/ladder/picture.awk" "$out/ladder.csv" >"$out/ladder.svg"
cat "$out/ladder.csv"
exit $failed
