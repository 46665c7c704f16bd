"""On a GPU alone: no call of a step waits, graphs commit what eager steps do, and the real lane ends what it began.

Skipped where there is none. The same functions run on a stand-in in tests/spec/round/test_graphs.py and
tests/engine/lanes/test_cuda_lane.py.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.config import Config, load_config
from aerie.contracts.step import StepOutput, StepPlan
from aerie.engine.lanes.cuda import CudaLane
from aerie.lane import make_lane
from aerie.probe import gpu_check
from aerie.probe.drive import ask, drive
from tests.house import HOME

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),  # torch says so where it is set
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    monkeypatch.chdir(HOME)
    return lambda *overrides: load_config(Path("configs/serve/tiny-dummy.yaml"), ["engine.device=cuda", *overrides])


@contextmanager
def no_waits() -> Iterator[None]:
    """Inside, a call that makes the host wait for the device raises. Waiting for an event is not such a call."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Watched:
    """A lane whose launches and settles may not wait but for events."""

    def __init__(self, lane: CudaLane) -> None:
        self._lane = lane
        self.capacity = lane.capacity

    def launch(self, plan: StepPlan) -> None:
        with no_waits():
            self._lane.launch(plan)

    def settle(self) -> StepOutput:
        with no_waits():
            return self._lane.settle()

    def close(self) -> None:
        self._lane.close()


@pytest.mark.parametrize("shape", ["spec.topk=1", "spec.topk=4", "spec.head=none"])
@pytest.mark.parametrize("graphs", ["true", "false"])
@pytest.mark.parametrize(("dtype", "kernels"), [("bfloat16", "triton"), ("float32", "triton"), ("bfloat16", "torch")])
def test_no_step_waits(tiny: Callable[..., Config], graphs: str, shape: str, dtype: str, kernels: str) -> None:
    config = tiny(
        f"engine.graphs={graphs}",
        "engine.edit_slots=0",
        shape,
        "spec.nodes=4",
        f"model.dtype={dtype}",
        f"engine.kernels={kernels}",
    )
    with closing(make_lane(config)) as lane:
        assert isinstance(lane, CudaLane)
        prompts = [[3, 4, 5], list(range(20, 90)), [7], [9, 8]]
        drive(lane, config, ask(prompts, [0.0, 0.8], max_tokens=8), concurrency=4)  # kernels are compiled and loaded
        run = drive(Watched(lane), config, ask(prompts, [0.0, 0.8], max_tokens=24), concurrency=4)
    assert all(len(tokens) == 24 for tokens in run.tokens)


@pytest.mark.parametrize("check", ["attention", "graphs", "speculation", "soak"])
def test_answers_are_the_right_ones(tiny: Callable[..., Config], check: str) -> None:
    config = tiny("model.dtype=float32")
    cells: Any = {
        "attention": lambda: gpu_check.check_attention(config),
        "graphs": lambda: gpu_check.check_graphs(config, make_lane),
        "speculation": lambda: gpu_check.check_speculation(config, make_lane, dtypes=("float32", "bfloat16")),
        "soak": lambda: gpu_check.check_soak(config, make_lane),
    }[check]()
    wrong = [cell for cell in cells if cell["passed"] is False]
    assert not wrong


def test_memory_that_is_not_there_is_said(tiny: Callable[..., Config]) -> None:
    from aerie.contracts.errors import ConfigError

    with pytest.raises(ConfigError, match="are missing"):
        make_lane(tiny("engine.kv_tokens=2000000000"))
