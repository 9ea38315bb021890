#!/bin/sh
# self_test.sh ROOT: on a copy of a few sources, plants one breach after another and expects layers.sh to name each.
set -u
root=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A file of each kind is enough: the rules look at one file after the other.
for file in include/otimes/otimes.hpp include/otimes/program/errors.hpp include/otimes/exec/executor.hpp backend/make_executor.cpp kernels/scalars.cuh; do
    mkdir -p "$folder/$(dirname "$file")"
    cp "$root/$file" "$folder/$file" || exit 1
done
sh "$here/layers.sh" "$folder" || exit 1
status=0

plant() { # plant FILE RULE TEXT: FILE with this TEXT must be reported, for RULE
    mkdir -p "$(dirname "$folder/$1")"
    printf '%s\n' "$3" >"$folder/$1"
    found=$(sh "$here/layers.sh" "$folder")
    code=$?
    rm "$folder/$1"
    if [ $code -eq 0 ] || ! printf '%s\n' "$found" | grep -F "$1:" | grep -qF -e "$2"; then
        echo "layers.sh did not report '$2' for $1; it said:"
        printf '%s\n' "$found"
        status=1
    fi
}
allow() { # allow FILE TEXT: FILE with this TEXT must not be reported
    mkdir -p "$(dirname "$folder/$1")"
    printf '%s\n' "$2" >"$folder/$1"
    found=$(sh "$here/layers.sh" "$folder" | grep -F "$1:")
    rm "$folder/$1"
    if [ -n "$found" ]; then
        echo "layers.sh wrongly reported:"
        printf '%s\n' "$found"
        status=1
    fi
}

plant include/otimes/program/planted.hpp "program must not include plan" '#include <otimes/plan/plan.hpp>'
plant include/otimes/program/planted.hpp "program must not include expr" '#include <otimes/expr/kron.hpp>'
plant include/otimes/plan/planted.hpp "plan must not include expr" '#include "../expr/kron.hpp"'
plant include/otimes/plan/planted.hpp "plan must not include exec" '#include <otimes/exec/cpu.hpp>'
plant include/otimes/expr/planted.hpp "expr must not include plan" '#  include <otimes/plan/plan.hpp>'
plant include/otimes/expr/planted.hpp "expr must not include factorwise" '#include <otimes/factorwise/norms.hpp>'
plant include/otimes/factorwise/planted.hpp "factorwise must not include plan" '#include <otimes/plan/plan.hpp>'
plant include/otimes/factorwise/planted.hpp "factorwise must not include exec" '#include "../exec/executor.hpp"'
plant include/otimes/factorwise/planted.hpp "factorwise must not include Eigen" '#include <Eigen/Core>'
plant include/otimes/exec/planted.hpp "exec must not include adapt" '#include <otimes/adapt/eigen.hpp>'
plant include/otimes/exec/planted.hpp "exec must not include expr" '#include <otimes/expr/kron.hpp>'
plant include/otimes/exec/planted.hpp "exec must not include otimes.hpp" '#include <otimes/otimes.hpp>'
plant include/otimes/exec/planted.hpp "exec must not include Eigen" '#include <Eigen/Core>'
plant include/otimes/exec/planted.hpp "exec must not include a toolkit" '#include <cuda_runtime.h>'
plant include/otimes/expr/planted.hpp "expr must not name Eigen::" 'using Eigen::MatrixXd;'
plant include/otimes/adapt/mdspan_planted.hpp "Eigen::internal" 'template <> struct Eigen::internal::traits<int>;'
plant include/otimes/planted.hpp "Eigen::internal" 'namespace Eigen::internal {}'
plant include/otimes/device/planted.hpp "device must not include adapt" '#include <otimes/adapt/eigen.hpp>'
plant include/otimes/device/planted.hpp "device must not name Eigen::" 'Eigen::MatrixXd x;'
allow include/otimes/device/planted.hpp '#include <otimes/cuda.hpp>'
plant include/otimes/helpers/planted.hpp "no such room" 'struct x;'
plant include/otimes/exec/folder/planted.hpp "exec must not include expr" '#include "../../expr/kron.hpp"'
plant include/otimes/exec/planted.hpp "exec must not include expr" '#include "../expr/kron.hpp"'
plant include/otimes/plan/planted.hpp "outside include/otimes" '#include "../../../kernels/scalars.cuh"'
plant kernels/planted.cuh "kernels/ includes only kernels/" '#include <cstdint>'
plant kernels/planted.cuh "kernels/ includes only kernels/" '#include "../include/otimes/plan/plan.hpp"'
plant backend/cuda/planted.cu "device code must not include" '#include <Eigen/Core>'
plant backend/cuda/planted.cu "device code must not include" '#include <doctest/doctest.h>'
plant include/otimes/exec/planted.hpp "neither ends the program nor prints" 'inline void f() { std::exit(1); }'
plant include/otimes/planted.hpp "neither ends the program nor prints" 'inline void f() { abort(); }'
plant kernels/planted.cuh "neither ends the program nor prints" '__device__ void f() { printf("x"); }'
plant backend/core/planted.cpp "neither ends the program nor prints" 'void f() { std::cerr << 1; }'

allow include/otimes/exec/folder/planted.hpp '#include "../executor.hpp"'
allow include/otimes/exec/folder/planted.hpp '#include "neighbour.hpp"'
allow include/otimes/factorwise/planted.hpp '#include <otimes/expr/tree.hpp>'
allow kernels/planted.cuh '#include "contract.cuh"'
allow include/otimes/exec/planted.hpp '// never calls abort() or printf("x"), nor names Eigen::internal'
allow include/otimes/exec/planted.hpp '/* a comment
   abort() in Eigen::internal
*/
struct x;'
allow include/otimes/exec/planted.hpp \
    'const char* text = "call exit(1)"; auto n = std::snprintf(nullptr, 0, "x"); scope_exit(n);'
allow include/otimes/adapt/eigen/planted.hpp 'namespace Eigen::internal {}'
allow include/otimes/exec/planted.hpp \
    '#include <otimes/program/program.hpp>
#include <otimes/plan/plan.hpp>
#include <vector>'

exit $status
