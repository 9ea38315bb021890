#!/bin/sh
# together.sh SOURCES FOLDER COMPILER [FLAG...]: every .cpp file of the folder SOURCES as check.sh wants it, in less time, by g++. Those that
# include no header of otimes but the umbrella are compiled as one file, once as they are and once with -DOTIMES_MUST_NOT_COMPILE, each in
# a namespace of its own; an error counts for the file that g++ named last, in the error or in front of it ("required from here"). A sentence
# that g++ says once for two files counts for one: the others are compiled as one file again, and check.sh compiles alone what is left. Those
# with other headers are compiled as one file as they are, and each alone with -DOTIMES_MUST_NOT_COMPILE, which as one file takes longer.
# FOLDER: where the one file is written.
set -u
sources=$1
folder=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
together="$folder/together.cpp"
messages="$folder/together.log"
list="$folder/together.list"

# write_together: the files of $list as one.
write_together() {
    {
        xargs cat <"$list" | grep '^#include <' | sort -u
        while IFS= read -r source; do
            printf 'namespace case_%s {\n#include "%s"\n}\n' "$(basename "$source" .cpp)" "$source"
        done <"$list"
    } >"$together"
}

# settled SOURCE: whether each of its sentences is in an error that belongs to it.
settled() {
    missing=$(sed -n 's|^// EXPECT: *||p' "$1" | awk -v source="$1" -v folder="$sources/" '
        FILENAME == "-" { wanted[$0] = 1; next }
        (at = index($0, folder)) > 0 { named = substr($0, at); sub(/:.*/, "", named) }
        named == source && / error: / { for (sentence in wanted) if (index($0, sentence) > 0) delete wanted[sentence] }
        END { for (sentence in wanted) print sentence }' - "$messages")
    [ -z "$missing" ]
}

# compile_together COMPILER [FLAG...]: the files of $list as they are; sets `compiles`.
compile_together() {
    write_together
    compiles=yes
    if ! "$@" -fsyntax-only "$together" >"$messages" 2>&1; then
        echo "not all of them compile without OTIMES_MUST_NOT_COMPILE"
        compiles=no
    fi
}

# settle_together COMPILER [FLAG...]: takes the files from $list that are settled as one file, in three rounds.
settle_together() {
    for round in 1 2 3; do
        [ -s "$list" ] || return
        write_together
        "$@" -fsyntax-only -DOTIMES_MUST_NOT_COMPILE "$together" >"$messages" 2>&1
        : >"$list.left"
        while IFS= read -r source; do
            settled "$source" || echo "$source" >>"$list.left"
        done <"$list"
        mv "$list.left" "$list"
    done
}

# check_alone COMPILER [FLAG...]: the files of $list.
check_alone() {
    while IFS= read -r source; do
        echo "alone: $(basename "$source")"
        alone_count=$((alone_count + 1))
        compiles=$compiles sh "$here/check.sh" "$source" "$@" || status=1
    done <"$list"
}

# can_join SOURCE: what check.sh asks of every file is there.
can_join() { grep -q '^// EXPECT:' "$1" && grep -q OTIMES_MUST_NOT_COMPILE "$1"; }
# has_other_headers SOURCE: of otimes, beside the umbrella.
has_other_headers() { grep '^#include <otimes/' "$1" | grep -qv '<otimes/otimes.hpp>'; }

status=0
alone_count=0
for kind in umbrella others neither; do
    : >"$list"
    for source in "$sources"/*.cpp; do
        if ! can_join "$source"; then
            of=neither
        elif has_other_headers "$source"; then
            of=others
        else
            of=umbrella
        fi
        if [ "$of" = "$kind" ]; then echo "$source" >>"$list"; fi
    done
    compiles=no
    if [ "$kind" != neither ] && [ -s "$list" ]; then compile_together "$@"; fi
    if [ "$kind" = umbrella ] && [ "$compiles" = yes ]; then settle_together "$@"; fi
    check_alone "$@"
done
echo "$(($(find "$sources" -name '*.cpp' | wc -l) - alone_count)) files together, $alone_count alone"
exit $status
