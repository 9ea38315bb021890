#!/bin/sh
# check.sh SOURCE COMPILER [FLAG...]: SOURCE must compile as it is; with -DOTIMES_MUST_NOT_COMPILE it must not, and the compiler
# must show every sentence that a line `// EXPECT: sentence` of SOURCE names. With `compiles=yes` in the environment the first is known.
set -u
source=$1
shift
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT

sentences=$(sed -n 's|^// EXPECT: *||p' "$source")
if [ -z "$sentences" ]; then
    echo "$source: no line '// EXPECT: sentence'"
    exit 1
fi
if ! grep -q OTIMES_MUST_NOT_COMPILE "$source"; then
    echo "$source: no code under '#ifdef OTIMES_MUST_NOT_COMPILE'"
    exit 1
fi

if [ "${compiles:-no}" != yes ] && ! "$@" -fsyntax-only "$source" >"$messages" 2>&1; then
    echo "$source: must compile without OTIMES_MUST_NOT_COMPILE, but:"
    head -n 40 "$messages"
    exit 1
fi
if "$@" -fsyntax-only -DOTIMES_MUST_NOT_COMPILE "$source" >"$messages" 2>&1; then
    echo "$source: compiles, although it must not"
    exit 1
fi

# Lines of the source that the compiler quotes do not count: the sentence has to come from an error.
echo "$sentences" | {
    status=0
    while IFS= read -r sentence; do
        if ! grep 'error:' "$messages" | grep -qF -e "$sentence"; then
            echo "$source: no error says '$sentence'. The compiler said:"
            head -n 40 "$messages"
            status=1
        fi
    done
    exit $status
}
