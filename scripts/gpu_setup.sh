#!/bin/sh
# Makes $VENV from the folder $KIT, without a network, on top of the packages that $PYTHON has: its PyTorch with CUDA
# and its Triton are used as they are. Called by `make gpu-setup`; `make gpu-kit` made the folder.
set -eu

fail() {
    echo "aerie: $1" >&2
    exit 1
}

[ -d "$KIT/wheels" ] || fail "no $KIT/wheels; make it with make gpu-kit on a machine with a network, and bring $KIT along"
"$PYTHON" -c 'import torch, triton' 2>/dev/null || fail "$PYTHON has no torch or no triton; name one that has, with PYTHON="
"$PYTHON" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
    echo "aerie: this PyTorch was built for CPUs; what needs a GPU will be left out" >&2

rm -rf "$VENV"
"$PYTHON" -m venv --without-pip "$VENV"
site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" "$KIT"/wheels/*.whl ||
    fail "the wheels do not fit $("$PYTHON" -V): make gpu-kit GPU_PYTHON= names its version"

# Adds the sources, and the packages of $PYTHON, which a venv made from another venv does not see by default.
theirs=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
printf '%s\n' "$PWD" "import site; site.addsitedir('$theirs')" > "$site/aerie.pth"
printf '#!/bin/sh\nexec "%s" -m aerie "$@"\n' "$PWD/$VENV/bin/python" > "$VENV/bin/aerie"
chmod +x "$VENV/bin/aerie"

for archive in "$KIT"/aerie-kernels-*.zip; do
    [ ! -f "$archive" ] || "$VENV/bin/python" -m zipfile -e "$archive" build/kernels
done
"$VENV/bin/python" scripts/gpu_ready.py
