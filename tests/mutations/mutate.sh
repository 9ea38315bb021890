#!/bin/sh
# mutate.sh ROOT MUTATION COMPILER [FLAG or OBJECT...]: applies MUTATION, a sed script with the lines
#
#   # FILE: include/otimes/plan/ordering.hpp     the header it changes
#   # ROOM: plan                                 the tests that must notice
#
# to a copy of the headers, builds the room's tests against the copy and passes if they then fail. A mutation that changes
# nothing, or whose result does not compile, is an error: it tests nothing. With `texts` for a compiler only the first is checked.
set -u
root=$1
mutation=$2
shift 2
file=$(sed -n 's/^# FILE: *//p' "$mutation")
room=$(sed -n 's/^# ROOM: *//p' "$mutation")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [ ! -f "$root/$file" ] || [ ! -d "$root/tests/$room" ]; then
    echo "$mutation: there is no $file, or no tests/$room"
    exit 1
fi
cp -R "$root/include" "$folder/include"
sed -f "$mutation" "$root/$file" >"$folder/$file"
if cmp -s "$root/$file" "$folder/$file"; then
    echo "$mutation: changes nothing in $file"
    exit 1
fi
if [ "$1" = texts ]; then exit 0; fi
diff "$root/$file" "$folder/$file"
if ! "$@" "-I$folder/include" "$root/tests/$room"/*.cpp -o "$folder/tests" >"$folder/log" 2>&1; then
    echo "$mutation: the changed header does not compile"
    head -n 40 "$folder/log"
    exit 1
fi
# A mutant that never ends has been noticed as well.
if timeout 300 "$folder/tests" "--test-case-exclude=*[long]*" >"$folder/log" 2>&1; then
    echo "$mutation: no test in tests/$room notices"
    exit 1
fi
grep -E 'TEST CASE:|ERROR:' "$folder/log" | head -n 4
