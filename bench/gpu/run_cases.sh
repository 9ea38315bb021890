#!/bin/sh
# Builds gpu_cases and runs it twice, with an empty cache of kernels and with a full one: sh bench/gpu/run_cases.sh OUTPUT_FOLDER [options of gpu_cases]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?"usage: sh bench/gpu/run_cases.sh OUTPUT_FOLDER [options of gpu_cases]"}
shift
mkdir -p "$out"
cmake -S "$root" -B "$out/build" -DOTIMES_CUDA=ON -DOTIMES_BUILD_TESTS=OFF -DOTIMES_BUILD_EXAMPLES=OFF -DOTIMES_BUILD_BENCH=ON >"$out/build.log" 2>&1
cmake --build "$out/build" --target bench_gpu_cases -j "$(nproc)" >>"$out/build.log" 2>&1 || { tail -30 "$out/build.log"; exit 1; }
export XDG_CACHE_HOME="$out/cache"
rm -rf "$XDG_CACHE_HOME"
mkdir -p "$XDG_CACHE_HOME"
chmod 700 "$XDG_CACHE_HOME"
"$out/build/bench/gpu/gpu_cases" "$root" --csv "$out/first.csv" "$@" >"$out/first.txt"
exec "$out/build/bench/gpu/gpu_cases" "$root" --csv "$out/cases.csv" "$@"
