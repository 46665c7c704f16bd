"""Compiled modules of the FlashInfer variant: prebuilt ones from `make kernels`, else compiled now.

Called once per backend, while a model is loaded. A module is a shared library of four functions over TVM's FFI,
independent of Python and PyTorch. Its name contains a digest of the variant's source, its folder FlashInfer's version
and the architecture, so a library that does not fit is never found.
"""

import logging
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from aerie.contracts.errors import ConfigError
from aerie.engine.attention.flashinfer_variant import jit_arguments, module_name
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.kernels.folder import folder, folders

_log = logging.getLogger(__name__)
VERSIONS = ("0.6.18", "0.7.2")
"""FlashInfer releases, with their post-releases, that tests/engine/attention/test_flashinfer_contract.py accepts; the
first is pinned.
"""
_SPECIFIC = 9
"""From this major capability on, code is compiled for one architecture alone, named with an `a`."""


class Module(Protocol):
    """The functions of a compiled module that Aerie calls."""

    def plan(self, *arguments: Any) -> Any: ...

    def workspace_size(self, *arguments: Any) -> Any: ...

    def paged_run(self, *arguments: Any) -> Any: ...


def load_module(shape: AttentionShape) -> Module:
    """Raises ConfigError if there is neither a prebuilt module nor a compiler, or if FlashInfer does not fit this
    machine.
    """
    try:
        import flashinfer
        import tvm_ffi
    except Exception as error:  # FlashInfer's parts query CUDA during import and raise errors of many types
        raise ConfigError(
            f"FlashInfer is installed and cannot be imported: {error}; pip install -e '.[gpu]', or set "
            f"engine.attention=triton",
            param="engine.attention",
        ) from error
    architectures = served_by(torch.cuda.get_device_capability(shape.device))
    path = prebuilt(flashinfer.__version__, architectures, module_name(shape.dtype, shape.head_dim))
    if path is not None:
        return _loaded(tvm_ffi, path)
    if compiler() is None:
        raise ConfigError(
            f"no prebuilt attention module {module_name(shape.dtype, shape.head_dim)} for sm_{architectures[0]} under "
            f"{' or '.join(map(str, folders()))}, and no CUDA compiler to make one: run make kernels "
            f"ARCHS={architectures[0]} where nvcc is and bring the folder along (AERIE_KERNELS names others), or set "
            f"engine.attention=triton",
            param="engine.attention",
        )
    return _compiled(shape)


def loadable(shape: AttentionShape) -> bool:
    """Whether `load_module` has a module for this shape. If not, the log says once why Triton serves instead."""
    try:
        load_module(shape)
    except ConfigError as error:
        _say(f"engine.attention=auto takes Triton in place of FlashInfer: {error}")
        return False
    return True


@cache
def _say(line: str) -> None:
    _log.warning(line)


def _compiled(shape: AttentionShape) -> Module:
    from flashinfer.jit.attention import gen_customize_batch_prefill_module

    try:
        return gen_customize_batch_prefill_module("fa2", *jit_arguments(shape.dtype, shape.head_dim)).build_and_load()
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"FlashInfer cannot compile an attention module with {compiler()}: {_first_line(error)}; run make kernels "
            f"with nvcc 13, or set engine.attention=triton",
            param="engine.attention",
        ) from error


def _loaded(tvm_ffi: Any, path: Path) -> Module:
    try:
        return tvm_ffi.load_module(str(path))
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"the prebuilt attention module {path} cannot be loaded ({_first_line(error)}); it needs the "
            f"libraries of CUDA 13, and this PyTorch was built for CUDA {torch.version.cuda}: make it again with "
            f"make kernels, or set engine.attention=triton",
            param="engine.attention",
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def prebuilt(version: str, architectures: list[str], name: str) -> Path | None:
    """The module for the first of these architectures that is found in one of the kernel folders."""
    places = (home / _place(version, architecture, name) for architecture in architectures for home in folders())
    return next((path for path in places if path.is_file()), None)


def prebuilt_path(version: str, architecture: str, name: str) -> Path:
    """The path that a module is written to."""
    return folder() / _place(version, architecture, name)


def _place(version: str, architecture: str, name: str) -> Path:
    return Path(f"flashinfer-{version}") / f"sm_{architecture}" / f"{name}.so"


def served_by(capability: tuple[int, int]) -> list[str]:
    """Architectures whose code a device runs, its own first: 8.6 runs code compiled for 86 and for 80."""
    major, minor = capability
    if major >= _SPECIFIC:
        return [f"{major}{minor}a"]
    return [f"{major}{older}" for older in range(minor, -1, -1)]


def compiler() -> Path | None:
    """The CUDA compiler: from CUDA_HOME, the path, or its default install location."""
    home = os.environ.get("CUDA_HOME")
    for found in (home and f"{home}/bin/nvcc", shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if found and Path(found).is_file():
            return Path(found)
    return None
