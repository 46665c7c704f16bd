#!/bin/sh
# Installs FlashInfer and Triton into $VENV for tests without a GPU. Called by `make test-gpu-contracts`.
#
# FlashInfer is installed without its dependencies: they are gigabytes of CUDA libraries, and one of them requires a GPU
# on import. FLASHINFER= and TRITON= select other releases than the pinned ones.
set -eu

if command -v uv >/dev/null 2>&1; then
    install() { VIRTUAL_ENV="$VENV" uv pip install --quiet "$@"; }
else
    install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
fi

# shellcheck disable=SC2046  # one word a package
install $(grep -v '^#\|^flashinfer\|^triton' constraints-gpu.txt) "triton==${TRITON:-$(sed -n 's/^triton==//p' constraints-gpu.txt)}"
install --no-deps "flashinfer-python==${FLASHINFER:-$(sed -n 's/^flashinfer-python==//p' constraints-gpu.txt)}"
"$VENV/bin/python" -c 'import flashinfer, triton; print("aerie: FlashInfer", flashinfer.__version__, "and Triton", triton.__version__)'
