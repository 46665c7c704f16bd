"""What every test shares: one torch thread, so that tests that run side by side do not fight over cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sys

import pytest
import torch

torch.set_num_threads(1)


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
