"""The C++ kernels as one shared library: compiled for CPUs like this one on first use, then kept.

Called while a model is loaded (`native.kernels.table`). A library's name contains its target (march.py), a digest of
the sources and one of the compiler. So an upgrade never loads another version's library, and a machine without a
compiler finds what another one compiled for it.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int64, c_long, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from aerie.engine.kernels.folder import folder, folders
from aerie.native.compilation import compiled
from aerie.native.march import March, lacking, march_of, runnable

logger = logging.getLogger("aerie.kernels")

SOURCES = Path(__file__).parent / "src"
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-pthread", "-fPIC")
_COMPILERS = ("c++", "g++", "clang++")
_NO_COMPILER = "there is no C++ compiler (Debian: g++)"
_VERSION_SECONDS = 20
_SECONDS = 300
"""Seconds for all sources together, for a busy machine; an idle one needs twenty. After a timeout the next process
compiles all sources again.
"""
_IDLE_SECONDS = 30
"""A compiler that has not computed for so long hangs."""
_SIGNATURES: dict[str, list[type]] = {
    "normed": [c_void_p] * 4 + [c_long] * 3,
    "rotated": [*[c_void_p] * 4, *[c_long] * 4, c_bool],
    "gated": [c_void_p] * 2 + [c_long] * 2,
    "layout": [c_char_p],
    "columns": [],
    "panel_size": [],
    "has_dots": [],
    "permit_amx": [],
    "multiplied": [*[c_void_p] * 3, c_long, c_bool],
    "multiplied_one_by_one": [c_void_p] * 3 + [c_long] * 2,
    "multiply_adds": [c_void_p, c_long],
    "dot_products": [c_void_p, c_long],
    "read_through": [c_void_p, c_long],
    "amx_products": [c_long],
    "use_threads": [c_long],
    "read_far_ahead": [c_bool],
    "swiglu": [*[c_void_p] * 5, c_long],
    "passed": [*[c_void_p] * 13, *[c_long] * 10, *[c_bool] * 3],
    "attended": [*[c_void_p] * 8, *[c_long] * 6, c_bool],
    "chosen": [*[c_void_p] * 4, c_long, c_long, c_float],
    "chosen_among": [c_void_p, c_long, c_long, *[c_void_p] * 5],
    "mask_put": [*[c_void_p] * 3, c_long, c_long],
    "likelihood": [c_void_p] * 4 + [c_long] * 2,
    "drawn": [*[c_void_p] * 6, c_long, c_long, c_float],
    "edges": [*[c_void_p] * 6, c_long, c_long, c_float],
    "gumbel": [c_void_p] * 4 + [c_long] * 2,
    "accepted": [c_void_p] * 7 + [c_long] * 3,
    "edited": [c_void_p] * 10 + [c_long] * 4,
    "cut": [c_void_p] * 9 + [c_long] * 6,
    "taken": [c_void_p] * 10 + [c_long] * 3,
    "published": [c_void_p] * 10 + [c_long] * 3,
    "slots": [c_void_p] * 4 + [c_long] * 3,
    "moved": [c_void_p] * 5 + [c_long] * 7,
    "children": [*[c_void_p] * 7, *[c_long] * 3, c_float],
    "advanced": [c_void_p] * 9 + [c_long] * 6,
    "decoded": [c_void_p] * 3,
    "prefilled": [c_void_p] * 3,
    "prompts_extended": [*[c_void_p] * 3, c_char_p],
    "round_drafted": [c_void_p] * 3,
    "round_verified": [c_void_p] * 2,
    "round_accepted": [c_void_p] * 3,
    "round_extended": [c_void_p] * 2,
    "selected": [c_void_p] * 9 + [c_long] * 3,
}
"""Parameter types of each function; addresses are not checked."""
_RESULTS: dict[str, Any] = {
    "chosen_among": c_int64,
    "layout": POINTER(c_int64),
    "columns": c_char_p,
    "dot_products": c_double,
    "has_dots": c_bool,
    "permit_amx": c_bool,
    "multiply_adds": c_double,
    "panel_size": c_long,
    "read_through": c_float,
    "amx_products": c_double,
}
"""Result types of the functions that return something."""


class Unavailable(Exception):
    """Why the kernels are not available on this machine."""


@cache
def library() -> ctypes.CDLL:
    """The library for this CPU's best level, or for AERIE_MARCH. The first call on a machine compiles it, in some
    seconds. If it cannot, it loads a library that is kept for a lower level. Raises Unavailable.
    """
    asked = os.environ.get("AERIE_MARCH")
    levels = [_asked(asked)] if asked else runnable()
    if why := lacking(levels[0]):
        raise Unavailable(why)
    try:
        return _opened(_made(levels[0]))
    except Unavailable as error:
        kept = next(filter(None, map(_kept, levels)), None)
        if kept is None:
            raise
        logger.warning("%s; %s, compiled before, serves", error, kept.name)
        return _opened(kept)


def make() -> Path:
    """The library for AERIE_MARCH, or for this CPU's best level, compiled if it does not exist. It is not loaded, so it
    may be for another machine. Raises Unavailable.
    """
    asked = os.environ.get("AERIE_MARCH")
    return _made(_asked(asked) if asked else runnable()[0])


def library_name() -> str:
    """The loaded library's name: its target, and digests of its sources and its compiler."""
    return Path(library()._name).stem


