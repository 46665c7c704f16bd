"""Whether C++ kernels can run here, a set of them, and a fixture: a file's tests on references, then on kernels."""

import os

import pytest

from aerie.engine.bindings import REFERENCES, Kernels
from aerie.native.kernels.table import cpp_kernels
from aerie.native.library import missing
from aerie.native.products import amx_here, dots_here
from aerie.native.trials import AMX, DOTS

if os.environ.get("AERIE_MARCH") and missing() is not None:  # asked for by name: not to be skipped
    raise RuntimeError(missing())

needs_cpp = pytest.mark.skipif(missing() is not None, reason=f"no C++ kernels: {missing()}")
needs_dots = pytest.mark.skipif(
    missing() is not None or not dots_here(), reason="this CPU, or the level compiled for it, lacks AVX512_BF16"
)
needs_amx = pytest.mark.skipif(
    missing() is not None or not amx_here(), reason="this CPU, or the level compiled for it, lacks AMX_BF16"
)
of_each = pytest.mark.parametrize("product", [pytest.param(DOTS, marks=needs_dots), pytest.param(AMX, marks=needs_amx)])
"""Of Aerie's products of pairs of bf16."""
CPP = cpp_kernels() if missing() is None else REFERENCES


@pytest.fixture(params=["torch", pytest.param("cpp", marks=needs_cpp)])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return REFERENCES if request.param == "torch" else cpp_kernels()
