"""SGLang's models in graphs: recorded on the stand-in for CUDA graphs, decode and verify replay, and commit what eager
steps do. A recording fails where a pass asks for a value of the device, so no forward reads one late.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.sampling import SamplingParams
from aerie.engine.lanes.cuda import CudaLane
from tests.engine.conftest import shaken
from tests.engine.lanes.test_lanes import Stepping
from tests.engine.rounds import Rounds
from tests.engine.stand_in import HeldDense, StandIn
from tests.sglang.forked import run_forked
from tests.sglang.models import sglang_config
from tests.sglang.test_layouts import MODELS, PROMPT, TREE

RECORDED = 2 * 3 * 3 + 2 * 3
"""Two buckets of rows by three kinds of sampling: a round's three families, and a plain step."""


def on_the_stand_in() -> None:
    runtime = StandIn()
    patch = pytest.MonkeyPatch()
    for module in ("aerie.spec.drafters.head_drafter", "aerie.engine.build", "aerie.engine.sglang.build"):
        patch.setattr(f"{module}.make_attention", HeldDense)
    for module in ("aerie.spec.build", "aerie.engine.build"):
        patch.setattr(f"{module}.runtime_of", lambda _: runtime)
    for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
        patch.setattr(f"{module}.row_buckets", lambda _: [2, 4])


def texts(worker: Any) -> list[list[int]]:
    rounds = Rounds(worker)
    rows = [
        rounds.add(index, PROMPT[index:], SamplingParams(temperature=heat, seed=3, max_tokens=12), drafting=index != 1)
        for index, heat in enumerate((0.0, 0.0, 0.9))
    ]
    rounds.finish(rows, **TREE)
    return [row.out for row in rows]


@pytest.mark.parametrize("name", ["Llama-3.1", "Qwen3"])
def test_replayed_steps_commit_what_eager_ones_do(name: str, tmp_path: Path) -> None:
    make, write_head = MODELS[name]
    torch.manual_seed(0)
    shaken(make()).save_pretrained(tmp_path / "target")
    config = sglang_config(
        tmp_path / "target", spec={"head": str(write_head(tmp_path / "head")), **TREE}, model={"max_length": 128}
    )

    def written(to: str, worker_of: Callable[[], Any]) -> Callable[[], None]:
        return lambda: (tmp_path / to).write_text(json.dumps(texts(worker_of()))) and None

    def eager() -> Any:
        from aerie.spec.build import build_worker

        return build_worker(config)

    def replaying() -> Any:
        on_the_stand_in()
        worker = eager()
        assert worker.capacity.report["graphs"] == RECORDED
        return Stepping(CudaLane(worker))

    run_forked(written("eager", eager))
    run_forked(written("replayed", replaying))
    assert json.loads((tmp_path / "replayed").read_text()) == json.loads((tmp_path / "eager").read_text())
