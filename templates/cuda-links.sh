# The CUDA tree of NVIDIA's wheels has only lib, no libcudart.so and nothing to link -lcuda with:
# nvcc, SGLang and FlashInfer look for all three. In place: nvcc finds its root by its real path.

# Prints where the loader finds a library.
library() {
    { /sbin/ldconfig -p 2>/dev/null || ldconfig -p 2>/dev/null; } \
        | awk -v name="$1" '$1 == name && /x86-64|AArch64/ { print $NF; exit }'
}

# cuda_links SITE_PACKAGES: makes what is missing, and leaves what is there.
cuda_links() {
    for cuda in "$1"/nvidia/cu[0-9]*; do
        [ -x "$cuda/bin/nvcc" ] && [ -d "$cuda/lib" ] || continue
        [ -e "$cuda/lib64" ] || ln -sfn lib "$cuda/lib64" || return 1
        if [ ! -e "$cuda/lib/libcudart.so" ]; then
            for path in "$cuda"/lib/libcudart.so.[0-9]*; do
                [ -e "$path" ] || continue
                ln -sfn "${path##*/}" "$cuda/lib/libcudart.so" || return 1
            done
        fi
        driver=$(library libcuda.so.1)
        if [ -n "$driver" ] && [ -z "$(library libcuda.so)" ] && [ ! -e "$cuda/lib/stubs/libcuda.so" ]; then
            mkdir -p "$cuda/lib/stubs" && ln -sfn "$driver" "$cuda/lib/stubs/libcuda.so" || return 1
        fi
    done
}
