"""Every kind of step on a GPU that computes nothing: no operator mixes devices, and none waits for a value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from aerie.contracts.config import load_config
from aerie.contracts.sampling import SamplingParams
from aerie.engine.state.row_tables import RowTables
from aerie.spec.build import build_worker
from tests.engine.fake_gpu import fake_gpu
from tests.engine.rounds import Rounds
from tests.house import HOME

GREEDY = SamplingParams(temperature=0, max_tokens=40)
FILTERED = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=2, max_tokens=40)
BANNED = SamplingParams(temperature=0, max_tokens=40, min_tokens=5, stop_token_ids=(7,), logprobs=2)
EDITED = SamplingParams(temperature=0.7, max_tokens=40, presence_penalty=0.5, allowed_token_ids=(5, 6, 7), seed=1)
SHAPES = {"chain": {"depth": 2, "topk": 1, "nodes": 3}, "tree": {"depth": 3, "topk": 2, "nodes": 6}}
Steps = Callable[..., None]


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    """Prefills a row in one chunk and one in several; decodes both, the second drafted or not, lets
    them rest, then decodes the first alone.
    """
    shape = HOME / "configs/shape/tiny"
    for part, changes in (("target", {"num_hidden_layers": 2}), ("head", {"eagle_aux_hidden_state_layer_ids": [0, 1]})):
        whole = json.loads((shape / part / "config.json").read_text()) | changes
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps(whole))

    def run(
        *rows: SamplingParams,
        settings: tuple[str, ...] = (),
        drafting: bool = True,
        rests: int = 0,
        **shape: Any,
    ) -> None:
        places = [f"model.path={tmp_path}/target", f"spec.head={tmp_path}/head", "engine.device=cuda"]
        spec = [f"spec.{name}={value}" for name, value in shape.items()]
        config = load_config(
            HOME / "configs/serve/tiny-dummy.yaml", [*places, "scheduler.max_running=2", *spec, *settings]
        )
        with fake_gpu():
            rounds = Rounds(build_worker(config))
            first = rounds.add(0, [5, 6, 7], rows[0], drafting=bool(shape))
            second = rounds.add(1, list(range(2, 20)), rows[-1], chunk=9, drafting=drafting and bool(shape))
            rounds.decode([first, second], **shape)
            for _ in range(rests):
                rounds.decode([first, second], resting=True)
            rounds.decode([first], **shape, behind=rests)

    return run


def test_recorded_rounds_stay_on_the_device(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
        monkeypatch.setattr(f"{module}.row_buckets", lambda most: [most])
    steps(GREEDY, settings=("model.dtype=bfloat16",), **SHAPES["tree"])
    steps(EDITED, settings=("model.dtype=bfloat16",), **SHAPES["tree"])


@pytest.mark.parametrize("graphs", ["true", "false"])
def test_rows_rest_on_the_device(steps: Steps, graphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
        monkeypatch.setattr(f"{module}.row_buckets", lambda most: [most])
    settings = ("model.dtype=bfloat16", "spec.planner=goodput", f"engine.graphs={graphs}")
    steps(FILTERED, settings=settings, rests=2, **SHAPES["chain"])


@pytest.mark.parametrize(("shape", "drafting"), [("chain", True), ("tree", False)])
def test_rounds_stay_on_the_device(steps: Steps, shape: str, drafting: bool) -> None:
    steps(FILTERED, BANNED, settings=("engine.graphs=false",), drafting=drafting, **SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_that_edit_logits_stay_on_the_device(steps: Steps, shape: str) -> None:
    steps(EDITED, FILTERED, settings=("engine.graphs=false",), **SHAPES[shape])


def test_plain_steps_stay_on_the_device(steps: Steps) -> None:
    steps(FILTERED, BANNED, settings=("spec.head=none", "engine.graphs=false", "scheduler.poison=true"))


@pytest.mark.parametrize("shape", SHAPES)
def test_simulated_rounds_stay_on_the_device(steps: Steps, shape: str) -> None:
    steps(GREEDY, settings=("engine.graphs=false", "spec.simulate_acceptance=2.5"), **SHAPES[shape])


def test_a_tensor_of_the_host_is_found(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RowTables.slots
    monkeypatch.setattr(RowTables, "slots", lambda self, rows, at: honest(self, rows, at + torch.arange(at.numel())))
    with pytest.raises(Exception, match="Expected all tensors to be on the same device"):
        steps(GREEDY, settings=("engine.graphs=false",), **SHAPES["chain"])


def test_a_question_for_a_value_is_found(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RowTables.slots
    monkeypatch.setattr(RowTables, "slots", lambda self, rows, at: honest(self, rows, at + int(at.max())))
    with pytest.raises(DataDependentOutputException):
        steps(GREEDY, settings=("engine.graphs=false",), **SHAPES["chain"])
