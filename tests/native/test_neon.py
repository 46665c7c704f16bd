"""The kernels compiled for Arm, in an emulator: `make test-neon`, with Debian's g++-aarch64-linux-gnu and qemu-user."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aerie.native.library import SOURCES
from aerie.native.march import LEVELS

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"needs {COMPILER} and {EMULATOR}")
def test_the_kernels_on_arm(tmp_path: Path) -> None:
    parts = [SOURCES / f"{name}.cpp" for name in ("crew", "products", "attention", "layer", "choice", "noise")]
    check, program = Path(__file__).with_name("kernels_check.cpp"), tmp_path / "check"
    flags = ("-std=c++17", "-O3", "-fno-math-errno", "-static", "-pthread", f"-I{SOURCES}", *LEVELS["armv8-a"].flags)
    subprocess.run([COMPILER, *flags, check, *parts, "-o", program], check=True, timeout=600)
    done = subprocess.run([EMULATOR, program], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "all of the kernels, on vectors of 4\n"), done.stdout + done.stderr
