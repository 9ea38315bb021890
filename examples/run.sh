#!/bin/sh
# Builds and runs the examples on real data, after installing what is missing.
#
#   sh examples/run.sh                    the main job, gp_auto_mpg, then seattle_temperature
#   sh examples/run.sh NAME [ARGUMENT...] one example, with its arguments
#
# Exits with the code of the first example that fails. OTIMES_BUILD_DIR: build folder (default: build). OTIMES_JOBS, CXX and
# OTIMES_EIGEN_DIR as for tests/run.sh.
set -u
cd "$(dirname "$0")/.." || exit 1
. cmake/prerequisites.sh

require_tools compiler
folder=${OTIMES_BUILD_DIR:-build}/examples
mkdir -p "$folder"
cmake -G "$(generator)" -S . -B "$folder" -DCMAKE_BUILD_TYPE=Release -DOTIMES_BUILD_TESTS=OFF -DOTIMES_BUILD_BENCH=OFF \
    ${OTIMES_EIGEN_DIR:+"-DOTIMES_EIGEN_DIR=$OTIMES_EIGEN_DIR"} >"$folder/configure.log" 2>&1 || {
    cat "$folder/configure.log"
    fail "CMake could not configure the examples."
}
cmake --build "$folder" -j "$(job_count)" || fail "The examples did not build."

if [ $# -gt 0 ]; then
    name=$1
    shift
    exec "$folder/examples/$name" "$@"
fi
for name in gp_auto_mpg seattle_temperature; do
    printf '\n== %s ==\n' "$name"
    "$folder/examples/$name" || exit
done
