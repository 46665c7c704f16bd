"""What every test shares: one torch thread, so that tests that run side by side do not fight over cores; draws that are
the same in every run, whichever tests ran before in the same process; and examples drawn by hypothesis as slowly as a
crowded machine will have it.

`--hypothesis-profile exploring` draws other examples each time.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import random

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# Fixtures that a test may share among its examples do no harm: what is in them is not changed by any.
_CHECKS = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("exploring", deadline=None, suppress_health_check=_CHECKS)
settings.register_profile("crowded", settings.get_profile("exploring"), derandomize=True)
settings.load_profile("crowded")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before fixtures are made: they draw too."""
    random.seed(0)
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # a folder called gpu is a keyword, too
            item.add_marker(skip)
