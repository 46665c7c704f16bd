"""Random weights of the real shape: any config.json runs, and nothing hides that they are random."""

import json
import logging
from pathlib import Path

import pytest
import torch

from aerie.contracts.config import Config, masked, parse_config
from aerie.contracts.sampling import SamplingParams
from aerie.engine.model.dummy_weights import DummyWeights
from aerie.lane import make_lane
from aerie.spec.build import build_worker
from tests.engine.conftest import SIZES
from tests.engine.rounds import Rounds
from tests.spec.models import specforge_config


def test_numbers_depend_on_name_and_shape_alone() -> None:
    one, other = (DummyWeights(torch.float32) for _ in range(2))
    assert torch.equal(one.take("a.weight", (4, 9)), other.take("a.weight", (4, 9)))
    assert not torch.equal(one.take("a.weight", (4, 9)), other.take("b.weight", (4, 9)))
    assert one.take("input_layernorm.weight", (3,)).tolist() == [1, 1, 1]
    assert one.take("q_proj.bias", (3,)).tolist() == [0, 0, 0]
    assert one.take("wide", (64, 4096)).std() == pytest.approx(4096**-0.5, rel=0.02)
    assert one.take("half", (2, 2), torch.bfloat16).dtype == torch.bfloat16


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Folders that hold a config.json and no weights."""
    wide = SIZES | {"num_hidden_layers": 9, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64}
    target = {"architectures": ["Qwen3ForCausalLM"], "torch_dtype": "float32"} | wide
    for name, content in (("target", target), ("head", specforge_config(draft_vocabulary=32))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    return parse_config(
        {
            "model": {"path": str(tmp_path / "target"), "weights": "dummy", "max_length": 128},
            "engine": {"kv_tokens": 2048, "lane": "inline", "threads": 1},
            "scheduler": {"max_running": 2},
            "spec": {"head": str(tmp_path / "head"), "depth": 3, "topk": 2, "nodes": 6},
        }
    )


def test_a_config_alone_is_served_with_its_head(config: Config) -> None:
    rounds = Rounds(build_worker(config))
    rows = [
        rounds.add(index, [3, 4, 5], SamplingParams(temperature=0, max_tokens=12), drafting=True) for index in (0, 1)
    ]
    rounds.finish(rows, depth=3, topk=2, nodes=6)
    plain = Rounds(build_worker(config.model_copy(update={"spec": config.spec.model_copy(update={"head": "none"})})))
    alone = plain.add(0, [3, 4, 5], SamplingParams(temperature=0, max_tokens=12))
    plain.finish([alone])
    assert rows[0].out == rows[1].out == alone.out
    assert len(set(alone.out)) > 1


def test_what_is_not_real_is_said_in_capitals(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    spec = config.spec.model_copy(update={"simulate_acceptance": 2.5})
    with caplog.at_level(logging.WARNING):
        lane = make_lane(config.model_copy(update={"spec": spec}))
    reported = f"{caplog.text} {lane.capacity.report}"
    assert reported.count("DUMMY WEIGHTS") == 2 and reported.count("SIMULATED ACCEPTANCE 2.5") == 2
    assert masked(config)["model"]["weights"] == "dummy"
    caplog.clear()
    real = config.model_copy(update={"model": config.model.model_copy(update={"weights": "safetensors"})})
    with pytest.raises(Exception, match="no safetensors"):
        make_lane(real)
    assert not caplog.text
