"""A sweep of heads trains each from the recipe's features, keeps what is done, and reports acceptance beside time."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import head_sweep
from tests.house import HOME

RECIPE = HOME / "configs/train/demo.yaml"
TIMED = {"mode": "chain", "overlap": True, "temperature": 0.0, "concurrency": 1, "tokens_per_s": 9.0, "speedup": 1.5}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands of a sweep, each of which leaves what `aerie` would."""
    ran: list[tuple[str, ...]] = []

    def aerie(*words: str) -> None:
        ran.append(words)
        if words[0] == "probe":
            cell = TIMED | {"acceptance_length": 2.0, "idle_share": 0.1}
            Path(words[-1]).write_text(json.dumps({"cells": [cell, cell | {"mode": "preset"}]}))
            return
        folders = [word.removeprefix("work=") for word in words if word.startswith("work=")]
        work = Path(folders[-1])  # as in the program, the last setting holds
        (work / words[1]).mkdir()
        found: list[dict[str, Any]] = [
            {"head": "trained", "task": task, "shape": "6,1,7", "temperature": 0.0, "prompts": 1, "tokens": 9}
            | {"acceptance_length": length, "acceptance_per_position": [0.5], "by_place": {}}
            for task, length in (("code", 3.0), ("sums", 4.0))
        ]
        if words[1] == "evaluate":
            (work / "evaluate/evaluation.json").write_text(json.dumps(found))

    monkeypatch.setattr(head_sweep, "_aerie", aerie)
    return ran


def test_each_head_is_trained_once_and_stands_with_its_acceptance_and_its_time(
    commands: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "features").mkdir()
    words = [str(RECIPE), "--serve", "serve.yaml", "--json", str(tmp_path / "out.json"), f"work={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["head_sweep.py", *words, "train.steps=9", "--vary", "vocabulary.size=512,768"])
    head_sweep.main()
    results = json.loads((tmp_path / "out.json").read_text())
    heads = ["recipe", "vocabulary.size=512", "vocabulary.size=768"]
    assert results["cells"] == [{"head": head} | TIMED | {"acceptance_length": 2.0} for head in heads]
    accepted = {"shape": "6,1,7", "temperature": 0.0, "acceptance_length": 3.5}
    assert results["means"] == [{"head": head} | accepted for head in heads]
    assert {"train", "engine", "scheduler without planner"} <= set(results["provenance"]["measured"])
    folder = tmp_path / "sweep/vocabulary.size=512"
    assert (folder / "features").resolve() == tmp_path / "features"
    own = [command for command in commands if f"work={folder}" in command or str(folder / "compare.json") in command]
    assert [command[:2] for command in own] == [
        *(("train", stage) for stage in ("vocabulary", "train", "evaluate")), ("probe", "compare"),
    ]  # fmt: skip
    assert {"train.steps=9", "vocabulary.size=512", f"target={tmp_path}/target"} <= set(own[0])
    assert f"spec.head={folder}/train/head" in own[-1]
    commands.clear()
    head_sweep.main()
    assert not commands
