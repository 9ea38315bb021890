#!/bin/sh
# foreign.sh INCLUDE_FOLDER [OUTPUT COMPILER [FLAG...]]: prints includes of all that the headers include from elsewhere (the standard
# library, Eigen); with OUTPUT, writes them to that file and precompiles it.
set -eu
folder=$1
shift
if [ $# -gt 0 ]; then
    output=$1
    shift
    sh "$0" "$folder" >"$output"
    exec "$@" -x c++-header "$output" -o "$output.gch"
fi
find "$folder/otimes" -name '*.hpp' -exec grep -hE '^[[:space:]]*#[[:space:]]*include[[:space:]]*<' {} + |
    sed 's/^[^<]*<\([^>]*\)>.*/\1/' | grep -vE '^(otimes|thrust|cuda|cub)/' | sort -u |
    while IFS= read -r foreign; do
        printf '#if __has_include(<%s>)\n#include <%s>\n#endif\n' "$foreign" "$foreign"
    done
