#!/bin/sh
# Builds and runs the tests, after installing what is missing.
#
#   sh tests/run.sh         the tests, in ten minutes on two cores: expressions, programs, plans, the CPU executor, errors, laws, and products over
#                           ranks (docs/decisions/0013)
#   sh tests/run.sh full    the tests, and then the others: what stands for devices, what must not compile, each header alone, the other variants;
#                           the suite by clang++ without assertions, under the address and undefined-behaviour sanitizers; exhaustive
#                           checks and mutations; all examples; examples and benchmarks with warnings as errors; the front end by g++; format and lint
#   sh tests/run.sh added   only what `full` adds
#
# OTIMES_JOBS: number of jobs (default: the processors). OTIMES_BUILD_DIR: build folder (default: build). CXX: the compiler.
# OTIMES_EIGEN_DIR, OTIMES_DOCTEST_DIR: another Eigen, another doctest. OTIMES_TEST_SECONDS: after so many, what is left of the long form is
# not run, and named at the end. Further arguments go to ctest, e.g. -R laws.
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
left_out=""
only=""
launcher=""
if command -v ccache >/dev/null 2>&1; then launcher="-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"; fi

# section TITLE...: a heading in the output, with the minutes since the beginning.
began=$(date +%s)
section() { printf '\n== %s == (%d min)\n' "$*" $((($(date +%s) - began) / 60)); }

# limited COMMAND...: runs it, in the long form until OTIMES_TEST_SECONDS are over; 124 then.
limit=""
limited() {
    if [ -z "$limit" ]; then
        "$@"
        return
    fi
    seconds=$((limit - ($(date +%s) - began)))
    if [ "$seconds" -le 0 ]; then return 124; fi
    timeout -k 30 "$seconds" "$@"
}

# ended STATUS PART: notes a part of the run that failed, or that time did not suffice for.
ended() {
    case $1 in
        0) ;;
        124) left_out="$left_out $2" ;;
        *) failed="$failed $2" ;;
    esac
    return "$1"
}

# configure PRESET [ARGUMENT...]: a preset of CMakePresets.json, in $builds/PRESET.
configure() {
    preset=$1
    shift
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
    return 0
}

# build PRESET [ARGUMENT...]: configures and builds it; of it $only, where that is set.
build() {
    section "build: $1${only:+ $only}"
    configure "$@" || return 1
    # shellcheck disable=SC2086
    limited cmake --build "$builds/$1" -j "$jobs" ${only:+--target $only}
    ended $? "build:$1"
}

# check PRESET [ARGUMENT OF CTEST...]: runs the tests of a built preset.
check() {
    preset=$1
    shift
    section "test: $preset $*"
    {
        limited ctest --test-dir "$builds/$preset" --output-on-failure -j "$jobs" "$@"
        echo $? >"$builds/status"
    } | tee "$builds/$preset.tests"
    status=$(cat "$builds/status")
    if [ "$status" = 124 ] && grep -q '\*\*\*\(Failed\|Timeout\|Exception\)' "$builds/$preset.tests"; then status=1; fi
    ended "$status" "test:$preset"
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

# The front end is compiled by clang++ where there is one with sanitizers that run.
front=""
if [ -z "${CXX:-}" ] && echo 'int main() {}' | clang++ -fsanitize=address,undefined -x c++ - -o "$builds/sanitized" 2>/dev/null &&
    "$builds/sanitized" 2>/dev/null; then
    front=clang-asan-ubsan
fi

if [ "$mode" != added ]; then
    only=default_tests
    build tests "-DOTIMES_TEST_WITHOUT=${front:+adapt}" && check tests -LE 'long|rest' --no-tests=error "$@"
    only=""
fi

if [ "$mode" != default ]; then
    limit=${OTIMES_TEST_SECONDS:-}
    check_format

    if command -v clang-tidy >/dev/null 2>&1; then
        section "lint: clang-tidy on all headers, and on the shortest file of each room for what it instantiates of them"
        mkdir -p "$builds/lint" # the commands without what only g++ knows
        configure tests -DOTIMES_TEST_WITHOUT=
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

    # What most changes break comes first, for a run whose time is limited. Where there is a clang++ it has room adapt, for which g++ takes
    # longer (docs/decisions/0011), and each header alone.
    # shellcheck disable=SC2086
    build tests "-DOTIMES_TEST_WITHOUT=${front:+adapt}" && check tests -L rest -LE long ${front:+-E ^headers} "$@"
    if [ -n "$front" ]; then
        # without what the compiler does not change: scripts, programs outside the tree, and NVRTC
        build $front && check $front -LE long -E '^(docs|layers|install|mutation_text|cuda_hidden|runtime_compiler)' "$@"
    else
        section "clang++: skipped, there is none with sanitizers"
    fi

    if build release -DOTIMES_BUILD_TESTS=OFF; then
        for source in examples/*.cpp; do # one that needs what is not here is not built
            program="$builds/release/examples/$(basename "$source" .cpp)"
            if [ -x "$program" ]; then
                section "example: $(basename "$source" .cpp)"
                limited "$program"
                ended $? "$(basename "$source" .cpp)"
            fi
        done
    fi

    # shellcheck disable=SC2086
    build tests "-DOTIMES_TEST_WITHOUT=${front:+adapt}" && check tests -L long ${front:+-E ^headers} "$@"

    if [ -n "$front" ]; then
        only=test_kernels # their text on the host is for g++ alone
        build asan-ubsan && check asan-ubsan -R '^kernels$' "$@"
        only=""
        build tests -DOTIMES_TEST_WITHOUT= && check tests -L front "$@"
    else
        build asan-ubsan && check asan-ubsan -LE long "$@"
    fi
fi

if [ -n "$left_out" ]; then
    section "not run to the end, since the time was over:$left_out"
fi
if [ -n "$failed" ]; then
    section "failed:$failed"
    exit 1
fi
if [ "$mode" = default ]; then
    section "passed; \`sh tests/run.sh full\` adds what stands for devices, further variants, the sanitizers and the long checks"
fi
