#!/bin/sh
# Compiles backend/cuda as it is and runs it on a driver whose GPUs are the host (driver.cpp), under the address and undefined-behaviour
# sanitizers where the compiler has them: with one GPU, with three, with one of before and of after all capabilities of the table,
# and with one without memory pools.
#
#   run.sh ROOT CMAKE COMPILER [FLAG...]
set -u
. "$(dirname "$0")/build.sh"

sanitized="-fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=undefined"
takes "$1" "$sanitized" || sanitized=""

driver "" "$@"
# shellcheck disable=SC2086
compile "$@" -w -O0 $sanitized "-I$root" "-I$root/tests" "-I$root/include" "-I$root/backend" "-I$root/backend/cuda" \
    "$root/tests/support/main.cpp" "$root"/tests/pretended_driver/host_side*.cpp $back_end -o "$work/tests" -ldl -pthread

# Nothing is told of what lives as long as the process.
export LD_LIBRARY_PATH="$work" XDG_CACHE_HOME="$work/cache" ASAN_OPTIONS=detect_leaks=0
failed=0
"$work/tests" --test-case-exclude='*[gpus]*,*[no pools]*,*[old]*,*[new]*' || failed=1
PRETENDED_GPUS=3 "$work/tests" --test-case='*[gpus]*' || failed=1
PRETENDED_CAPABILITY=70 "$work/tests" --test-case='*[old]*' || failed=1
PRETENDED_CAPABILITY=135 "$work/tests" --test-case='*[new]*' || failed=1
PRETENDED_NO_POOLS=1 "$work/tests" --test-case='*[no pools]*' || failed=1
exit $failed
