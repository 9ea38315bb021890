#!/bin/sh
# docs.sh ROOT: for README.md and docs/**/*.md,
#
# * a block of C++ is either preceded by a line `<!-- from FILE NAME -->` and then equals the lines of FILE between `// [NAME]`
#   and `// [/NAME]`, less their common indentation; or by `<!-- not compiled: reason -->`;
# * a block of something else that is preceded by `<!-- part of FILE -->` is in FILE, line by line;
# * a relative link leads to a file that exists, and to a heading in it where it names one; in the README.md of other folders, too.
set -u
cd "$1" || exit 2
files=$({ ls README.md && find docs -name '*.md'; } 2>/dev/null | sort)
status=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# region FILE NAME: the lines between the markers, less the indentation of the first marker.
region() {
    awk -v open="// [$2]" -v close_="// [/$2]" '
        index($0, close_) { inside = 0; closed = 1 }
        inside { print substr($0, 1, indent) ~ /^ *$/ ? substr($0, indent + 1) : $0 }
        index($0, open) { inside = 1; match($0, /^ */); indent = RLENGTH }
        END { exit !closed }' "$1"
}

# part_of FILE: whether the lines of standard input follow each other in FILE.
part_of() {
    awk 'NR == FNR { want[++count] = $0; next }
        { have[FNR] = $0; last = FNR }
        END {
            for (start = 0; start + count <= last; ++start) {
                for (k = 1; k <= count && have[start + k] == want[k]; ++k) {}
                if (count && k > count) exit 0
            }
            exit 1
        }' - "$1"
}

# headings FILE: what links call them.
headings() {
    sed '/^```/,/^```/d' "$1" | sed -n 's/^#\{1,6\} //p' | sed 's/\[\([^]]*\)\]([^)]*)/\1/g' | tr '[:upper:]' '[:lower:]' |
        sed 's/[^a-z0-9_ -]//g; s/ /-/g'
}

for document in $files; do
    # Writes each C++ block to a numbered file, its first line the line number and the marker before it.
    rm -f "$folder"/*
    awk -v folder="$folder" '
        /^```(cpp|c\+\+)/ || (/^```/ && !inside && marker ~ /^<!-- part of/) { inside = 1; block = sprintf("%s/%03d", folder, ++count); print FNR " " marker >block; next }
        /^```/ && inside { inside = 0; close(block); next }
        inside { print >block; next }
        /^<!-- (from|not compiled|part of)/ { marker = $0; next }
        NF { marker = "" }' "$document"
    for block in "$folder"/*; do
        [ -e "$block" ] || continue
        read -r line marker <"$block"
        case $marker in
            "<!-- not compiled: "*) continue ;;
            "<!-- part of "*)
                # shellcheck disable=SC2086
                set -- $marker
                if ! tail -n +2 "$block" | part_of "$4"; then
                    echo "$document:$line: is not in $4"
                    status=1
                fi
                continue
                ;;
            "<!-- from "*) ;;
            *)
                echo "$document:$line: this C++ is not copied from compiled code (<!-- from FILE NAME -->)"
                status=1
                continue
                ;;
        esac
        # shellcheck disable=SC2086
        set -- $marker
        if ! region "$3" "$4" >"$folder/region" 2>/dev/null; then
            echo "$document:$line: $3 has no lines between // [$4] and // [/$4]"
            status=1
        elif ! tail -n +2 "$block" | cmp -s - "$folder/region"; then
            echo "$document:$line: differs from $3, $4:"
            tail -n +2 "$block" | diff - "$folder/region"
            status=1
        fi
        rm -f "$folder/region"
    done
done

for document in $files $(ls tests/README.md examples/README.md 2>/dev/null); do
    base=$(dirname "$document")
    targets=$(sed '/^```/,/^```/d' "$document" | grep -oE '\]\([^) ]+' | sed 's/^](//' | grep -vE '^(https?|mailto):')
    for target in $targets; do
        page=${target%%#*}
        page=${page:+$base/$page}
        page=${page:-$document}
        if [ ! -e "$page" ]; then
            echo "$document: the link to $target leads nowhere"
            status=1
        elif [ "$target" != "${target#*#}" ] && ! headings "$page" | grep -qxF -e "${target#*#}"; then
            echo "$document: $page has no heading for the link to $target"
            status=1
        fi
    done
done
exit $status
