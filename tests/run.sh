#!/bin/sh
# Builds and runs the tests, after installing what is missing.
#
#   sh tests/run.sh         the tests                                 (10 to 11 minutes on two cores, nothing cached; more on slow ones)
#   sh tests/run.sh full    the tests, and then the long ones: exhaustive checks, all examples, the suite under the address and
#                           undefined-behaviour sanitizers, and by clang++ without assertions; examples and benchmarks with warnings as
#                           errors; format and lint (52 minutes more beside other work, partly from a compiler cache)
#   sh tests/run.sh added   only what `full` adds
#
# OTIMES_JOBS: number of jobs (default: the processors). OTIMES_BUILD_DIR: build folder (default: build). CXX: the compiler.
# OTIMES_EIGEN_DIR, OTIMES_DOCTEST_DIR: another Eigen, another doctest. Further arguments go to ctest, e.g. -R laws.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/prerequisites.sh

mode=default
case ${1:-} in
    full | added | default)
        mode=$1
        shift
        ;;
    -* | "") ;;
    *) fail "usage: sh tests/run.sh [full | added] [argument of ctest...]" ;;
esac

require_tools doctest
want_mpi
jobs=$(job_count)
builds=${OTIMES_BUILD_DIR:-build}
failed=""
launcher=""
if command -v ccache >/dev/null 2>&1; then launcher="-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"; fi

# section TITLE...: a heading in the output, with the minutes since the beginning.
began=$(date +%s)
section() { printf '\n== %s == (%d min)\n' "$*" $((($(date +%s) - began) / 60)); }

# build PRESET [ARGUMENT...]: configures and builds a preset of CMakePresets.json in $builds/PRESET.
build() {
    preset=$1
    shift
    section "build: $preset"
    # shellcheck disable=SC2086
    cmake --preset "$preset" -G "$(generator)" -B "$builds/$preset" $launcher \
        ${OTIMES_EIGEN_DIR:+"-DOTIMES_EIGEN_DIR=$OTIMES_EIGEN_DIR"} \
        ${OTIMES_DOCTEST_DIR:+"-DOTIMES_DOCTEST_DIR=$OTIMES_DOCTEST_DIR"} "$@" >"$builds/$preset.log" 2>&1 ||
        {
            cat "$builds/$preset.log"
            failed="$failed configure:$preset"
            return 1
        }
    grep -E '^-- (otimes|The CXX compiler)|^CMake Warning' "$builds/$preset.log"
    cmake --build "$builds/$preset" -j "$jobs" || {
        failed="$failed build:$preset"
        return 1
    }
}

# check PRESET [ARGUMENT OF CTEST...]: runs the tests of a built preset.
check() {
    preset=$1
    shift
    section "test: $preset $*"
    ctest --test-dir "$builds/$preset" --output-on-failure -j "$jobs" "$@" || failed="$failed test:$preset"
}

# check_format: clang-format's releases differ in what they write; the sources follow the 14th.
check_format() {
    formatter=""
    for candidate in clang-format-14 clang-format; do
        if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then formatter=$candidate; fi
    done
    if [ -z "$formatter" ]; then
        section "format: skipped, there is no clang-format 14"
        return
    fi
    section "format"
    find include backend kernels tests examples bench \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) \
        2>/dev/null | sort | {
        status=0
        while IFS= read -r file; do
            if ! "$formatter" "$file" | cmp -s - "$file"; then
                echo "not formatted: $file    (clang-format -i $file)"
                status=1
            fi
        done
        exit $status
    } || failed="$failed format"
}

mkdir -p "$builds"

if [ "$mode" != added ]; then
    build tests && check tests -LE long --no-tests=error "$@"
fi

if [ "$mode" != default ]; then
    check_format
    if [ "$mode" = added ]; then build tests; fi
    check tests -L long "$@"

    if command -v clang-tidy >/dev/null 2>&1; then
        section "lint: clang-tidy on all headers, and on the shortest file of each room for what it instantiates of them"
        mkdir -p "$builds/lint" # the commands without what only g++ knows
        sed 's/ --param ggc-min-heapsize=[0-9]*//g; s/ -Wno-maybe-uninitialized//g; s/ -Winvalid-pch//g; s/ -include [^ ]*cmake_pch\.hxx//g' \
            "$builds/tests/compile_commands.json" >"$builds/lint/compile_commands.json"
        # all headers, but the one that needs nvcc, with the folders that the room expr has
        find include/otimes -name '*.hpp' ! -path '*/adapt/thrust.hpp' | sort | sed 's|^include/\(.*\)|#include <\1>|' >"$builds/lint/headers.cpp"
        folders=$(grep -m 1 '"command": .*/tests/expr/' "$builds/lint/compile_commands.json" | grep -oE '(-isystem |-I|-std=)[^ ]+' | tr '\n' ' ')
        # shellcheck disable=SC2086
        clang-tidy --quiet --config-file=.clang-tidy "$builds/lint/headers.cpp" -- $folders 2>"$builds/lint/log" ||
            {
                cat "$builds/lint/log"
                failed="$failed lint:headers"
            }
        for room in support_test program plan expr exec adapt errors laws; do
            find "tests/$room" -name '*.cpp' -exec wc -c '{}' + 2>/dev/null | grep -v ' total$' | sort -n | awk 'NR == 1 { print $2 }'
        done | xargs -P "$jobs" -I '{}' sh -c \
            'echo "$1"; clang-tidy --quiet -p "$2/lint" "$1" 2>"$2/lint/log.$$" || { cat "$2/lint/log.$$"; exit 1; }' lint '{}' "$builds" ||
            failed="$failed lint"
    else
        section "lint: skipped, there is no clang-tidy"
    fi

    if build release -DOTIMES_BUILD_TESTS=OFF; then
        for source in examples/*.cpp; do # one that needs what is not here is not built
            program="$builds/release/examples/$(basename "$source" .cpp)"
            if [ -x "$program" ]; then
                section "example: $(basename "$source" .cpp)"
                "$program" || failed="$failed $(basename "$source" .cpp)"
            fi
        done
    fi

    build asan-ubsan && check asan-ubsan -LE long "$@"

    if command -v clang++ >/dev/null 2>&1; then
        # without what the compiler does not change: scripts, programs outside the tree, and NVRTC
        build clang-release &&
            check clang-release -LE long -E '^(docs|layers|install|mutation_text|cuda_hidden|runtime_compiler)' "$@"
    else
        section "clang++: skipped, there is none"
    fi
fi

if [ -n "$failed" ]; then
    section "failed:$failed"
    exit 1
fi
