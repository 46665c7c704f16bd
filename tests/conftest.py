"""What every test shares: one torch thread, so that tests that run side by side do not fight over cores; and examples
drawn by hypothesis as slowly as a crowded machine will have it.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("crowded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crowded")


def pytest_runtest_teardown() -> None:
    """A model that a test loads takes kernels for the whole process: the next test shall not meet them."""
    switch = sys.modules.get("engine.kernels.switch")
    if switch is not None:
        switch.take_kernels("torch", torch.device("cpu"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
