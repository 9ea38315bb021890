#!/bin/sh
# Changes one comparison or one constant of the planner at a time, in a copy, and demands that the planner's tests notice.
# usage: mutation.sh SOURCE_DIR [CXX]     needs doctest's header; takes some minutes. Prints one line per mutation.
#        mutation.sh SOURCE_DIR texts     only whether each text is still there.
set -u
source_dir=$(cd "$1" && pwd) || exit 2
cxx=${2:-c++}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT INT TERM
for folder in /usr/include/doctest "${OTIMES_DOCTEST_DIR:-/usr/include}" "${OTIMES_DOCTEST_DIR:-/usr/include}/doctest"; do
    [ -f "$folder/doctest.h" ] && doctest=$folder
done
flags="-std=c++20 -O1 -I$work/include -I$source_dir/tests ${doctest:+-I$doctest} -DOTIMES_SOURCE_DIR=\"$source_dir\""

# file | text | changed text | test file that must fail
mutations='ordering.hpp|gain_of_a > gain_of_b|gain_of_a < gain_of_b|ordering
ordering.hpp|gain_of_a > gain_of_b|gain_of_a >= gain_of_b|ordering
grouping.hpp|if (total < best[end] * (1 - 1e-9))|if (total > best[end] * (1 - 1e-9))|grouping
grouping.hpp|if (cost < least)|if (cost > least)|grouping
fusion.hpp|if (total < best[end])|if (total <= best[end] * 1.5)|grouping
fusion.hpp|cost.seconds < must_earn * best.seconds|cost.seconds > must_earn * best.seconds|golden
fusion.hpp|consider_in_l2(1.0, 0.88)|consider_in_l2(1.0, 0.5)|golden
slabs.hpp|f.groups.size() > 2 ? 2.0 : 1.0|f.groups.size() > 1 ? 2.0 : 1.0|golden
cost.hpp|buffers == 1 ? 1.25 : row|buffers == 1 ? 1.0 : row|cost
cost.hpp|run % vector != 0|run % vector > 9|cost
fusion.hpp|last->stride_in == in[k] * extent|last->stride_in >= in[k] * extent|chains
cost.hpp|bytes <= 0.5 * static_cast<double>(cpu.l1_bytes)|bytes < 0.5 * static_cast<double>(cpu.l1_bytes)|cost
cost.hpp|compute + 0.5 * traffic|compute + 0.6 * traffic|cost
cost.hpp|tile_level != level::l1 \&\& s.p_extent >= packed_fibre_extent|tile_level != level::l1 \&\& s.p_extent > packed_fibre_extent|cost
placement.hpp|extent < count|extent <= count + 12|placement
planner.hpp|next.made.workspace_bytes <= limit|next.made.workspace_bytes < limit|budget
cpu_passes.hpp|p.scalar = last ? c.scalar : -1;|p.scalar = c.scalar;|chains'

build_and_run() {  # test file -> 0 when its tests pass
    # shellcheck disable=SC2086
    $cxx $flags "$source_dir/tests/plan/$1.cpp" "$work/main.o" -o "$work/test" 2>"$work/errors" || return 2
    (cd "$work" && ./test --test-case-exclude='*[long]*' >"$work/output" 2>&1)
}

cp -R "$source_dir/include" "$work/include"
if [ "$cxx" != texts ]; then
    # shellcheck disable=SC2086
    $cxx $flags -c "$source_dir/tests/support/main.cpp" -o "$work/main.o" || exit 2
fi
failed=0
echo "$mutations" >"$work/list"
while IFS='|' read -r file text changed test; do
    header=$work/include/otimes/plan/$file
    if ! grep -qF -- "$(printf '%s' "$text" | sed 's/\\&/\&/g')" "$header"; then
        echo "STALE     $file: '$text' is no longer in the file"
        failed=1
        continue
    fi
    if [ "$cxx" = texts ]; then continue; fi
    pattern=$(printf '%s' "$text" | sed 's/\\&/\&/g; s/[][*.^$/]/\\&/g')
    replacement=$(printf '%s' "$changed" | sed 's/\\&/\&/g; s/[&/]/\\&/g')
    sed "s/$pattern/$replacement/" "$source_dir/include/otimes/plan/$file" >"$header"
    build_and_run "$test"
    outcome=$?
    cp "$source_dir/include/otimes/plan/$file" "$header"
    case $outcome in
        0) echo "SURVIVED  $file: '$text' -> '$changed' is not noticed by $test.cpp"; failed=1 ;;
        2) echo "BROKEN    $file: '$changed' does not compile"; cat "$work/errors"; failed=1 ;;
        *) echo "noticed   $file: '$text' -> '$changed'" ;;
    esac
done <"$work/list"
exit $failed
