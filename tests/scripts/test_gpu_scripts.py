"""What a GPU measures beside the probes, tried on a CPU: a shape that can be served, and the sweep that serves it."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from bench.config import load_sweep
from server.tokenizer import Tokenizer

HOME = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOME / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_every_id_of_a_shape_is_text(tmp_path: Path) -> None:
    script("gpu_shape").make(HOME / "configs/shape/llama-3.1-8b", tmp_path)
    vocabulary = json.loads((tmp_path / "target/config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(tmp_path / "target")
    assert tokenizer.vocabulary == vocabulary == 128_256
    asked = "What does textwrap.dedent do?"
    assert tokenizer.decode(await tokenizer.encode(asked, add_special_tokens=False)) == asked
    assert tokenizer.decode([tokenizer.vocabulary - 1]).strip()
    tokenizer.close()


def test_a_shape_of_fewer_ids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="512 ids and the demo's tokenizer 4096"):
        script("gpu_shape").make(HOME / "configs/shape/tiny", tmp_path)


def test_the_sweep_serves_the_shape_on_both_servers() -> None:
    sweep = load_sweep(HOME / "configs/sweep/gpu-simulated.yaml")
    assert sweep.loads[-1] == ("concurrency", 64.0) and sweep.baseline == "Aerie"
    for target in sweep.targets:
        assert target.command is not None and "build/gpu-shape/target" in target.command
        assert target.fields == {"ignore_eos": True}
        simulates = "spec.simulate_acceptance=3.0" in target.command or target.environment == {
            "SGLANG_SIMULATE_ACC_LEN": "3.0"
        }
        assert simulates == ("simulated" in target.name)
    assert yaml.safe_load((HOME / "configs/serve/llama-3.1-8b-dummy.yaml").read_text())["model"]["weights"] == "dummy"
