#!/bin/sh
# one_product.sh CEILING COMPILED_CEILING COMPILER [FLAG...]: a file with one product compiles no more functions than the ceilings
# say, header-only and with the compiled library. It counts them in an object without optimisation, where every function that
# was instantiated is one symbol: that is what compile time follows, and it is the same on every run. Raise a ceiling only with
# a measurement (bench/compile_time.sh) beside it; the bar is in docs/decisions/0003.
set -eu
ceiling=$1
compiled_ceiling=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/one.cpp" <<'END'
#include <Eigen/Dense>
#include <otimes/otimes.hpp>
Eigen::MatrixXd f(const Eigen::MatrixXd& x, const Eigen::MatrixXd& a, const Eigen::MatrixXd& b) {
    return x * otimes::kron(a, b);
}
END
status=0
# count NAME CEILING FLAG...: the functions that the object defines.
count() {
    name=$1
    most=$2
    shift 2
    "$@" -O0 -c "$folder/one.cpp" -o "$folder/$name.o"
    nm --defined-only "$folder/$name.o" | awk '$2 ~ /^[tTwWuV]$/' >"$folder/$name"
    found=$(wc -l <"$folder/$name")
    echo "$name: $found functions, at most $most"
    if [ "$found" -gt "$most" ]; then status=1; fi
}
count header_only "$ceiling" "$@"
count compiled "$compiled_ceiling" "$@" -DOTIMES_COMPILED -DOTIMES_COMPILED_BASELINE
if grep -qE 'planning|block_kernel|cached_plan' "$folder/compiled"; then
    echo "compiled: the planner or kernels were compiled although the library holds them:"
    grep -E 'planning|block_kernel|cached_plan' "$folder/compiled" | head -n 5
    status=1
fi
exit "$status"
