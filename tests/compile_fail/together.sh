#!/bin/sh
# together.sh SOURCES FOLDER COMPILER [FLAG...]: every .cpp file of the folder SOURCES as check.sh wants it, in less time, by g++. Those that
# include no header of otimes but the umbrella are compiled as one file, once as they are and once with -DOTIMES_MUST_NOT_COMPILE, each in
# a namespace of its own; an error counts for the file that g++ named last, in the error or in front of it ("required from here").
# check.sh compiles alone what is not settled so: other headers, a sentence that g++ says once for two files, a failure.
# FOLDER: where the one file is written.
set -u
sources=$1
folder=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
together="$folder/together.cpp"
messages="$folder/together.log"

: >"$folder/together.list"
for source in "$sources"/*.cpp; do
    if ! grep '^#include <otimes/' "$source" | grep -qv '<otimes/otimes.hpp>' &&
        grep -q '^// EXPECT:' "$source" && grep -q OTIMES_MUST_NOT_COMPILE "$source"; then
        echo "$source" >>"$folder/together.list"
    fi
done
{
    xargs cat <"$folder/together.list" | grep '^#include <' | sort -u
    while IFS= read -r source; do
        printf 'namespace case_%s {\n#include "%s"\n}\n' "$(basename "$source" .cpp)" "$source"
    done <"$folder/together.list"
} >"$together"

if ! "$@" -fsyntax-only "$together" >"$messages" 2>&1; then
    echo "not all of them compile without OTIMES_MUST_NOT_COMPILE"
    : >"$folder/together.list"
fi
"$@" -fsyntax-only -DOTIMES_MUST_NOT_COMPILE "$together" >"$messages" 2>&1

# settled SOURCE: whether each of its sentences is in an error that belongs to it.
settled() {
    grep -qxF "$1" "$folder/together.list" || return 1
    missing=$(sed -n 's|^// EXPECT: *||p' "$1" | awk -v source="$1" -v folder="$sources/" '
        FILENAME == "-" { wanted[$0] = 1; next }
        (at = index($0, folder)) > 0 { named = substr($0, at); sub(/:.*/, "", named) }
        named == source && / error: / { for (sentence in wanted) if (index($0, sentence) > 0) delete wanted[sentence] }
        END { for (sentence in wanted) print sentence }' - "$messages")
    [ -z "$missing" ]
}

status=0
together_count=0
alone_count=0
for source in "$sources"/*.cpp; do
    if settled "$source"; then
        together_count=$((together_count + 1))
    else
        alone_count=$((alone_count + 1))
        echo "alone: $(basename "$source")"
        sh "$here/check.sh" "$source" "$@" || status=1
    fi
done
echo "$together_count files together, $alone_count alone"
exit $status
