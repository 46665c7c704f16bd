#!/bin/sh
# llama.cpp's server, for the sweep that compares it with Aerie:
#   llama_cpp.sh build PYTHON     builds it for this processor, from the source in llama-cpp-python; called
#                                 by `make setup-peers`, needs cmake and a C++ compiler, takes several minutes
#   llama_cpp.sh shape            builds from that source what llama_shape.py measures beside: for this processor, and for
#                                 AVX2 alone
#   llama_cpp.sh serve KIND FLAGS exports the demo target anew, as it may have changed, with weights of KIND, and serves it
set -eu
cd "$(dirname "$0")/../.."
place=build/peers
release=0.3.36
source=$place/llama_cpp_python-$release/vendor/llama.cpp

# GCC 12's _tile_loadconfig is known to read eight bytes only, so the others may be written after it: with AMX llama.cpp
# then ends with SIGILL.
mend() {
    grep -q '__asm__ volatile("" ::: "memory");' "$source/ggml/src/ggml-cpu/amx/mmq.cpp" ||
        sed -i 's/^    _tile_loadconfig(&tc);$/    __asm__ volatile("" ::: "memory");\n&/' "$source/ggml/src/ggml-cpu/amx/mmq.cpp"
}

case $1 in
build)
    command -v cmake >/dev/null 2>&1 || {
        echo "aerie: no cmake; install it and a C++ compiler (Debian: cmake g++)" >&2
        exit 1
    }
    mkdir -p "$place"
    "$2" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$place" "llama-cpp-python==$release"
    tar -xzf "$place/llama_cpp_python-$release.tar.gz" -C "$place"
    mend
    cmake -S "$source" -B "$place/llama.cpp" -DCMAKE_BUILD_TYPE=Release \
        -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
    cmake --build "$place/llama.cpp" --target llama-server --parallel "${JOBS:-2}"
    ;;
shape)
    mend
    for march in best x86-64-v3; do
        native=ON
        [ "$march" = best ] || native=OFF # which leaves AVX2, FMA, F16C and BMI2 on
        cmake -S "$source" -B "$place/shared-$march" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
            -DGGML_NATIVE=$native -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
            -DLLAMA_BUILD_APP=OFF
        cmake --build "$place/shared-$march" --target llama --parallel "${JOBS:-2}"
    done
    c++ -O2 -std=c++17 -I"$source/include" -I"$source/ggml/include" scripts/peers/llama_decode.cpp -o "$place/llama_decode" \
        -L"$place/shared-best/bin" -Wl,-rpath-link,"$place/shared-best/bin" -lllama
    ;;
serve)
    kind=$2
    shift 2
    [ -x "$place/llama.cpp/bin/llama-server" ] || {
        echo "aerie: no $place/llama.cpp/bin/llama-server; make setup-peers builds it" >&2
        exit 1
    }
    mkdir -p "$place"
    python scripts/peers/export_gguf.py models/demo/target "$place/demo-$kind.gguf" --kind "$kind"
    exec "$place/llama.cpp/bin/llama-server" --model "$place/demo-$kind.gguf" "$@"
    ;;
esac
