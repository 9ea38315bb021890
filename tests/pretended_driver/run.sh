#!/bin/sh
# Compiles backend/cuda as it is and runs it on a driver whose GPUs are the host (driver.cpp), under the address and undefined-behaviour
# sanitizers where the compiler has them: with one GPU, with three, with one of before and of after all capabilities of the table,
# and with one without memory pools.
#
#   run.sh ROOT CMAKE COMPILER [FLAG...]
set -u
root=$1
cmake=$2
shift 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# compile [FLAG or SOURCE...]: by the compiler, with its flags in front.
compile() {
    "$@" >"$work/log" 2>&1 || {
        head -n 40 "$work/log"
        exit 1
    }
}

sanitized="-fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=undefined"
echo 'int main() {}' >"$work/empty.cpp"
# shellcheck disable=SC2086
if ! "$1" $sanitized "$work/empty.cpp" -o "$work/empty" 2>/dev/null || ! "$work/empty"; then sanitized=""; fi

"$cmake" -D "folder=$root/kernels" -D "output=$work/kernel_sources.cpp" -P "$root/backend/cuda/embed_kernels.cmake" || exit 1
compile "$@" -w -O1 -fPIC -shared "-I$root/tests" "-I$root/include" "-I$root/kernels" "$root/tests/pretended_driver/driver.cpp" \
    -o "$work/libcuda.so.1" -pthread
ln -s libcuda.so.1 "$work/libnvrtc.so.13" # the same library, which fails where it is told to
cuda=$root/backend/cuda
# shellcheck disable=SC2086
compile "$@" -w -O0 $sanitized "-I$root" "-I$root/tests" "-I$root/include" "-I$root/backend" "-I$cuda" \
    "$root/tests/support/main.cpp" "$root"/tests/pretended_driver/host_side*.cpp "$cuda/driver.cpp" "$cuda/kernel_store.cpp" \
    "$cuda/device.cpp" "$cuda/executor.cpp" "$cuda/executor_memory.cpp" "$cuda/prepare.cpp" "$cuda/process_executors.cpp" \
    "$cuda/receipt.cpp" "$cuda/streaming.cpp" "$cuda/tuning.cpp" "$cuda/runtime_compiler.cpp" \
    "$root/backend/make_executor.cpp" "$root"/backend/core/*.cpp "$work/kernel_sources.cpp" -o "$work/tests" -ldl -pthread

# Nothing is told of what lives as long as the process.
export LD_LIBRARY_PATH="$work" XDG_CACHE_HOME="$work/cache" ASAN_OPTIONS=detect_leaks=0
failed=0
"$work/tests" --test-case-exclude='*[gpus]*,*[no pools]*,*[old]*,*[new]*' || failed=1
PRETENDED_GPUS=3 "$work/tests" --test-case='*[gpus]*' || failed=1
PRETENDED_CAPABILITY=70 "$work/tests" --test-case='*[old]*' || failed=1
PRETENDED_CAPABILITY=135 "$work/tests" --test-case='*[new]*' || failed=1
PRETENDED_NO_POOLS=1 "$work/tests" --test-case='*[no pools]*' || failed=1
exit $failed
