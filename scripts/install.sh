#!/bin/sh
# Creates $VENV and installs Aerie with the extras $EXTRAS and the pins of $CONSTRAINTS. Called by `make setup` and
# `make setup-sglang`; reports what is missing and how to get it.
set -eu
EXTRAS="${EXTRAS:-dev}"
CONSTRAINTS="${CONSTRAINTS:-constraints.txt}"

fail() {
    echo "aerie: $1" >&2
    exit 1
}

command -v "$PYTHON" >/dev/null 2>&1 || fail "no $PYTHON; install Python 3.11 or newer (Debian: python3), or name one with PYTHON="
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$PYTHON is $("$PYTHON" -V 2>&1); Aerie needs Python 3.11 or newer: name one with PYTHON="
if [ ! -x "$VENV/bin/python" ]; then
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON has no venv module; install it (Debian: python3-venv)"
    "$PYTHON" -m venv "$VENV"
fi

if [ "${WITH_UV:-}" = 1 ] && ! command -v uv >/dev/null 2>&1; then
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c "$CONSTRAINTS" uv
    PATH="$PWD/$VENV/bin:$PATH"
fi
if command -v uv >/dev/null 2>&1; then
    install() { VIRTUAL_ENV="$VENV" uv pip install --quiet -c "$CONSTRAINTS" "$@"; }
else
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || fail "$VENV has no pip; install it (Debian: python3-pip) and remove $VENV"
    install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c "$CONSTRAINTS" "$@"; }
fi

echo "aerie: installing into $VENV; the first time this downloads ${SIZE:-PyTorch}, which takes a while"
failed() {
    command -v cc >/dev/null 2>&1 ||
        fail "the installation failed (above is why), and there is no C compiler for a package that has no wheel here; install one (Debian: build-essential, python3-dev)"
    fail "the installation failed; above is why"
}
[ -z "$TORCH_INDEX" ] || install --index-url "$TORCH_INDEX" torch || failed
install -e ".[$EXTRAS]" || failed
echo "aerie: installed; '. $VENV/bin/activate' brings the command aerie into this shell"
