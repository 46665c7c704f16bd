"""FlashInfer's wheel and a compiled module of Aerie's variant, where both are here; no GPU is asked for."""

import ctypes
import importlib.util
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

PROCESSORS = 132
"""Of the device that the shim stands for."""
_SHIM = Path(__file__).parent / "cuda_runtime_shim.c"
_RUNTIME = "libcudart.so.13"

INSTALLED = importlib.util.find_spec("flashinfer") is not None
needs_wheel = pytest.mark.skipif(not INSTALLED, reason="flashinfer-python is not installed: make test-gpu-contracts")


@cache
def real_module() -> Any:
    """The compiled module with FlashInfer's own planner, over the shim. Skips where a part is missing."""
    if not INSTALLED:
        pytest.skip("flashinfer-python is not installed: make test-gpu-contracts")
    import flashinfer
    import tvm_ffi

    from aerie.engine.attention.flashinfer_modules import compiler, prebuilt_path
    from aerie.engine.attention.flashinfer_variant import module_name

    path = prebuilt_path(flashinfer.__version__, "90a", module_name(torch.bfloat16, 64))
    if not path.is_file():
        pytest.skip(f"no {path}: make kernels ARCHS=90a")
    _preload_shim()
    nvcc = compiler()
    for runtime in (_RUNTIME, *((f"{nvcc.parents[1] / 'lib64' / _RUNTIME}",) if nvcc else ())):
        try:
            ctypes.CDLL(runtime)
            break
        except OSError:
            continue
    else:
        pytest.skip(f"no {_RUNTIME}, which compiled modules link to")
    return tvm_ffi.load_module(str(path))


@cache
def _preload_shim() -> ctypes.CDLL:
    built = Path("/tmp") / f"aerie-cuda-shim-{_SHIM.stat().st_mtime_ns}.so"
    if not built.is_file():
        own = built.with_suffix(f".{os.getpid()}")  # others may be about to load or to make it too
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(own), str(_SHIM)], check=True)
        own.replace(built)
    return ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)


def copies() -> int:
    """Copies that the planner has started so far."""
    return int(_preload_shim().aerie_copies())
