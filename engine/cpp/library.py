"""The C++ kernels as one shared library: compiled for this very CPU when it is first asked for, then kept.

Called while a model is loaded (`engine.kernels.switch`). What is compiled is named by a digest of the sources, the
compiler and the CPU, so that neither an upgrade nor another machine meets a library of another.
"""

import ctypes
import hashlib
import platform
import shutil
import subprocess
import sys
from ctypes import c_bool, c_char_p, c_float, c_long, c_void_p
from functools import cache
from pathlib import Path

from engine.cpp.compilation import compiled
from engine.kernels.folder import folder

SOURCES = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 600
"""For one source, on a machine that does many other things besides: alone it takes some. Who gave up would compile all
of them again in the next process."""
_SIGNATURES: dict[str, list[type]] = {
    "normed": [c_void_p] * 4 + [c_long] * 3,
    "turned": [*[c_void_p] * 4, *[c_long] * 4, c_bool],
    "gated": [c_void_p] * 2 + [c_long] * 2,
    "multiplied": [c_void_p] * 5 + [c_long] * 3 + [c_bool],
    "swiglu": [c_void_p] * 9 + [c_long] * 3,
    "passed": [*[c_void_p] * 13, *[c_long] * 10, c_bool, c_bool],
    "attended": [*[c_void_p] * 8, *[c_long] * 6, c_bool],
    "chosen": [*[c_void_p] * 4, c_long, c_long, c_float],
    "likelihood": [c_void_p] * 4 + [c_long] * 2,
    "drawn": [*[c_void_p] * 6, c_long, c_long, c_float],
    "edges": [*[c_void_p] * 6, c_long, c_long, c_float],
    "gumbel": [c_void_p] * 4 + [c_long] * 2,
    "accepted": [c_void_p] * 7 + [c_long] * 3,
    "cut": [c_void_p] * 9 + [c_long] * 6,
    "taken": [c_void_p] * 10 + [c_long] * 3,
    "published": [c_void_p] * 10 + [c_long] * 3,
    "slots": [c_void_p] * 4 + [c_long] * 3,
    "moved": [c_void_p] * 5 + [c_long] * 7,
    "children": [*[c_void_p] * 7, *[c_long] * 3, c_float],
    "advanced": [c_void_p] * 9 + [c_long] * 6,
    "drafted_chain": [*[c_void_p] * 4, c_long, c_float],
    "drafted_tree": [c_void_p] * 7 + [c_long] * 3,
    "decoded": [c_void_p] * 2,
    "prefilled": [c_void_p] * 3,
    "prompts_followed": [*[c_void_p] * 3, c_char_p],
    "round_drafted": [c_void_p] * 3,
    "round_verified": [c_void_p] * 2,
    "round_accepted": [c_void_p] * 3,
    "round_extended": [c_void_p] * 2,
    "selected": [c_void_p] * 9 + [c_long] * 3,
}
"""Parameters of each function; addresses are not checked."""
_RESULTS: dict[str, type] = {"drafted_chain": c_long}
"""Of those that return something."""


class Unavailable(Exception):
    """Why this machine cannot have the kernels."""


@cache
def library() -> ctypes.CDLL:
    """Compiles at the first call on this machine, in some seconds. Raises Unavailable."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise Unavailable("there is no C++ compiler (Debian: g++)")
    return _opened(_compiled(compiler, folder() / "cpp"))


@cache
def missing() -> str | None:
    """Why this machine cannot have the kernels, found out once; None where it can."""
    try:
        library()
    except Unavailable as error:
        return str(error)
    return None


def _compiled(compiler: str, kept: Path) -> Path:
    command = [compiler, *_FLAGS, _for_this_cpu()]
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)  # the longest first
    built = kept / f"{_digest([*command, _version(compiler), _cpu()])}.so"
    if built.exists():
        return built
    try:
        return compiled(command, sources, built, seconds=_SECONDS)
    except OSError as error:
        raise Unavailable(
            f"the kernels cannot be kept in {kept}: {error.strerror}; AERIE_KERNELS names another folder"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{compiler} took more than {_SECONDS} seconds") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{compiler} failed: {error.stderr.decode(errors='replace')[-500:]}") from error


def _for_this_cpu() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _version(compiler: str) -> str:
    found = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    return found.stdout


def _cpu() -> str:
    """What `native` means here: the CPU's features, where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _digest(parts: list[str]) -> str:
    digest = hashlib.sha256("\n".join(parts).encode())
    for source in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


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
    if (why := missing()) is not None:
        sys.stdout.write(f"aerie: {why}; on a CPU torch's operators serve, more slowly\n")
