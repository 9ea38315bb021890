#!/bin/sh
# sanitize.sh TEST_CUDA FOLDER [TOOL...]: every case of a built test_cuda by itself under compute-sanitizer (memcheck, racecheck and initcheck where no
# tool is named), AT_ONCE (all processors) at a time, SECONDS_EACH (240) for each; OTIMES_TEST_FILTER narrows the cases. One line for each case that is
# not clean, whose output is left in FOLDER; fails where there is one.
set -u
tests=${1:?"usage: sh bench/gpu/sanitize.sh TEST_CUDA FOLDER [TOOL...]"}
folder=${2:?"usage: sh bench/gpu/sanitize.sh TEST_CUDA FOLDER [TOOL...]"}
shift 2
[ $# -gt 0 ] || set -- memcheck racecheck initcheck
mkdir -p "$folder"
tests=$(realpath "$tests")
folder=$(realpath "$folder")
filter=${OTIMES_TEST_FILTER:-*}
export OTIMES_TEST_NEEDS_GPU=1
count=$("$tests" --no-version --count "--test-case=$filter" | sed -n 's/.*filters: *\([0-9]*\).*/\1/p')
if [ "${count:-0}" -eq 0 ] || ! command -v compute-sanitizer >/dev/null; then
    echo "sanitize.sh: no case of $tests is $filter, or there is no compute-sanitizer" >&2
    exit 1
fi
cat >"$folder/one.sh" <<'ONE'
#!/bin/sh
# one.sh TESTS FOLDER TOOL FILTER NUMBER
said="$2/$3.$5.txt"
timeout "${SECONDS_EACH:-240}" compute-sanitizer --tool "$3" --report-api-errors no --print-limit 5 "$1" --no-version -d "--test-case=$4" "--first=$5" "--last=$5" >"$said" 2>&1
status=$?
name=$(sed -n 's/^[0-9.]* s: //p' "$said" | head -n 1)
if [ $status -eq 124 ]; then
    echo "$3 $5: out of time"
elif ! grep -Eq "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" "$said"; then
    echo "$3 $5: FINDINGS: $name"
elif [ $status -ne 0 ]; then
    echo "$3 $5: the test fails: $name"
else
    echo "$3 $5: clean: $name"
    rm "$said"
fi
ONE
failed=0
for tool in "$@"; do
    seq "$count" | xargs -P "${AT_ONCE:-$(nproc)}" -n 1 sh "$folder/one.sh" "$tests" "$folder" "$tool" "$filter" >"$folder/$tool.txt"
    echo "$tool: $count cases, $(grep -c ': clean' "$folder/$tool.txt") clean"
    if grep -v ': clean' "$folder/$tool.txt"; then failed=1; fi
done
exit $failed
