"""The measurements of a GPU, tried where there is none: they run, label what is not real and say what was left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from aerie.commands.app import app
from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.probe.peaks import peaks_of
from tests.house import HOME

HERE = ["engine.device=cpu", "engine.lane=inline", "engine.threads=1"]


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["probe", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)


def test_the_bench_runs_on_a_cpu_and_labels_its_figures(tmp_path: Path) -> None:
    said = run("gpu-bench", "configs/serve/tiny-dummy.yaml", *HERE, "--quick", "--out", tmp_path)
    assert "DUMMY WEIGHTS" in said
    plain = json.loads((tmp_path / "plain.json").read_text())["cells"]
    assert [(cell["batch"], cell["overlap"]) for cell in plain] == [(1, True), (1, False), (2, True), (2, False)]
    assert all(cell["device"] == "cpu" and cell["e_sys"] is None and "DUMMY" in cell["weights"] for cell in plain)
    assert all(cell["acceptance_length"] == 1 and cell["tokens_per_s"] > 0 for cell in plain)
    assert all(cell["sampling"] == "greedy" and cell["e_sys_measured"] > 0 for cell in plain)
    references = json.loads((tmp_path / "references.json").read_text())["cells"]
    assert {cell["kernels"] for cell in references} == {"none"} != {cell["kernels"] for cell in plain}
    sampling = json.loads((tmp_path / "sampling.json").read_text())["cells"]
    assert {(cell["sampling"], "shape" in cell) for cell in sampling} == {
        (kind, drafted) for kind in ("sampled", "filtered") for drafted in (True, False)
    }
    drafted = json.loads((tmp_path / "speculation.json").read_text())
    assert all(cell["acceptance"] == "simulated" and cell["simulated_acceptance"] == 2 for cell in drafted["cells"])
    assert all(1 < cell["acceptance_length"] < 3 for cell in drafted["cells"])
    assert set(drafted["cells"][0]["phase_ms"]) == {"draft", "verify", "accept", "extend"}
    assert {cell["shape"] for cell in drafted["cells"]} == {"3,1,4", "2,2,4"}
    assert "DUMMY" in drafted["provenance"]["labels"]["weights"]
    attention = json.loads((tmp_path / "attention.json").read_text())["cells"]
    assert {cell["backend"] for cell in attention} == {"cpu", "reference"}
    assert (tmp_path / "plain.png").stat().st_size > 10_000
    kernels = json.loads((tmp_path / "kernels.json").read_text())["cells"]
    assert {cell["kernel"] for cell in kernels} >= {"gumbel", "choose", "filtered", "select", "accept", "cut"}
    assert all(cell["reference_microseconds"] > 0 and cell["kernel_microseconds"] is None for cell in kernels)
    products = json.loads((tmp_path / "products.json").read_text())["cells"]
    assert {(cell["matrix"], cell["tokens"]) for cell in products} == {
        (matrix, tokens) for matrix in ("qkv", "output", "gate_up", "down", "lm_head") for tokens in (1, 4)
    }
    assert all(cell["microseconds"] > 0 and cell["bandwidth_share"] > 0 for cell in products)
    profile = json.loads((tmp_path / "profile.json").read_text())["cells"]
    assert {(cell["step"], cell["batch"]) for cell in profile} == {
        (step, n) for step in ("plain", "round") for n in (1, 2)
    }
    assert all(cell["kernel"] and cell["microseconds_per_step"] >= 0 for cell in profile)


def test_the_check_passes_on_a_cpu_and_says_what_it_could_not_try(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    run("gpu-check", "configs/serve/tiny-dummy.yaml", *HERE, "--quick", "--json", out)
    cells = json.loads(out.read_text())["cells"]
    assert {cell["check"] for cell in cells} == {"attention", "graphs", "speculation", "soak"}
    assert {cell["check"] for cell in cells if cell["passed"] is None} == {"attention", "graphs"}
    assert all(cell["passed"] is not False for cell in cells)


def test_a_wrong_backend_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from aerie.engine.attention.cpu import CpuAttention

    honest = CpuAttention.run
    monkeypatch.setattr(CpuAttention, "run", lambda *given: honest(*given) * 1.1)
    arguments = ["probe", "gpu-check", "configs/serve/tiny-dummy.yaml", *HERE, "--quick", "--only", "attention"]
    assert CliRunner().invoke(app, arguments).exit_code == 1


@pytest.mark.parametrize(
    ("command", "kernels"),
    [
        *((["gpu-bench", "--only", part], "triton") for part in ("plain", "sampling", "speculation", "profile")),
        (["gpu-bench", "--only", "references"], "torch"),
        *((["gpu-check", "--only", check], "triton") for check in ("attention", "graphs", "speculation", "soak")),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_a_gpu_is_tried_with_triton_s_kernels(
    command: list[str], kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` takes those that a measurement has shown to be faster: none, before the first."""
    tried: list[str] = []

    def noted(config: Config, *_: Any, **__: Any) -> Any:
        tried.append(config.engine.kernels)
        return iter(())

    for name in ("gpu_bench.measure_plain", "gpu_bench.measure_speculation", "gpu_profile.measure_profile"):
        monkeypatch.setattr(f"aerie.probe.{name}", noted)
    for name in ("attention", "graphs", "speculation", "soak"):
        monkeypatch.setattr(f"aerie.probe.gpu_check.check_{name}", noted)
    monkeypatch.setattr("aerie.engine.device.resolve_device", lambda _: torch.device("cuda", 0))
    out = ["--out", tmp_path] if command[0] == "gpu-bench" else []
    run(*command, "configs/serve/tiny-dummy.yaml", *out)
    assert set(tried) == {kernels}


def test_peaks_are_found_by_a_device_s_name() -> None:
    assert peaks_of("NVIDIA H100 80GB HBM3") == (3.35e12, 989e12)
    assert peaks_of("NVIDIA H100 PCIe") == (2.0e12, 756e12)
    assert peaks_of("cpu") is None


def test_a_part_that_breaks_off_keeps_its_cells_and_lets_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aerie.probe import gpu_bench

    honest = gpu_bench.steady

    def breaking(*given: Any, rows: int, **others: Any) -> Any:
        if rows == 2:
            raise AssertionError("a library's own\nmore of it")
        return honest(*given, rows=rows, **others)

    monkeypatch.setattr(gpu_bench, "steady", breaking)
    arguments = ["gpu-bench", "configs/serve/tiny-dummy.yaml", *HERE, "--quick", "--only", "plain,kernels"]
    result = CliRunner().invoke(app, ["probe", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 1
    plain = json.loads((tmp_path / "plain.json").read_text())
    assert [cell["batch"] for cell in plain["cells"]] == [1, 1]
    assert plain["broke_off"] == "AssertionError: a library's own"
    assert json.loads((tmp_path / "kernels.json").read_text())["cells"]


def test_a_check_that_breaks_off_fails_and_lets_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(*_: Any, **__: Any) -> Any:
        raise ConfigError("the GPU has 0.1 GiB free")
        yield

    monkeypatch.setattr("aerie.probe.gpu_check.check_graphs", breaking)
    arguments = ["gpu-check", "configs/serve/tiny-dummy.yaml", *HERE, "--quick", "--only", "graphs,soak"]
    result = CliRunner().invoke(app, ["probe", *arguments, "--json", str(tmp_path / "check.json")])
    assert result.exit_code == 1
    cells = json.loads((tmp_path / "check.json").read_text())["cells"]
    assert [(cell["check"], cell["passed"]) for cell in cells] == [("graphs", False), ("soak", True)]
    assert "0.1 GiB free" in cells[0]["detail"]
