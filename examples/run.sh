#!/bin/sh
# Builds and runs the examples on real data, after installing what is missing.
#
#   sh examples/run.sh                    the main job, gp_auto_mpg, then seattle_temperature
#   sh examples/run.sh all                every example in this folder
#   sh examples/run.sh NAME [ARGUMENT...] one example, with its arguments
#
# Exits with the code of the first example that fails. OTIMES_BUILD_DIR: build folder (default: build). OTIMES_JOBS, CXX and
# OTIMES_EIGEN_DIR as for tests/run.sh.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/prerequisites.sh

case ${1:-} in
    "" | all) ;;
    *) [ -f "examples/$1.cpp" ] || fail "There is no example $1 here, but $(cd examples && ls ./*.cpp | sed 's/^..//; s/.cpp$//' | tr '\n' ' ')and all." ;;
esac
require_tools compiler
folder=${OTIMES_BUILD_DIR:-build}/examples
mkdir -p "$folder"
cmake -G "$(generator)" -S . -B "$folder" -DCMAKE_BUILD_TYPE=Release -DOTIMES_BUILD_TESTS=OFF -DOTIMES_BUILD_BENCH=OFF \
    ${OTIMES_EIGEN_DIR:+"-DOTIMES_EIGEN_DIR=$OTIMES_EIGEN_DIR"} >"$folder/configure.log" 2>&1 || {
    cat "$folder/configure.log"
    fail "CMake could not configure the examples."
}

# build_examples ARGUMENT...: what CMake is to build.
build_examples() { cmake --build "$folder" -j "$(job_count)" "$@" || fail "The examples did not build."; }

names="gp_auto_mpg seattle_temperature"
if [ "${1:-}" = all ]; then
    build_examples
    for source in examples/*.cpp; do  # one that needs what is not here is not built
        name=$(basename "$source" .cpp)
        case " $names " in *" $name "*) continue ;; esac
        if [ -x "$folder/examples/$name" ]; then names="$names $name"; else echo "not built here: $name"; fi
    done
elif [ $# -gt 0 ]; then
    name=$1
    shift
    build_examples --target "example_$name"
    exec "$folder/examples/$name" "$@"
else
    build_examples --target example_gp_auto_mpg example_seattle_temperature
fi
for name in $names; do
    printf '\n== %s ==\n' "$name"
    "$folder/examples/$name" || exit
done
