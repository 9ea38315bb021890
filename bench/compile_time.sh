#!/bin/sh
# compile_time.sh [COMPILER [FLAG...]]: what otimes adds to the time of compiling a file, as the least of five runs each:
# the same file with a plain Eigen product, with a Kronecker product through the umbrella header, and with that and the library
# otimes::compiled (whose headers alone are needed to compile); then the same of a file that solves: with the eigenvectors of one matrix by
# Eigen, with a Kronecker sum.
set -eu
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then set -- "${CXX:-g++}" -O2; fi
eigen=${OTIMES_EIGEN_DIR:-/usr/include/eigen3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/plain_product.cpp" <<'EOF'
#include <Eigen/Dense>
Eigen::MatrixXd f(const Eigen::MatrixXd& x, const Eigen::MatrixXd& a, const Eigen::MatrixXd& b) { return x * (a * b); }
EOF
cat >"$folder/otimes_product.cpp" <<'EOF'
#include <Eigen/Dense>
#include <otimes/otimes.hpp>
Eigen::MatrixXd f(const Eigen::MatrixXd& x, const Eigen::MatrixXd& a, const Eigen::MatrixXd& b) {
    return x * otimes::kron(a, b);
}
EOF

cat >"$folder/plain_solve.cpp" <<'EOF'
#include <Eigen/Dense>
Eigen::VectorXd f(const Eigen::MatrixXd& a, const Eigen::VectorXd& x) {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> e(a);
    return e.eigenvectors() * e.eigenvalues().cwiseInverse().cwiseProduct(e.eigenvectors().transpose() * x);
}
EOF
cat >"$folder/otimes_solve.cpp" <<'EOF'
#include <Eigen/Dense>
#include <otimes/algebra.hpp>
Eigen::VectorXd f(const Eigen::MatrixXd& a, const Eigen::MatrixXd& b, const Eigen::VectorXd& x) {
    return otimes::kron_sum(a, b).solve(x);
}
EOF

# milliseconds NAME COMPILER...: the least time of five.
milliseconds() {
    name=$1
    shift
    least=""
    for _ in 1 2 3 4 5; do
        start=$(date +%s%N)
        "$@" -std=c++20 -Iinclude -isystem "$eigen" -c "$folder/$name.cpp" -o "$folder/$name.o"
        spent=$((($(date +%s%N) - start) / 1000000))
        if [ -z "$least" ] || [ "$spent" -lt "$least" ]; then least=$spent; fi
    done
    echo "$least"
}

library="-DOTIMES_COMPILED -DOTIMES_COMPILED_BASELINE -DOTIMES_COMPILED_AVX -DOTIMES_COMPILED_AVX2 -DOTIMES_COMPILED_AVX512 -DOTIMES_COMPILED_NEON"
echo "compiler,file,plain_ms,otimes_ms,ratio_percent,compiled_ms,compiled_ratio_percent"
for file in product solve; do
    plain=$(milliseconds "plain_$file" "$@")
    with_otimes=$(milliseconds "otimes_$file" "$@")
    # shellcheck disable=SC2086
    with_library=$(milliseconds "otimes_$file" "$@" $library)
    echo "$*,$file,$plain,$with_otimes,$((with_otimes * 100 / plain)),$with_library,$((with_library * 100 / plain))"
done
