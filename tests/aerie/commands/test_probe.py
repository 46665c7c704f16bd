"""The probe commands: arguments in, a table and JSON with provenance out."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.commands.app import app
from aerie.commands.prompts import mixed_prompts
from aerie.contracts.config import load_config
from aerie.contracts.errors import AerieError, ConfigError
from aerie.probe.kernel_cells import Cell, Timed, cells_of
from aerie.probe.layouts import INT8
from aerie.probe.multiplications import Measure, measure_matrix
from aerie.train.demo.tasks import TASKS
from tests.spec import models

CASES = {
    "compare": ["--quick", "--concurrency", "1,2", "--temperature", "0.8", "--dtype", "float32", "--tree", "2,2,4"],
    "draft-temperature": ["--quick"],
    "trees": ["--quick", "--depth", "3", "--topk", "2"],
    "tune": ["--quick", "--dry-run"],
    "replay": ["--quick", "--chains", "2", "--depth", "2"],
    "tasks": ["--quick", "--shapes", "2,1,3;2,2,3"],
    "trace": ["--rows", "2", "--steps", "4"],
    "kernels": ["--quick"],
}


@pytest.fixture(autouse=True)
def random_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny target has no tokenizer."""
    monkeypatch.setattr(
        "aerie.commands.prompts.held_out_prompts", lambda config, count: [[9, n + 1] for n in range(count)]
    )
    monkeypatch.setattr(
        "aerie.commands.prompts.task_prompts", lambda config, count: {"code": [[9, 1]] * count, "edits": [[9, 2]]}
    )
    monkeypatch.setattr("aerie.commands.prompts.long_answers", lambda config, count: [[8, n + 1] for n in range(count)])
    monkeypatch.setattr(
        "aerie.commands.prompts.mixed_prompts", lambda config, count: [[7, n + 1] for n in range(count)]
    )


@pytest.fixture(autouse=True)
def matrices_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`aerie probe kernels` starts a process for each."""
    monkeypatch.setattr("aerie.probe.kernels._measured", lambda measure, name, march: measure_matrix(measure, name))


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    target = models.write_target(tmp_path / "target")
    head = models.write(tmp_path / "head", models.specforge_config(), models.safeailab_names(models.head_tensors()))
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"# a tiny pair\nmodel:\n  path: {target}\n  max_length: 96\nengine:\n  kv_tokens: 4096\n  lane: inline\n"
        f"  threads: 1\nspec:\n  head: {head}  # random\n  depth: 2\n  nodes: 3\n"
    )
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["probe", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", CASES)
def test_every_probe_shows_and_writes_its_cells(
    command: str, config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["aerie", "probe", command])
    monkeypatch.setattr("__main__.__spec__", None)
    before = config_file.read_text()
    said = run(command, config_file, "spec.draft_temperature=1.25", *CASES[command], "--json", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["cells"]
    source = report["provenance"]
    assert source["config"]["spec"]["draft_temperature"] == 1.25
    assert source["machine"]["cores"] >= 1 and source["machine"]["torch"] and source["command"].startswith("aerie")
    assert len(said.splitlines()) > len(report["cells"])
    assert command != "kernels" or all(said.count(f" {precision} ") for precision in ("bf16", "int8"))
    assert config_file.read_text() == before


@pytest.mark.parametrize(
    ("given", "template", "first", "longest"),
    [
        ([], "{{ messages }}", 9, 64),
        ([], "{{ messages }}{{ tools }}", 7, 400),
        (["--mix", "demo"], None, 7, 400),
        (["--mix", "docstrings"], "{{ tools }}", 9, 64),
        (["--max-tokens", "5"], "{{ tools }}", 7, 5),
    ],
)
def test_probes_of_drafting_ask_what_the_template_can_show_or_what_is_named(
    given: list[str],
    template: str | None,
    first: int,
    longest: int,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exercises are answered as a whole; of a docstring the beginning is enough."""
    if template is not None:
        (config_file.parent / "target/chat_template.jinja").write_text(template)
    asked: list[list[int]] = []

    def noted(config: object, prompts: list[list[int]], *args: object, max_tokens: int, **how: object) -> list[object]:
        asked.extend([*prompts, [max_tokens]])
        return []

    monkeypatch.setattr("aerie.probe.trees.measure_trees", noted)
    run("trees", config_file, *given, "--prompts", "3")
    assert asked == [[first, 1], [first, 2], [first, 3], [longest]]


