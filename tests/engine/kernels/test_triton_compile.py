"""Every Triton kernel compiles for the GPUs it is meant for; none needs to be there."""

import os
import subprocess
import sys

import pytest

from tests.engine.triton_here import needs_triton
from tests.house import HOME

pytestmark = needs_triton
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a block may take."""


@pytest.mark.parametrize("architecture", SHARED)
def test_kernels_compile_and_fit(architecture: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.kernels.compile_kernels", str(architecture)],
        cwd=HOME,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert kernels, done.stdout
    assert all(int(size) > 500 and int(shared) <= SHARED[architecture] for _, size, shared in kernels), kernels
