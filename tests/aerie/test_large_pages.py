"""The lane's process gets large pages from glibc, and nobody else's environment changes."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from aerie import lane
from aerie.contracts.config import Config
from aerie.large_pages import TUNABLES, large_pages

_ALLOCATES = """
import ctypes
size = 64 << 20
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
ctypes.memset(libc.malloc(size), 1, size)
"""
_ASKS = """
import mmap
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
memory.write(bytes(64 << 20))
"""
_COUNTS = """
import re
print(sum(map(int, re.findall(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps").read()))))
"""
_ON_REQUEST = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _kilobytes(fills: str) -> int:
    """In large pages, of a new process that has filled 64 MiB."""
    return int(subprocess.run([sys.executable, "-c", fills + _COUNTS], check=True, capture_output=True).stdout)


def _glibc() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()


def test_a_process_that_starts_meanwhile_has_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    if _glibc() < (2, 35):
        pytest.skip("only glibc 2.35 and later asks for large pages")
    if not _ON_REQUEST.exists() or "[madvise]" not in _ON_REQUEST.read_text():
        pytest.skip(f"the system does not grant large pages on request alone: see {_ON_REQUEST}")
    if not _kilobytes(_ASKS):
        pytest.skip("the system has no large pages free")
    monkeypatch.delenv(TUNABLES, raising=False)
    assert _kilobytes(_ALLOCATES) == 0
    with large_pages():
        assert _kilobytes(_ALLOCATES) > 0


@pytest.mark.parametrize(
    ("given", "meanwhile"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch, given: str | None, meanwhile: str) -> None:
    if given is None:
        monkeypatch.delenv(TUNABLES, raising=False)
    else:
        monkeypatch.setenv(TUNABLES, given)
    with pytest.raises(RuntimeError), large_pages():
        assert os.environ[TUNABLES] == meanwhile
        raise RuntimeError("a lane that does not start")
    assert os.environ.get(TUNABLES) == given


def test_a_lane_starts_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: without `large_pages` around the lane the variable is missing here."""
    found: list[str | None] = []
    monkeypatch.delenv(TUNABLES, raising=False)
    monkeypatch.setattr("aerie.engine.lanes.cpu.CpuLane", lambda *_, **__: found.append(os.environ.get(TUNABLES)))
    lane.make_lane(Config.model_validate({"engine": {"threads": 1, "device": "cpu"}}))
    assert found == ["glibc.malloc.hugetlb=1"]
