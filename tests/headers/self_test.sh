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
# With rooms: what another header includes first is left to that one, which sees what it lacks and that it has no guard.
mkdir -p "$folder/otimes/room"
in_room() { # in_room accepted|refused DESCRIPTION HEADER
    expect "$1" "alone: $2" env "rooms=$folder" sh "$here/alone.sh" "otimes/room/$3.hpp" "$compiler" -std=c++20 -Wall -Wextra -Werror "-I$folder"
}
printf '#pragma once\n#include <otimes/room/first.hpp>\n' >"$folder/otimes/room/user.hpp"
printf '#pragma once\n#include <vector>\n#include <otimes/room/sound.hpp>\n#include <otimes/room/second.hpp>\n' >"$folder/otimes/room/other.hpp"
printf '#pragma once\ninline std::vector<int> v;\n' | tee "$folder/otimes/room/first.hpp" >"$folder/otimes/room/second.hpp"
printf '#pragma once\n' >"$folder/otimes/room/sound.hpp"
in_room accepted "a header that another one includes first, whatever it lacks" first
in_room refused "the one that includes it" user
in_room refused "a header that others include later, of what it lacks" second
printf 'struct twice {};\n' >"$folder/otimes/room/first.hpp"
in_room refused "one whose first header has no guard" user
printf '#pragma once\n#if 1\n#include <otimes/room/first.hpp>\n#endif\n' >"$folder/otimes/room/user.hpp"
in_room refused "a header that another one includes first under a condition" first
rm -r "$folder/otimes/room"

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
