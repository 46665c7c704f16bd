"""SGLang on a machine without a GPU: the stub of its kernels comes first, in this process and in all that it starts."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STUB = HERE / "stub"

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(STUB), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(STUB))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A first import of SGLang alone outlasts the default, and it warns of itself."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.filterwarnings("default"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))
