#!/bin/sh
# layers.sh ROOT: prints every breach of the rules below as `file:line: rule` and fails if there is one.
#
#   expr     includes expr, program                 program  includes program
#   plan     includes plan, program                 exec     includes exec, plan, program
#   factorwise  includes factorwise, expr, program
#   adapt    includes every room                    kernels/ includes kernels/ only, and nothing from elsewhere
#   device   includes cuda.hpp and every room but adapt
#
# expr, factorwise, program, plan, exec and device include no Eigen, CUDA, MPI or NCCL header. Eigen::internal is named by include/otimes/adapt/eigen*
# alone. No .cu or .cuh file includes Eigen or doctest. Nothing in include/, backend/ or kernels/ calls exit, abort or
# printf or writes to std::cout or std::cerr.
set -u
cd "$1" || exit 2

files=$(find include backend kernels \( -name '*.hpp' -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) \
    2>/dev/null | sort)
if [ -z "$files" ]; then
    echo "layers.sh: no sources under $1"
    exit 2
fi

# The names of files hold no blanks.
# shellcheck disable=SC2086
awk '
function breach(rule) {
    printf "%s:%d: %s\n", FILENAME, FNR, rule
    failed = 1
}
# The path below include/ that #include "name" in `file` means.
function resolved(file, name,    count, part, depth, i, stack, path) {
    if (name ~ /^otimes\//) return name
    sub(/[^\/]*$/, "", file)
    count = split(file name, part, "/")
    depth = 0
    for (i = 1; i <= count; ++i) {
        if (part[i] == "..") --depth
        else if (part[i] != ".") stack[++depth] = part[i]
    }
    path = stack[1]
    for (i = 2; i <= depth; ++i) path = path "/" stack[i]
    sub(/^include\//, "", path)
    return path
}
BEGIN {
    allowed["expr"] = " expr program "
    allowed["factorwise"] = " factorwise expr program "
    allowed["program"] = " program "
    allowed["plan"] = " plan program "
    allowed["exec"] = " exec plan program "
    allowed["device"] = " device cuda.hpp device_algebra.hpp host_matrix.hpp exec expr factorwise plan program "
    rooms = " expr factorwise program plan exec adapt device "
}
FNR == 1 {
    parts = split(FILENAME, path, "/")
    room = ""
    if (FILENAME ~ /^include\/otimes\// && parts >= 4) room = path[3]
    if (FILENAME ~ /^kernels\//) room = "kernels"
    if (room != "" && room != "kernels" && index(rooms, " " room " ") == 0) breach("no such room: " room)
    in_comment = 0
}
{
    # Comments and the text of strings are not code. An include keeps its quotes.
    line = $0
    is_include = line ~ /^[ \t]*#[ \t]*include/
    if (!is_include) gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
    if (in_comment) {
        if (!sub(/^.*\*\//, "", line)) next
        in_comment = 0
    }
    sub(/\/\/.*$/, "", line)
    gsub(/\/\*[^*]*\*\//, "", line)
    if (line ~ /\/\*/) {
        sub(/\/\*.*$/, "", line)
        in_comment = 1
    }
}
is_include && line ~ /["<]/ {
    quoted = line ~ /"/
    name = line
    sub(/^[^"<]*["<]/, "", name)
    sub(/[">].*$/, "", name)

    if (room == "kernels") {
        if (!quoted || name ~ /\.\./ || name ~ /\//) breach("kernels/ includes only kernels/, by \"name.cuh\": " name)
    } else if (room != "" && room != "adapt") {
        target = ""
        if (quoted) name = resolved(FILENAME, name)
        if (name ~ /^otimes\//) {
            split(name, part, "/")
            target = part[2]
        } else if (quoted) {
            breach(room " must not include what lies outside include/otimes: " name)
        }
        if (target != "" && index(allowed[room], " " target " ") == 0) breach(room " must not include " target ": " name)
        if (name ~ /^(unsupported\/)?Eigen\//) breach(room " must not include Eigen: " name)
        if (name ~ /^(cuda|cublas|nccl|nvrtc|mpi|thrust|cub\/)/) breach(room " must not include a toolkit: " name)
    }
    if (FILENAME ~ /\.cuh?$/ && name ~ /(^|\/)(Eigen|doctest)(\/|\.|$)/) breach("device code must not include " name)
    if (name ~ /(^|\/)doctest/) breach("library code must not include " name)
    next
}
/Eigen/ && line ~ /Eigen::internal|namespace Eigen *(::|\{) *(namespace )?internal/ && FILENAME !~ /^include\/otimes\/adapt\/eigen/ {
    breach("only include/otimes/adapt/eigen* names Eigen::internal")
}
room != "" && room != "adapt" && line ~ /(^|[^A-Za-z0-9_])Eigen::/ { breach(room " must not name Eigen::") }
line ~ /(^|[^A-Za-z0-9_.>])(exit|_exit|quick_exit|abort|terminate|printf|fprintf|puts|fputs|putchar) *\(/ {
    breach("library code neither ends the program nor prints")
}
line ~ /std::(cout|cerr|clog)/ { breach("library code neither ends the program nor prints") }
END { exit failed }
' $files
