#!/bin/sh
# alone.sh HEADER COMPILER [FLAG...]: a file that includes HEADER, twice, and nothing else compiles.
#
# With `rooms=INCLUDE_FOLDER` in the environment, each header of a room is tested so, and one that another includes before all others of
# otimes is left to that one: there it stands alone as well, and is included again.
set -u
header=$1
shift

# first_in FILE...: for each the header of otimes that it includes before others, if there is no condition before.
first_in() {
    awk 'FNR == 1 { done = 0 }
         !done && /^#[ \t]*(if|include <otimes\/)/ {
             done = 1
             if ($0 ~ /include/) { gsub(/^[^<]*<|>.*$/, ""); print $0, FILENAME }
         }' "$@"
}

again=""
if [ -n "${rooms:-}" ]; then
    by=$(find "$rooms/otimes" -mindepth 2 -name '*.hpp' ! -path '*/adapt/thrust.hpp' -exec grep -lxF "#include <$header>" {} + | while IFS= read -r file; do
        first_in "$file"
    done | sed -n "s|^$header $rooms/||p" | head -n 1)
    if [ -n "$by" ]; then
        echo "$header: first in $by"
        exit 0
    fi
    of=$header
    while of=$(first_in "$rooms/$of" | sed 's/ .*//') && [ -n "$of" ]; do
        again="$again $of"
    done
fi
for each in "$header" "$header" $again; do
    echo "#include <$each>"
done | "$@" -fsyntax-only -x c++ -
