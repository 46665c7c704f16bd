"""What a GPU measures beside the probes, tried on a CPU: a shape that can be served, and the sweep that serves it."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from aerie.bench.config import load_sweep
from aerie.server.text.tokenizer import Tokenizer
from tests.house import HOME


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOME / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_kit_is_what_the_pins_name_and_a_machine_lacks() -> None:
    kit = script("gpu_kit")
    pins = kit.wanted({"torch", "triton", "numpy", "pyyaml", "ruamel-yaml"})
    names = {kit.canonical(pin.partition("==")[0]) for pin in pins}
    assert {"flashinfer-python", "apache-tvm-ffi", "msgspec", "pytest-asyncio", "hypothesis"} <= names
    assert not names & {"torch", "triton", "numpy", "pyyaml", "ruff", "mypy"}
    assert all(re.fullmatch(r"[^=]+==[^=]+", pin) for pin in pins)


def test_sources_and_kit_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ways of copying take 64 MiB; the demo's weights alone are 39. Parts of other engines come one by one."""
    monkeypatch.syspath_prepend(HOME / "scripts")
    kit, carried, peers_part = script("gpu_kit"), script("gpu_set"), script("gpu_peers").MOST
    names = carried.sources()
    size = sum((HOME / name).stat().st_size for name in names)
    assert size + kit.MOST <= carried.MOST == 64 << 20
    assert size + peers_part <= carried.MOST
    assert "models/demo/target/tokenizer.json" in names and "train/data/docstrings.jsonl.gz" in names
    assert {"scripts/gpu_call.py", "engine/cuda.py", "configs/serve/llama-3.1-8b-dummy.yaml"} <= set(names)
    assert not any(name.endswith(".safetensors") for name in names)


def test_what_a_machine_has_is_known_whole() -> None:
    """huggingface_hub 2, carried beside a transformers that wants 1, keeps that from being imported."""
    kit = script("gpu_kit")
    have = kit.named(f"@{HOME}/scripts/gpu_have.txt")
    assert {"torch", "triton", "transformers", "huggingface-hub", "prometheus-client"} <= have
    assert kit.forgotten(have) == set()
    assert {"huggingface-hub", "safetensors"} <= kit.forgotten({"torch", "triton", "transformers", "tokenizers"})
    assert kit.named("torch==2.11.0, triton\nnumpy==2.5.2  # new") == {"torch", "triton", "numpy"}


def test_a_kit_beside_what_it_would_break_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_kit.py", str(tmp_path / "kit"), "--have", "torch,triton,transformers"])
    with pytest.raises(SystemExit, match=r"leaves out .*huggingface-hub"):
        script("gpu_kit").main()


def test_a_kit_without_pytorch_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_kit.py", str(tmp_path / "kit"), "--have", "numpy==2.0"])
    with pytest.raises(SystemExit, match="must bring torch"):
        script("gpu_kit").main()


def test_what_is_ready_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ready = script("gpu_ready")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert ready.main() == 0
    assert "no GPU with a working driver" in capsys.readouterr().out
    monkeypatch.setattr(ready, "release", lambda name: None if name == "msgspec" else "1")
    assert ready.main() == 1
    assert "missing packages: msgspec; make gpu-kit brings them" in capsys.readouterr().out


def test_nothing_is_missing_beside_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project itself is not installed there: its sources are on the path."""
    ready, kit = script("gpu_ready"), script("gpu_kit")
    have = kit.named(f"@{HOME}/scripts/gpu_have.txt")
    there = have | {kit.canonical(pin.partition("==")[0]) for pin in kit.wanted(have)}
    monkeypatch.setattr(ready, "release", lambda name: "1" if kit.canonical(name) in there else None)
    assert ready.missing_packages() == []


def parts(home: Path, *which: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/gpu_parts.sh with commands that only say how they were called."""
    for name in ("python", "aerie"):
        (home / name).write_text(f'#!/bin/sh\necho "{name} $*"\ncase "$*" in *soak*) exit 1 ;; esac\n')
        (home / name).chmod(0o755)
    settings = {"BIN": str(home), "OUT": "out", "LIMIT": "20", "TRITON_TESTS": "a.py b.py", "CONFIG": "c.yaml"}
    settings |= {"OPTIONS": "--quick", "PAIR": "--quick", "PATH": os.environ["PATH"]} | environment
    command = ["sh", str(HOME / "scripts/gpu_parts.sh"), *which]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)


def test_a_part_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    done = parts(tmp_path, "check")
    assert done.returncode == 1 and "failed: soak(code 1)" in done.stderr
    called = done.stdout.splitlines()
    assert called[0] == "python scripts/gpu_ready.py"
    assert "aerie probe gpu-check c.yaml --only graphs --json out/check-graphs.json --quick" in called
    assert parts(tmp_path, "check", PARTS="tests graphs").returncode == 0
    benched = parts(tmp_path, "bench")
    assert benched.returncode == 0
    assert [line for line in benched.stdout.splitlines() if line.startswith("==")] == [
        f"== {name}" for name in ("plain", "speculation", "attention", "kernels", "pair")
    ]


async def test_every_id_of_a_shape_is_text(tmp_path: Path) -> None:
    script("gpu_shape").make(HOME / "configs/shape/llama-3.1-8b", tmp_path)
    vocabulary = json.loads((tmp_path / "target/config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(tmp_path / "target")
    assert tokenizer.vocabulary == vocabulary == 128_256
    asked = "Count from 20 to 60 in steps of 2."
    assert tokenizer.decode(await tokenizer.encode(asked, add_special_tokens=False)) == asked
    assert tokenizer.decode([tokenizer.vocabulary - 1]).strip()
    tokenizer.close()


def test_a_shape_may_have_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    script("gpu_shape").make(HOME / "configs/shape/tiny", tmp_path, 4096)
    sizes = [json.loads((tmp_path / part / "config.json").read_text())["vocab_size"] for part in ("target", "head")]
    assert sizes == [4096, 4096]


def test_a_shape_of_fewer_ids_is_refused(tmp_path: Path) -> None:
    ids = json.loads((HOME / "models/demo/target/config.json").read_text())["vocab_size"]
    with pytest.raises(SystemExit, match=f"512 ids and the demo's tokenizer {ids}"):
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
    alone = load_sweep(HOME / "configs/sweep/gpu-http.yaml")
    assert [target.name for target in alone.targets] == ["Aerie", "Aerie simulated"] and len(alone.loads) == 3
    assert yaml.safe_load((HOME / "configs/serve/llama-3.1-8b-dummy.yaml").read_text())["model"]["weights"] == "dummy"
