#!/bin/sh
# lost_rank.sh TEST LAUNCHER [ARGUMENT...]: starts four ranks of which one dies, and expects the three others to say that they got
# their error in time.
set -u
test=$1
shift
export OTIMES_TEST_LOST_RANK=1
output=$(timeout 50 "$@" -np 4 "$test" '--test-case=*[lost_rank]*' 2>&1)
for rank in 0 2 3; do
    if ! printf '%s\n' "$output" | grep -q "survivor $rank"; then
        printf '%s\n' "$output"
        echo "rank $rank did not survive the loss of rank 1 with a device_error"
        exit 1
    fi
done
if printf '%s\n' "$output" | grep -q "survivor 1"; then
    echo "rank 1 was to die"
    exit 1
fi
echo "the survivors got their error"
