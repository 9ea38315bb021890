#!/bin/sh
# Changes one comparison, constant or barrier at a time, in a copy, and demands that the tests notice.
#
#   texts.sh LIST HEADERS TESTS PART/PARTS COMPILER [FLAG or OBJECT...]
#
# LIST: a line "file in HEADERS | text | changed text | file in TESTS that must fail" each, without the blanks.
# PART/PARTS: of the list, every PARTS-th line from the PART-th on. COMPILER `texts`: only whether each text is still there. Prints a line
# for each mutation; needs some minutes. A changed test ends at its first failure.
set -u
list=$1
headers=$2
tests=$3
part=${4%/*}
parts=${4#*/}
shift 4
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
name=$(basename "$headers")
mkdir -p "$work/$name" && cp -R "$headers/." "$work/$name"

build_and_run() { # the compiler, its flags and the test file -> 0 when its tests pass
    "$@" -o "$work/test" 2>"$work/errors" || return 2
    (cd "$work" && timeout 300 ./test --abort-after=1 --test-case-exclude='*[long]*' >"$work/output" 2>&1)
}

failed=0
line=0
while IFS='|' read -r file text changed test; do
    case $file in '#'*) continue ;; esac
    line=$((line + 1))
    if [ $(((line - part) % parts)) -ne 0 ]; then continue; fi
    if ! grep -qF -- "$text" "$headers/$file"; then
        echo "STALE     $file: '$text' is no longer in the file"
        failed=1
        continue
    fi
    if [ ! -f "$tests/$test.cpp" ]; then # a text with a separator in it, too
        echo "STALE     $file: '$text': there is no $tests/$test.cpp"
        failed=1
        continue
    fi
    if [ "$1" = texts ]; then continue; fi
    pattern=$(printf '%s' "$text" | sed 's/[][*.^$/]/\\&/g')
    replacement=$(printf '%s' "$changed" | sed 's/[&/\\]/\\&/g')
    sed "s/$pattern/$replacement/" "$headers/$file" >"$work/$name/$file"
    build_and_run "$@" "-I$work" "-I$work/$name" "$tests/$test.cpp"
    outcome=$?
    cp "$headers/$file" "$work/$name/$file"
    case $outcome in
        0) echo "SURVIVED  $file: '$text' -> '$changed' is not noticed by $test.cpp"; failed=1 ;;
        2) echo "BROKEN    $file: '$changed' does not compile"; cat "$work/errors"; failed=1 ;;
        *) echo "noticed   $file: '$text' -> '$changed'" ;;
    esac
done <"$list"
if [ "$line" = 0 ]; then
    echo "$list holds no mutation"
    failed=1
fi
exit $failed
