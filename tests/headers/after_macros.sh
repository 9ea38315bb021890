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
    find "$folder/otimes" -name '*.hpp' -exec grep -hE '^[[:space:]]*#[[:space:]]*include[[:space:]]*<' {} + |
        sed 's/^[^<]*<\([^>]*\)>.*/\1/' | grep -vE '^(otimes|thrust|cuda|cub)/' | sort -u |
        while IFS= read -r foreign; do
            printf '#if __has_include(<%s>)\n#include <%s>\n#endif\n' "$foreign" "$foreign"
        done
    echo '#define min(a, b) "a macro of the user"'
    echo '#define max(a, b) "a macro of the user"'
    for name in A B C D E F G H I J K L M N O P Q R S T U V W X Y Z small near far; do
        echo "#undef $name"
        echo "#define $name \"a macro of the user\""
    done
    (cd "$folder" && find otimes -name '*.hpp' | sort) | grep -v 'adapt/thrust' |
        while IFS= read -r header; do
            echo "#include <$header>"
        done
} >"$source"

"$@" -fsyntax-only -x c++ "$source"
