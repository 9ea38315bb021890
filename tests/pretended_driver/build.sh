# Read by the scripts beside it, behind ROOT CMAKE COMPILER [FLAG...]: sets root, work (a folder that goes away with the script) and back_end (the sources of
# backend/cuda with what they need), and leaves the compiler and its flags in "$@".
root=$1
cmake=$2
shift 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# compile [FLAG or SOURCE...]: by the compiler, with its flags in front.
compile() {
    "$@" >"$work/log" 2>&1 || {
        head -n 40 "$work/log"
        exit 1
    }
}

# takes COMPILER FLAGS: whether programs with these flags can be made and run.
takes() {
    echo 'int main() {}' >"$work/empty.cpp"
    # shellcheck disable=SC2086
    "$1" $2 "$work/empty.cpp" -o "$work/empty" 2>/dev/null && "$work/empty"
}

# driver FLAGS COMPILER [FLAG...]: the pretended driver, NVRTC and NCCL, one library, which fails where it is told to.
driver() {
    extra=$1
    shift
    # shellcheck disable=SC2086
    compile "$@" -w -O1 $extra -fPIC -shared "-I$root" "-I$root/tests" "-I$root/include" "-I$root/kernels" \
        "$root/tests/pretended_driver/driver.cpp" "$root/tests/pretended_driver/nccl.cpp" -o "$work/libcuda.so.1" -pthread
    ln -s libcuda.so.1 "$work/libnvrtc.so.13"
}

"$cmake" -D "folder=$root/kernels" -D "output=$work/kernel_sources.cpp" -P "$root/backend/cuda/embed_kernels.cmake" || exit 1
back_end=""
for name in driver kernel_store device executor executor_memory prepare process_executors receipt streaming tuning runtime_compiler; do
    back_end="$back_end $root/backend/cuda/$name.cpp"
done
for name in "$root"/backend/core/*.cpp "$root/backend/make_executor.cpp" "$root/tests/pretended_driver/no_core_set.cpp" "$work/kernel_sources.cpp"; do
    back_end="$back_end $name"
done
