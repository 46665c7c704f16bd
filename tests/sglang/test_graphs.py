"""SGLang's models in graphs: recorded on the stand-in for CUDA graphs, decode and verify replay, and commit what eager
steps do. A recording fails where a pass asks for a value of the device, so no forward reads one late.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from aerie.contracts.sampling import SamplingParams
from aerie.engine.lanes.cuda import CudaLane
from tests.engine.conftest import shaken
from tests.engine.lanes.test_lanes import Stepping
from tests.engine.rounds import Rounds
from tests.engine.stand_in import HeldDense, StandIn
from tests.sglang.forked import run_forked
from tests.sglang.models import sglang_config
from tests.sglang.test_layouts import MODELS, PROMPT, TREE

RECORDED = 2 * 4 * 3 + 2 * 4
"""Two buckets of rows by four kinds of sampling: a round's three families, and a plain step."""


def on_the_stand_in() -> None:
    runtime = StandIn()
    patch = pytest.MonkeyPatch()
    for module in ("aerie.spec.drafters.head_drafter", "aerie.engine.build", "aerie.engine.sglang.build"):
        patch.setattr(f"{module}.make_attention", HeldDense)
    for module in ("aerie.spec.build", "aerie.engine.build"):
        patch.setattr(f"{module}.runtime_of", lambda _: runtime)
    for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
        patch.setattr(f"{module}.row_buckets", lambda _: [2, 4])


def experts(layer: Any, x: Tensor, chosen: Any, config: Any) -> Tensor:
    """Of tokens x [tokens, hidden], as SGLang's kernel for GPUs computes them: its path for CPUs counts the tokens of
    each expert on the host, and has no router weights on inputs.
    """
    weights, ids, _ = chosen  # [tokens, experts of a token] each
    before = config.apply_router_weight_on_input
    inputs = x[:, None] * (weights[..., None] if before else torch.ones_like(weights)[..., None])
    gate, up = torch.einsum("tei,teoi->teo", inputs, layer.w13_weight[ids]).chunk(2, -1)
    out = torch.einsum("teo,teio->tei", silu(gate) * up, layer.w2_weight[ids])  # [tokens, experts of a token, hidden]
    return out.sum(1) if before else (out * weights[..., None]).sum(1)


def texts(worker: Any) -> list[list[int]]:
    rounds = Rounds(worker)
    rows = [
        rounds.add(index, PROMPT[index:], SamplingParams(temperature=heat, seed=3, max_tokens=12), drafting=index != 1)
        for index, heat in enumerate((0.0, 0.0, 0.9))
    ]
    rounds.finish(rows, **TREE)
    return [row.out for row in rows]


@pytest.mark.parametrize("name", ["Llama-3.1", "Qwen3", "Qwen3-MoE", "Llama-4-Scout"])
def test_replayed_steps_commit_what_eager_ones_do(name: str, tmp_path: Path) -> None:
    make, write_head = MODELS[name]
    torch.manual_seed(0)
    shaken(make()).save_pretrained(tmp_path / "target")
    config = sglang_config(
        tmp_path / "target",
        spec={"head": str(write_head(tmp_path / "head")), "planner": "fixed", **TREE},
        model={"max_length": 128},
    )

    def written(to: str, worker_of: Callable[[], Any]) -> Callable[[], None]:
        return lambda: (tmp_path / to).write_text(json.dumps(texts(worker_of()))) and None

    def eager() -> Any:
        from aerie.spec.build import build_worker

        pytest.MonkeyPatch().setattr("sglang.srt.layers.moe.fused_moe_native.moe_forward_native", experts)
        return build_worker(config)

    def replaying() -> Any:
        on_the_stand_in()
        worker = eager()
        assert worker.capacity.report["graphs"] == RECORDED
        return Stepping(CudaLane(worker))

    run_forked(written("eager", eager))
    run_forked(written("replayed", replaying))
    assert json.loads((tmp_path / "replayed").read_text()) == json.loads((tmp_path / "eager").read_text())
