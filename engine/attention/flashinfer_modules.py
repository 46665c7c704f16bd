"""Compiled modules of the FlashInfer variant: prebuilt ones where `make kernels` left them, else compiled now.

Called once a backend, while a model is loaded. A module is a shared library of four functions over TVM's FFI, bound to
neither Python nor PyTorch; its name carries a digest of the variant's source, its folder FlashInfer's version and the
architecture, so a library that does not fit is never found.
"""

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch

from contracts.errors import ConfigError
from engine.attention.flashinfer_variant import jit_arguments, module_name
from engine.attention.inputs import AttentionShape
from engine.kernels.folder import folder

VERSIONS = ("0.6.18", "0.7.2")
"""Releases of FlashInfer, their post-releases too, that tests/engine/test_flashinfer_contract.py takes; the first is
pinned.
"""
_SPECIFIC = 9
"""From this major capability on code is compiled for one architecture alone, written with an `a`."""


class Module(Protocol):
    """The functions of a compiled module that Aerie calls."""

    def plan(self, *arguments: Any) -> Any: ...

    def workspace_size(self, *arguments: Any) -> Any: ...

    def paged_run(self, *arguments: Any) -> Any: ...


def load_module(shape: AttentionShape) -> Module:
    """Raises ConfigError where there is neither a prebuilt module nor a compiler, or FlashInfer does not fit here."""
    try:
        import flashinfer
        import tvm_ffi
    except ImportError as error:
        raise ConfigError(
            f"FlashInfer is installed and cannot be imported: {error}; install aerie[gpu], or set "
            f"engine.attention=triton",
            param="engine.attention",
        ) from error
    architectures = served_by(torch.cuda.get_device_capability(shape.device))
    for architecture in architectures:
        path = prebuilt_path(flashinfer.__version__, architecture, module_name(shape.dtype, shape.head_dim))
        if path.is_file():
            return _loaded(tvm_ffi, path)
    if compiler() is None:
        raise ConfigError(
            f"no prebuilt attention module {module_name(shape.dtype, shape.head_dim)} for sm_{architectures[0]} under "
            f"{folder()}, and no CUDA compiler to make one: run make kernels ARCHS={architectures[0]} where nvcc is "
            f"and bring the folder along (AERIE_KERNELS names another), or set engine.attention=triton",
            param="engine.attention",
        )
    from flashinfer.jit.attention import gen_customize_batch_prefill_module

    return gen_customize_batch_prefill_module("fa2", *jit_arguments(shape.dtype, shape.head_dim)).build_and_load()


def _loaded(tvm_ffi: Any, path: Path) -> Module:
    try:
        return tvm_ffi.load_module(str(path))
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the prebuilt attention module {path} cannot be loaded ({reason}); it needs the libraries of CUDA 13, and "
            f"this PyTorch was built for CUDA {torch.version.cuda}: make it again with make kernels, or set "
            f"engine.attention=triton",
            param="engine.attention",
        ) from error


def prebuilt_path(version: str, architecture: str, name: str) -> Path:
    return folder() / f"flashinfer-{version}" / f"sm_{architecture}" / f"{name}.so"


def served_by(capability: tuple[int, int]) -> list[str]:
    """Architectures whose code runs on a device, its own first: 8.6 runs what was compiled for 86 and for 80."""
    major, minor = capability
    if major >= _SPECIFIC:
        return [f"{major}{minor}a"]
    return [f"{major}{older}" for older in range(minor, -1, -1)]


def compiler() -> Path | None:
    """The CUDA compiler: under CUDA_HOME, on the path, or where it is installed by default."""
    home = os.environ.get("CUDA_HOME")
    for found in (home and f"{home}/bin/nvcc", shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if found and Path(found).is_file():
            return Path(found)
    return None
