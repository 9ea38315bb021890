#!/bin/sh
# run.sh KIND COUNT COMPILER [FLAG...]: COUNT random expressions of a KIND (generate.cpp) compile, and give what dense matrices give.
# OTIMES_TEST_SEED (else 2) draws others. One that does not compile is named by the compiler, with its line of the program.
set -u
here=$(dirname "$0")
kind=$1
count=$2
shift 2
seed=${OTIMES_TEST_SEED:-2}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

"$@" "-I$here/.." "$here/generate.cpp" -o "$work/generate" || exit 1
"$work/generate" "$seed" "$count" "$kind" >"$work/expressions.cpp" || exit 1
if ! "$@" "-I$here/.." "$work/expressions.cpp" -o "$work/expressions" 2>"$work/errors"; then
    grep -E 'error' "$work/errors" | cut -c1-400
    # The lines that the errors come from.
    sed -n 's|^[^ ]*expressions.cpp:\([0-9]*\):.*|\1|p' "$work/errors" | sort -un | while read -r line; do
        sed -n "${line}p" "$work/expressions.cpp"
    done
    echo "seed $seed, $kind: does not compile"
    exit 1
fi
"$work/expressions"
