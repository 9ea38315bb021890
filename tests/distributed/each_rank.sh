#!/bin/sh
# each_rank.sh CASE RANKS TEST LAUNCHER [ARGUMENT...]: starts RANKS ranks of the case [CASE], which is skipped elsewhere, and expects each of
# them to say that it saw what it should. A launcher may count the end of a broken communicator as a failure; that is not
# looked at, nor how long it takes to end.
set -u
case=$1
ranks=$2
test=$3
shift 3
export OTIMES_TEST_CASE="$case"
output=$(timeout -k 2 30 "$@" -np "$ranks" "$test" "--test-case=*[$case]*" 2>&1)
rank=0
while [ "$rank" -lt "$ranks" ]; do
    if ! printf '%s\n' "$output" | grep -q "$case $rank as expected"; then
        printf '%s\n' "$output"
        echo "rank $rank of [$case] did not see what it should"
        exit 1
    fi
    rank=$((rank + 1))
done
echo "[$case]: $ranks ranks saw what they should"