def test_kernels_are_measured_in_pieces_of_one_code_and_machine(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def at_once(measure: Measure, name: str, march: str) -> list[Cell]:
        measured.append(name)
        return cells_of([Timed(INT8, name, (1, 1), 1, count, {"columns": 1.0}) for count in measure.tokens], 1, None)

    monkeypatch.setattr("aerie.probe.kernels._measured", at_once)
    out = tmp_path / "out.json"
    arguments = ("kernels", config_file, "--quick", "--json", out)
    run(*arguments, "--seconds", "0")
    assert json.loads(out.read_text())["cells"] == [], "no matrix began"
    run(*arguments, "--resume")
    report = json.loads(out.read_text())
    assert measured == ["qkv", "output", "gate_up", "down"] and len(report["earlier"]) == 1
    assert "native/src" in report["provenance"]["measured"] and "scheduler" not in report["provenance"]["measured"]
    cut = [cell for cell in report["cells"] if cell["matrix"] not in ("down", "layer")]
    out.write_text(json.dumps(report | {"cells": cut}))
    run(*arguments, "--resume")
    assert measured[4:] == ["down"], "what the file lacks"
    found = json.loads(out.read_text())["cells"]
    assert len(found) == len(report["cells"]) and found[: len(cut)] == cut, "and the rest is kept"
    for faked in ({"measured": {"native/src": "of another commit"}}, {"machine": {"cpu": "another", "cores": 1}}):
        out.write_text(json.dumps(report | {"provenance": report["provenance"] | faked}))
        with pytest.raises(ConfigError, match=f"another {next(iter(faked))}"):
            run(*arguments, "--resume")
    assert len(measured) == 5


def test_compare_takes_shapes_and_lists(config_file: Path, tmp_path: Path) -> None:
    run("compare", config_file, *CASES["compare"], "--json", tmp_path / "out.json")
    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert [(cell["concurrency"], cell["mode"], cell["shape"]) for cell in cells] == [
        (load, mode, shape)
        for load in (1, 2)
        for mode, shape in (("off", "none"), ("chain", "chain 2"), ("tree", "tree 2,2,4"), ("preset", "planned"))
    ]
    assert all(cell["identical"] == 1 for cell in cells)


def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["probe", "compare", str(tmp_path / "no-config.yaml"), "--json", str(tmp_path / "file/out.json")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ConfigError) and "cannot be written" in str(done.exception)


def test_tune_writes_the_config_that_it_was_given(config_file: Path, tmp_path: Path) -> None:
    run("tune", config_file, "--quick", "--json", tmp_path / "out.json")
    table = json.loads((tmp_path / "out.json").read_text())["by_load"]
    written = load_config(config_file)
    assert [entry.model_dump() for entry in written.spec.by_load] == table and table
    assert written.spec.depth == 2
    assert "# random" in config_file.read_text()


def test_overlap_needs_no_model(tmp_path: Path) -> None:
    said = run("overlap", "--batches", "2", "--steps", "5", "--json", tmp_path / "out.json")
    assert "overlapped" in said and "synchronous" in said
    report = json.loads((tmp_path / "out.json").read_text())
    assert [cell["batch"] for cell in report["cells"]] == [2, 2] and report["provenance"]["config"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "CONFIG", "--concurrency", "1,x"], "'1,x' is not a list of whole numbers"),
        (["compare", "CONFIG", "--temperature", "hot"], "'hot' is not a list of numbers"),
        (["compare", "CONFIG", "--dtype", "float32,int4"], "'int4' is none of float32, bfloat16, float16"),
        (["gpu-check", "CONFIG", "--only", "graphs,x"], "'x' is none of attention, graphs, speculation, soak"),
        (["gpu-bench", "CONFIG", "--only", ""], "'' is none of plain, references, sampling, "),
        (["compare", "CONFIG", "--chain", "9"], "'9' is not a shape"),
        (["baseline", "CONFIG", "--threads", ""], "'' is not a list of whole numbers"),
        (["overlap", "--batches", "1.5"], "'1.5' is not a list of whole numbers"),
        (["gpu-bench", "CONFIG", "--batches", "x"], "'x' is not a list of whole numbers"),
    ],
)
def test_a_list_that_is_none_is_named(words: list[str], said: str, config_file: Path) -> None:
    given = [str(config_file) if word == "CONFIG" else word for word in words]
    with pytest.raises(AerieError, match=said):
        CliRunner().invoke(app, ["probe", *given], catch_exceptions=False)


def test_the_demo_s_mix_asks_every_task_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {task: place for place, task in enumerate(TASKS)}

    def by_task(config: object, count: int, *, seed: int) -> dict[str, list[list[int]]]:
        return {task: [[place, turn] for turn in range(count)] for task, place in numbers.items()} | {"mixed": []}

    monkeypatch.setattr("aerie.commands.prompts.task_prompts", by_task)
    asked = mixed_prompts(load_config(None, []), len(TASKS) + 2)
    assert asked == [*([place, 0] for place in numbers.values()), [0, 1], [1, 1]]
