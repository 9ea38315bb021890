#!/bin/sh
# self_test.sh COMPILER: check.sh accepts a file that fails as it says and refuses every other one, together.sh (g++) as well.
set -u
compiler=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0

expect() { # expect pass|fail DESCRIPTION, with the file's text on standard input
    cat >"$folder/case.cpp"
    if sh "$here/check.sh" "$folder/case.cpp" "$compiler" -std=c++20 >"$folder/log" 2>&1; then result=pass; else result=fail; fi
    if [ "$result" != "$1" ]; then
        echo "check.sh: expected $1, got $result: $2"
        cat "$folder/log"
        status=1
    fi
}

expect pass "a static_assert with the sentence, in a template" <<'EOF'
// EXPECT: an int has no shape
template <class Type>
void shape() { static_assert(sizeof(Type) == 0, "an int has no shape"); }
#ifdef OTIMES_MUST_NOT_COMPILE
void use() { shape<int>(); }
#endif
EOF
expect pass "a deleted function" <<'EOF'
// EXPECT: deleted function
void f(int) = delete;
#ifdef OTIMES_MUST_NOT_COMPILE
void use() { f(1); }
#endif
EOF
expect fail "another sentence" <<'EOF'
// EXPECT: an int has no colour
#ifdef OTIMES_MUST_NOT_COMPILE
static_assert(false, "an int has no shape");
#endif
EOF
expect fail "a sentence that only a quoted line of the source holds" <<'EOF'
// EXPECT: an int has no colour
#ifdef OTIMES_MUST_NOT_COMPILE
int x = nothing; // an int has no colour
#endif
EOF
expect fail "code that compiles" <<'EOF'
// EXPECT: an int has no shape
#ifdef OTIMES_MUST_NOT_COMPILE
int x = 1;
#endif
EOF
expect fail "code that fails without the macro as well" <<'EOF'
// EXPECT: an int has no shape
static_assert(sizeof(int) == 0, "an int has no shape");
#ifdef OTIMES_MUST_NOT_COMPILE
#endif
EOF
expect fail "no sentence" <<'EOF'
#ifdef OTIMES_MUST_NOT_COMPILE
static_assert(false, "an int has no shape");
#endif
EOF

# One file that is as it should be beside one that says the other's sentence: the second must be noticed, and alone it must pass.
if "$compiler" --version 2>/dev/null | grep -q 'Free Software Foundation'; then
    mkdir "$folder/two"
    rm -f "$folder/case.cpp"
    cat >"$folder/two/first.cpp" <<'EOF'
// EXPECT: an int has no shape
template <class Type>
void shape() { static_assert(sizeof(Type) == 0, "an int has no shape"); }
#ifdef OTIMES_MUST_NOT_COMPILE
void use() { shape<int>(); }
#endif
EOF
    cat >"$folder/two/second.cpp" <<'EOF'
// EXPECT: an int has no colour
#ifdef OTIMES_MUST_NOT_COMPILE
static_assert(sizeof(int) == 0, "an int has no colour");
#endif
EOF
    if ! sh "$here/together.sh" "$folder/two" "$folder" "$compiler" -std=c++20 >"$folder/log" 2>&1 ||
        ! grep -q '^2 files together, 0 alone' "$folder/log"; then
        echo "together.sh: refuses two files that fail as they say"
        cat "$folder/log"
        status=1
    fi
    sed -i 's|EXPECT: an int has no colour|EXPECT: an int has no shape|' "$folder/two/second.cpp"
    if sh "$here/together.sh" "$folder/two" "$folder" "$compiler" -std=c++20 >"$folder/log" 2>&1; then
        echo "together.sh: accepts a file whose sentence another one says"
        cat "$folder/log"
        status=1
    fi
fi
exit $status
