"""`aerie probe tune`: measures which shape is fastest at each load on this machine and writes spec.by_load into a
config.

Half of the requests are greedy and half sample, since one table serves both. A shape is chosen only if it gains MARGIN
over plain decoding, so that neither noise nor a server's overhead per step can turn the gain into a loss. It is no
larger than the shape for fewer rows, since drafts cost more in a fuller step.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import LoadShape
from aerie.contracts.step import MAX_NODES, Lane
from aerie.probe.drive import MakeLane, Prompts, Run, ask, drive, joined
from aerie.probe.shapes import for_lane, label, load_shape, with_shape

LOADS = (1, 2, 4, 8, 16, 32, 64)
CHAINS = tuple(DraftShape(depth, 1, depth + 1) for depth in (2, 3, 4, 5, 6))
TREES = (DraftShape(3, 2, 6), DraftShape(4, 3, 8), DraftShape(5, 4, 12), DraftShape(6, 4, 16), DraftShape(7, 4, 24))
TEMPERATURES = (0.0, 0.8)
MARGIN = 1.10
"""Lowest ratio of tokens per second to plain decoding."""

_ROUNDS = 3

Cell = dict[str, Any]


def tune(
    config: Config,
    prompts: Prompts,
    make_lane: MakeLane,
    *,
    loads: Sequence[int] = LOADS,
    shapes: Sequence[DraftShape] = (*CHAINS, *TREES),
    max_tokens: int = 48,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[Cell], list[LoadShape]]:
    """Cells of every shape at every load, and the table for spec.by_load. Raises ConfigError without a head."""
    wide = for_lane(config, shapes, rows=max(loads))
    cells: list[Cell] = []
    best: list[LoadShape] = []
    largest = MAX_NODES
    with closing(make_lane(wide)) as lane:
        if not lane.capacity.drafts:
            raise ConfigError("the target has no head to tune; set spec.head", param="spec.head")
        for load in sorted(loads):
            found = _measure(lane, wide, prompts, (NO_DRAFT, *shapes), load, max_tokens)
            chosen = choose({shape: cell["speedup"] for shape, cell in found.items()}, largest)
            largest = chosen.nodes
            cells += [cell | {"chosen": shape == chosen} for shape, cell in found.items()]
            best.append(load_shape(chosen, rows=load))
            say(f"{load} rows: {label(chosen)}")
    return cells, merged(best)


def choose(speedups: Mapping[DraftShape, float], largest: int) -> DraftShape:
    """The fastest shape with at most `largest` nodes that gains enough; otherwise none."""
    gaining = [shape for shape, speedup in speedups.items() if shape.nodes <= largest and speedup >= MARGIN]
    return max(gaining, key=lambda shape: speedups[shape], default=NO_DRAFT)


def merged(entries: Sequence[LoadShape]) -> list[LoadShape]:
    """Ascending entries, without those equal to the next one and without a last one that drafts nothing."""
    kept = [
        entry
        for entry, following in zip(entries, [*entries[1:], None], strict=True)
        if following is None or entry.model_copy(update={"rows": following.rows}) != following
    ]
    while len(kept) > 1 and kept[-1].depth == 0:
        kept.pop()
    return kept


def _measure(
    lane: Lane, config: Config, prompts: Prompts, shapes: Sequence[DraftShape], load: int, max_tokens: int
) -> dict[DraftShape, Cell]:
    """Shapes alternate, so that speed changes of the machine affect all alike: a speed-up is the median over rounds.

    Each round has enough requests that most steps run at the full load.
    """
    asked = deque(prompts)
    count = max(12, 2 * load)
    runs: dict[DraftShape, list[Run]] = {shape: [] for shape in shapes}
    for shape in shapes:  # first steps of a shape build kernels and touch memory
        few = [prompts[index % len(prompts)] for index in range(min(load, 4))]
        drive(lane, with_shape(config, shape), ask(few, TEMPERATURES, max_tokens=4), concurrency=load)
    for _ in range(_ROUNDS):
        part = [asked[index % len(asked)] for index in range(count)]
        asked.rotate(-count)
        for shape in shapes:
            requests = ask(part, TEMPERATURES, max_tokens=max_tokens)
            runs[shape].append(drive(lane, with_shape(config, shape), requests, concurrency=load))
    return {shape: _cell(shape, load, own, runs[NO_DRAFT]) for shape, own in runs.items()}


def _cell(shape: DraftShape, load: int, runs: Sequence[Run], plain: Sequence[Run]) -> Cell:
    whole = joined(runs)
    return {
        "rows": load,
        "shape": label(shape),
        "depth": shape.depth,
        "topk": shape.topk,
        "nodes": shape.nodes,
        "tokens_per_s": statistics.median(run.tokens_per_s for run in runs),
        "speedup": statistics.median(
            run.tokens_per_s / other.tokens_per_s for run, other in zip(runs, plain, strict=True)
        ),
        "acceptance_length": whole.acceptance_length,
        "idle_share": whole.idle_share,
    }
