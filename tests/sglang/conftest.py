"""SGLang on a machine without a GPU: the stub of its kernels comes first, in this process and in all that it starts."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sglang.engines import Zygote

HERE = Path(__file__).parent
STUB = HERE / "stub"
BEGAN = time.monotonic()

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(STUB), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(STUB))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="skip SGLang's tests that would begin later")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Bounds the whole where time is scarce; what did not run is told."""
    seconds = item.config.getoption("--within")
    if seconds is not None and time.monotonic() - BEGAN > seconds:
        pytest.skip(f"the {seconds:g} s that SGLang's tests may take are over")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A first import of SGLang alone outlasts the default, and it warns of itself. Who bounds all ends what hangs."""
    bounded = config.getoption("--within") is not None
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        if bounded:
            item.add_marker(pytest.mark.timeout(0), append=False)
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Zygote]":
    """What forks servers of SGLang's whole engine."""
    from tests.sglang.engines import Zygote

    one = Zygote(tmp_path_factory.mktemp("engines"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def expected() -> str:
    """What Aerie's own engine says to the question of the engines' tests."""
    from aerie import LLM, SamplingParams
    from tests.sglang.engines import QUESTION

    with LLM("models/demo/target", spec__head="none", model__dtype="float32", engine__threads=1) as llm:
        (result,) = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
        text: str = result.outputs[0].text
        return text
