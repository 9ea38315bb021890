#!/bin/sh
# Runs the kernels of measured tiles on the host (fused.hpp): every fourth of the planner's table, or all with OTIMES_TEST_ALL_TILES=1.
#
#   run.sh ROOT COMPILER [FLAG, OBJECT or LIBRARY...]
set -u
root=$1
shift
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
"$@" "-I$root/include" "-I$root/backend" "$root/tests/kernels/tiles/list_tiles.cpp" -o "$work/list" \
    >"$work/log" 2>&1 || {
    head -n 40 "$work/log"
    exit 1
}
OTIMES_TILES="$work/all" "$work/list" || exit 1
every=4
if [ "${OTIMES_TEST_ALL_TILES:-0}" = 1 ]; then every=1; fi
awk -v every="$every" 'NR % every == 0' "$work/all" | split -l 10 - "$work/part."
failed=0
for part in "$work"/part.*; do
    {
        echo '#include "kernels/fused.hpp"'
        echo 'namespace kernel_tests {'
        awk '{ name = $0; gsub(/otimes::kernels::/, "", name)
               printf "TEST_CASE(\"%s\") { check_group<otimes::kernels::%s>(\"\"); }\n", name, $0 }' "$part"
        echo '}  // namespace kernel_tests'
    } >"$work/tests.cpp"
    "$@" "-I$root/include" "-I$root/kernels" "$work/tests.cpp" -o "$work/tests" >"$work/log" 2>&1 || {
        head -n 40 "$work/log"
        exit 1
    }
    "$work/tests" || failed=1
done
exit $failed
