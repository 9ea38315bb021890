# shellcheck shell=sh
# Read by tests/run.sh and examples/run.sh: finds, and where it can installs, what the build needs. Nothing is installed that is
# there already, by whatever name or place the compiler and CMake find it.

# fail MESSAGE...: ends the script with a message.
fail() {
    echo "" >&2
    for line in "$@"; do echo "$line" >&2; done
    exit 1
}

# The first C++ compiler there is: $CXX, g++, clang++, c++.
find_compiler() {
    for candidate in ${CXX:-} g++ clang++ c++; do
        if command -v "$candidate" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
}

# has_header HEADER: the compiler or CMake would find it.
has_header() {
    for folder in ${OTIMES_EIGEN_DIR:-} ${OTIMES_DOCTEST_DIR:-} /usr/include /usr/local/include /usr/include/eigen3 \
        /usr/local/include/eigen3 /usr/include/doctest; do
        if [ -e "$folder/$1" ]; then return 0; fi
    done
    compiler=$(find_compiler)
    [ -n "$compiler" ] && echo "#include <$1>" | "$compiler" -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1
}

# want_mpi: installs OpenMPI where it is missing and can be had without asking; goes on without it otherwise (its tests are then
# shown as skipped).
want_mpi() {
    if command -v mpiexec >/dev/null 2>&1 && command -v mpicxx >/dev/null 2>&1; then return; fi
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then return; fi
    echo "Installing what is missing for several ranks: libopenmpi-dev openmpi-bin"
    { apt-get update -q && env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends libopenmpi-dev \
        openmpi-bin; } >/dev/null 2>&1 || echo "They could not be installed: the tests of MPI ranks are skipped."
}

# require_tools compiler|doctest: a C++20 compiler, CMake, make or ninja, and Eigen; for `doctest` that as well.
require_tools() {
    packages=""
    if [ -z "$(find_compiler)" ]; then packages="$packages g++"; fi
    if ! command -v cmake >/dev/null 2>&1; then packages="$packages cmake"; fi
    if ! command -v ninja >/dev/null 2>&1 && ! command -v make >/dev/null 2>&1; then packages="$packages make"; fi
    if ! has_header Eigen/Core; then packages="$packages libeigen3-dev"; fi
    if [ "$1" = doctest ] && ! has_header doctest/doctest.h; then packages="$packages doctest-dev"; fi
    if [ -n "$packages" ]; then install_packages "$packages"; fi

    version=$(cmake --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
    major=${version%%.*}
    minor=${version#*.}
    minor=${minor%%.*}
    if [ "$major" -lt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -lt 25 ]; }; then
        fail "otimes needs CMake 3.25 or newer; this is $version." \
            "Debian 12 and Ubuntu 24.04 have one that is new enough; elsewhere: pip install cmake, or https://cmake.org."
    fi
    compiler=$(find_compiler)
    if ! printf '#include <concepts>\n#include <span>\ntemplate <std::integral Index> struct s {};\ns<int> x;\n' |
        "$compiler" -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1; then
        fail "otimes needs a C++20 compiler (g++ 12, clang++ 14 or newer); $compiler is:" "$("$compiler" --version | head -n 1)" \
            "Set CXX to a newer one."
    fi
}

# install_packages PACKAGES: by apt, as root or through sudo.
install_packages() {
    missing=$(echo "$1" | xargs)
    if ! command -v apt-get >/dev/null 2>&1; then
        fail "Missing (by their Debian names): $missing" \
            "This script installs them where apt-get is; here, please install them by the system's own package manager." \
            "An Eigen or a doctest in another place is found through OTIMES_EIGEN_DIR and OTIMES_DOCTEST_DIR."
    fi
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            fail "Missing: $missing" "Please run, as root:  apt-get install $missing"
        fi
        as_root=sudo
    fi
    echo "Installing what is missing: $missing"
    # shellcheck disable=SC2086
    if ! { $as_root apt-get update -q &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; }; then
        fail "apt-get could not install: $missing" "Please install them and run this again."
    fi
}

# generator: the -G argument for cmake.
generator() {
    if command -v ninja >/dev/null 2>&1; then echo Ninja; else echo "Unix Makefiles"; fi
}

# job_count: OTIMES_JOBS, or the number of processors, but no more than one for each 1.5 GiB of memory.
job_count() {
    count=$(nproc 2>/dev/null || echo 2)
    memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
    if [ -n "$memory" ] && [ $((memory / 1572864)) -lt "$count" ]; then count=$((memory / 1572864)); fi
    if [ "$count" -lt 1 ]; then count=1; fi
    echo "${OTIMES_JOBS:-$count}"
}
