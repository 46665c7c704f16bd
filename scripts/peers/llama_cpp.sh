#!/bin/sh
# Builds llama.cpp's server from the source that the package llama-cpp-python carries, for this machine's processor, and
# exports the demo target for it. Called by `make setup-peers`; needs cmake and a C++ compiler, and several minutes.
set -eu
cd "$(dirname "$0")/../.."
python=$1
out=build/peers
release=0.3.36

command -v cmake >/dev/null 2>&1 || { echo "aerie: no cmake; install it and a C++ compiler (Debian: cmake g++)" >&2; exit 1; }
mkdir -p "$out"
for kind in bf16 f16; do
    [ -s "$out/demo-$kind.gguf" ] || "$python" scripts/peers/export_gguf.py models/demo/target "$out/demo-$kind.gguf" --kind "$kind"
done
[ -x "$out/llama.cpp/bin/llama-server" ] && exit 0
"$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$out" "llama-cpp-python==$release"
tar -xzf "$out/llama_cpp_python-$release.tar.gz" -C "$out"
cmake -S "$out/llama_cpp_python-$release/vendor/llama.cpp" -B "$out/llama.cpp" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
cmake --build "$out/llama.cpp" --target llama-server --parallel "${JOBS:-2}"
