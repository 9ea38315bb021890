#!/bin/sh
# after_macros.sh INCLUDE_FOLDER COMPILER [FLAG...]: the headers compile after a user's program has defined min, max and every
# one-letter capital as a macro. What the headers include from elsewhere (the standard library, Eigen) comes first: those have
# limits of their own, which are not ours to test.
set -u
folder=$1
shift
source=$(mktemp)
trap 'rm -f "$source"' EXIT

{
    sh "$(dirname "$0")/foreign.sh" "$folder"
    echo '#define min(a, b) "a macro of the user"'
    echo '#define max(a, b) "a macro of the user"'
    for name in A B C D E F G H I J K L M N O P Q R S T U V W X Y Z; do
        echo "#undef $name"
        echo "#define $name \"a macro of the user\""
    done
    (cd "$folder" && find otimes -name '*.hpp' | sort) | grep -v 'adapt/thrust' |
        while IFS= read -r header; do
            echo "#include <$header>"
        done
} >"$source"

if ! "$@" -fsyntax-only -x c++ "$source" >"$source.log" 2>&1; then
    grep -E 'error' "$source.log" | head -n 10
    echo "Names that a user's macro may take (write them in words; (std::min)(a, b) instead of std::min(a, b)):"
    (cd "$folder" && find otimes -name '*.hpp' | sort) | while IFS= read -r header; do
        sed 's|//.*||; s|"[^"]*"||g' "$folder/$header" |
            grep -nE '(^|[^A-Za-z0-9_])[A-Z]([^A-Za-z0-9_]|$)|(^|[^A-Za-z0-9_])(min|max)\(' | sed "s|^|$header:|"
    done | head -n 40
    rm -f "$source.log"
    exit 1
fi
rm -f "$source.log"
