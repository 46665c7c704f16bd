"""Stage 7: how much of the head's drafts the target accepts, in the real engine, on held-out prompts.

This package does not import the engine: the composition root passes a function that answers prompts with a head and
reports acceptance. Cells go to JSON, a table and plots, beside those of a baseline head if the config names one.
"""

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import weights_hash
from aerie.engine.model.config import read_model_config
from aerie.train.pipeline import fit
from aerie.train.pipeline.config import EvaluateStage, PipelineConfig
from aerie.train.pipeline.data.render import ChatRenderer
from aerie.train.pipeline.filter import evaluation_prompts
from aerie.train.pipeline.folder import begin, input_hash, reported_when_full, write_whole
from aerie.train.pipeline.plots import draw_evaluation
from aerie.train.progress import bar, say

STAGE = "evaluate"
FILE = "evaluation.json"
TRAINED, BASELINE = "trained", "baseline"
ALL = "all"
"""The task of a cell that weights every task equally."""

Cell = dict[str, Any]
"""head, task, shape, temperature, prompts, tokens, acceptance_length, acceptance_per_position, by_place: where in
an answer steps began -> [steps, tokens that they committed], and by_answer: the same two of each prompt's answer."""
Measure = Callable[[PipelineConfig, Path, dict[str, list[list[int]]]], Iterator[Cell]]
"""Maps a head's folder and prompt ids by task to one cell for each task, shape and temperature of the config."""


def evaluate(config: PipelineConfig, measure: Measure) -> Path:
    """Raises AerieError if the config names no held-out prompts."""
    stage, work, target = config.evaluate, Path(config.work), Path(config.target)
    check_tasks(stage)
    heads = {TRAINED: work / fit.STAGE / fit.HEAD}
    inputs = {fit.STAGE: input_hash(work, fit.STAGE), "target": weights_hash(target)}
    if stage.baseline is not None:
        heads[BASELINE] = Path(stage.baseline)
        inputs[BASELINE] = weights_hash(heads[BASELINE])
    settings = stage.model_dump(mode="json", exclude={"settings"})
    begun = begin(work, STAGE, settings, inputs)
    prompts = prompts_of(config)
    cells = _resumed(begun.path / FILE)
    each = len(prompts) * len(stage.shapes) * len(stage.temperatures)
    with reported_when_full(begun.path), bar(STAGE, each * len(heads), len(cells)) as advance:
        for name, folder in heads.items():
            if sum(cell["head"] == name for cell in cells) == each:
                continue
            cells = [cell for cell in cells if cell["head"] != name]
            for cell in measure(config, folder, prompts):
                cells.append({"head": name, **cell})
                advance(1)
            write_whole(begun.path / FILE, (json.dumps(cells, indent=1) + "\n").encode())
        table = as_table(cells)
        write_whole(begun.path / "evaluation.md", table.encode())
        draw_evaluation(begun.path, cells)
    say(table)
    return begun.finish({"cells": len(cells), "prompts": {task: len(ids) for task, ids in prompts.items()}})


def check_tasks(stage: EvaluateStage) -> None:
    """Raises AerieError if there is nothing to measure on."""
    if not stage.tasks and not stage.drawn:
        raise AerieError("evaluate.tasks names no held-out prompts; give at least one file, as in tasks: {chat: FILE}")


def prompts_of(config: PipelineConfig) -> dict[str, list[list[int]]]:
    """The held-out prompts by task, in the served template: the turns up to the first answer."""
    stage = config.evaluate
    model = read_model_config(Path(config.target))
    template = None if config.template is None else Path(config.template)
    renderer = ChatRenderer(Path(config.target), template, model.end_ids)
    found = {}
    for task, records in evaluation_prompts(config).items():
        if not records:
            raise AerieError(f"{stage.tasks[task]} holds no prompt (evaluate.tasks.{task})")
        found[task] = [_ids(renderer, record) for record in records[: stage.prompts]]
    return found


def _ids(renderer: ChatRenderer, record: dict[str, Any]) -> list[int]:
    return record.get("prompt_token_ids") or renderer.prompt(_first_question(record["turns"]))


def _first_question(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns up to the first question: a later one would need the answers to those before it."""
    first = next(index for index, turn in enumerate(turns) if turn["role"] == "user")
    return turns[: first + 1]


def _resumed(path: Path) -> list[Cell]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def as_table(cells: list[Cell]) -> str:
    """A Markdown table; one row for each task, shape and temperature, the heads side by side."""
    cells = cells + together(cells)
    heads = list(dict.fromkeys(cell["head"] for cell in cells))
    lines = [
        f"| task | shape | T | {' | '.join(f'{head}: length | by position' for head in heads)} |",
        f"|---|---|---|{'---|---|' * len(heads)}",
    ]
    rows: dict[tuple[str, str, float], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell["task"], cell["shape"], cell["temperature"]), {})[cell["head"]] = cell
    for (task, shape, temperature), found in rows.items():
        shown = (f"{found[head]['acceptance_length']:.2f} | {_shares(found[head])}" for head in heads if head in found)
        lines.append(f"| {task} | {shape} | {temperature:g} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def together(cells: list[Cell]) -> list[Cell]:
    """One cell over all tasks for each head, shape and temperature that has several; positions are of all steps."""
    found: dict[tuple[str, str, float], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell["head"], cell["shape"], cell["temperature"]), []).append(cell)
    return [_whole(same) for same in found.values() if len(same) > 1]


def _whole(cells: list[Cell]) -> Cell:
    shares = zip_longest(*(cell["acceptance_per_position"] for cell in cells), fillvalue=0.0)
    counts = {place: zip(*(cell["by_place"][place] for cell in cells), strict=True) for place in cells[0]["by_place"]}
    return {
        **{key: value for key, value in cells[0].items() if key != "by_answer"},
        "task": ALL,
        "prompts": sum(cell["prompts"] for cell in cells),
        "tokens": sum(cell["tokens"] for cell in cells),
        "acceptance_length": fmean(cell["acceptance_length"] for cell in cells),
        "acceptance_per_position": [fmean(one) for one in shares],
        "by_place": {place: list(map(sum, both)) for place, both in counts.items()},
    }


def as_places(cells: list[Cell]) -> str:
    """A Markdown table of tokens a step by where in the answer the step began; `cells` are of one head and shape."""
    places = list(cells[0]["by_place"])
    lines = [f"| task | T | {' | '.join(places)} |", f"|---|---|{'---|' * len(places)}"]
    for cell in cells + together(cells):
        means = (f"{tokens / steps:.2f}" if steps else "" for steps, tokens in cell["by_place"].values())
        lines.append(f"| {cell['task']} | {cell['temperature']:g} | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def _shares(cell: Cell) -> str:
    return " ".join(f"{share:.2f}" for share in cell["acceptance_per_position"])


def conditional(shares: list[float]) -> list[float]:
    """Turns the shares of drafts accepted at each depth into shares among the drafts accepted at the depth before."""
    before = [1.0, *shares]
    return [share / last if last else 0.0 for last, share in zip(before, shares, strict=False)]