@cache
def missing() -> str | None:
    """Why the kernels are not available on this machine, determined once; None if they are."""
    try:
        library()
    except Unavailable as error:
        return str(error)
    return None


def _asked(name: str) -> March:
    try:
        return march_of(name)
    except ValueError as error:
        raise Unavailable(str(error)) from error


def _made(march: March) -> Path:
    compiler = next(filter(None, map(shutil.which, _compilers(march))), None)
    if compiler is None:
        package = f"g++-{march.machine}-linux-gnu".replace("_", "-")
        raise Unavailable(
            f"there is no C++ compiler for {march.machine} (Debian: {package})" if march.foreign else _NO_COMPILER
        )
    return _compiled(compiler, folder() / "cpp", march)


def _compilers(march: March) -> Sequence[str]:
    if march.foreign:
        return (f"{march.machine}-linux-gnu-g++",)
    return (*filter(None, [os.environ.get("CXX")]), *_COMPILERS)


def _kept(march: March) -> Path | None:
    """A library compiled from these sources by any compiler."""
    return next((found for place in folders() for found in sorted((place / "cpp").glob(f"{_name(march)}-*.so"))), None)


def _name(march: March) -> str:
    digest = hashlib.sha256("\n".join([*_FLAGS, *march.flags, *sorted(march.features)]).encode())
    for source in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(source.read_bytes())
    return f"{march.name}-{digest.hexdigest()[:16]}"


def _compiled(compiler: str, kept: Path, march: March) -> Path:
    command = [compiler, *_FLAGS, *march.flags]
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)  # the longest first
    built = kept / f"{_name(march)}-{hashlib.sha256(_version(compiler).encode()).hexdigest()[:8]}.so"
    if built.exists():
        return built
    try:
        return compiled(command, sources, built, seconds=_SECONDS, idle_seconds=_IDLE_SECONDS)
    except OSError as error:
        raise Unavailable(
            f"the kernels cannot be kept in {kept}: {error.strerror}; AERIE_KERNELS names another folder"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"{compiler} hangs or takes more than {_SECONDS} seconds, and is stopped; the next start tries again"
        ) from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{compiler} failed: {error.stderr.decode(errors='replace')[-500:]}") from error


def _version(compiler: str) -> str:
    try:
        found = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{compiler} --version took more than {_VERSION_SECONDS} seconds") from error
    except OSError as error:
        raise Unavailable(f"{compiler} cannot be run: {error.strerror}") from error
    return compiler + found.stdout


def _opened(path: Path) -> ctypes.CDLL:
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error
    for name, parameters in _SIGNATURES.items():
        function = getattr(opened, name)
        function.argtypes, function.restype = parameters, _RESULTS.get(name)
    return opened


if __name__ == "__main__":  # make setup: so that the first start need not compile
    try:
        make()
    except Unavailable as error:
        sys.stdout.write(f"aerie: {error}; on a CPU torch's operators serve, more slowly\n")
