#!/bin/sh
# self_test.sh COMPILER: both checks refuse what they are there to refuse.
set -u
compiler=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/otimes"
status=0

expect() { # expect accepted|refused DESCRIPTION COMMAND...
    wanted=$1
    description=$2
    shift 2
    if "$@" >"$folder/log" 2>&1; then result=accepted; else result=refused; fi
    if [ "$result" != "$wanted" ]; then
        echo "expected $wanted, got $result: $description"
        cat "$folder/log"
        status=1
    fi
}
alone() {
    cat >"$folder/otimes/case.hpp"
    expect "$1" "alone: $2" sh "$here/alone.sh" otimes/case.hpp "$compiler" -std=c++20 -Wall -Wextra -Werror "-I$folder"
}
after_macros() {
    cat >"$folder/otimes/case.hpp"
    expect "$1" "after macros: $2" sh "$here/after_macros.sh" "$folder" "$compiler" -std=c++20 "-I$folder"
}

alone accepted "a sound header" <<'EOF'
#pragma once
#include <vector>
inline std::vector<int> v;
EOF
alone refused "a header that uses what it does not include" <<'EOF'
#pragma once
inline std::vector<int> v;
EOF
alone refused "a header without a guard" <<'EOF'
struct twice {};
EOF
alone refused "a warning" <<'EOF'
#pragma once
inline int f(int unused) { return 1; }
EOF
after_macros accepted "a template parameter in words" <<'EOF'
#pragma once
#include <limits>
template <class Scalar>
inline constexpr Scalar largest = (std::numeric_limits<Scalar>::max)();
EOF
after_macros refused "a template parameter of one letter" <<'EOF'
#pragma once
template <class T>
struct box {};
EOF
after_macros refused "an unprotected max" <<'EOF'
#pragma once
#include <limits>
inline constexpr int largest = std::numeric_limits<int>::max();
EOF
exit $status
