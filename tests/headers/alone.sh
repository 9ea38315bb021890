#!/bin/sh
# alone.sh HEADER COMPILER [FLAG...]: a file that includes HEADER, twice, and nothing else compiles.
set -u
header=$1
shift
printf '#include <%s>\n#include <%s>\n' "$header" "$header" | "$@" -fsyntax-only -x c++ -
