"""Whether C++ kernels can run here, and a fixture that runs a file's tests on the twins in torch and then on them."""

import os
from collections.abc import Iterator

import pytest
import torch

from engine.cpp.library import missing
from engine.kernels.switch import take_kernels

if os.environ.get("AERIE_MARCH") and missing() is not None:  # asked for by name: not to be skipped
    raise RuntimeError(missing())

needs_cpp = pytest.mark.skipif(missing() is not None, reason=f"no C++ kernels: {missing()}")


@pytest.fixture(params=["torch", pytest.param("cpp", marks=needs_cpp)])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Taken while a test runs."""
    take_kernels(request.param, torch.device("cpu"))
    yield request.param
    take_kernels("torch", torch.device("cpu"))
