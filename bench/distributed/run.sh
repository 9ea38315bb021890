#!/bin/sh
# run.sh FOLDER: builds the tests and the benchmark of several GPUs in FOLDER, runs both, and leaves results there. For a machine
# with a CUDA toolkit, two or more GPUs and NCCL (its folder in LD_LIBRARY_PATH, or its file in OTIMES_NCCL_LIBRARY).
set -u
folder=${1:?"usage: sh bench/distributed/run.sh FOLDER"}
source=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder"
cmake -S "$source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DOTIMES_CUDA=ON -DOTIMES_BUILD_EXAMPLES=OFF \
    ${OTIMES_DOCTEST_DIR:+"-DOTIMES_DOCTEST_DIR=$OTIMES_DOCTEST_DIR"} >"$folder/configure.log" 2>&1 || {
    cat "$folder/configure.log"
    exit 1
}
cmake --build "$folder/build" -j "$(nproc)" --target test_distributed bench_distributed >"$folder/build.log" 2>&1 || {
    grep -E "error|Error" "$folder/build.log" | head -n 20
    exit 1
}
echo "built"
NCCL_NVLS_ENABLE=0
export NCCL_NVLS_ENABLE
timeout "${OTIMES_TEST_SECONDS:-120}" "$folder/build/tests/test_distributed" '--test-case=*[gpus]*' 2>&1 | tee "$folder/tests.txt" | tail -n 40
timeout "${OTIMES_BENCH_SECONDS:-300}" "$folder/build/bench/distributed/bench_distributed" 2>&1 | tee "$folder/distributed.csv"

if command -v mpirun >/dev/null 2>&1; then
    timeout 60 mpirun --allow-run-as-root --bind-to none -np 4 "$folder/build/bench/distributed/bench_distributed" 2>&1 |
        tee "$folder/distributed_mpi.csv"
fi
