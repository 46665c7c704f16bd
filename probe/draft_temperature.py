"""`aerie probe draft-temperature`: which `a` of z = (a / T) log q + g gives the highest acceptance.

An infinite `a` drafts without the Gumbel noise by which the target samples: target-only acceptance, the rule that seed
coupling must beat. Only acceptance is measured, which does not depend on the load; every `a` has a separate worker.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.probe.acceptance import CONCURRENCY, accepted
from aerie.probe.drive import MakeLane, Prompts, Run
from aerie.probe.paired import Work, ratio, work
from aerie.probe.shapes import chain_of, for_lane, label, shape_at, tree_of

VALUES = (0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
TEMPERATURES = (0.6, 1.0)


def measure_draft_temperatures(
    config: Config,
    prompts: Prompts,
    make_lane: MakeLane,
    *,
    values: Sequence[float] = VALUES,
    temperatures: Sequence[float] = TEMPERATURES,
    max_tokens: int = 64,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """One cell for each mode, temperature and `a`, with its gain over target-only acceptance (infinite `a`)."""
    shape = shape_at(config, 1)
    shapes = {"chain": chain_of(shape), "tree": tree_of(shape)}
    cells: list[dict[str, Any]] = []
    lengths: dict[tuple[str, float, float], Work] = {}
    """Tokens and steps of the answers, by mode, temperature and `a`."""
    for value in values:
        spec = config.spec.model_copy(update={"draft_temperature": value})
        wide = for_lane(config.model_copy(update={"spec": spec}), list(shapes.values()), rows=CONCURRENCY)
        with closing(make_lane(wide)) as lane:
            for mode, own, temperature in _cases(shapes, temperatures):
                run = accepted(lane, wide, own, prompts, temperature, max_tokens)
                lengths[mode, temperature, value] = work(run.decoded, run.steps)
                cells.append(
                    {"mode": mode, "shape": label(own), "temperature": temperature, "a": value} | _figures(run)
                )
        say(f"a = {value:g}")
    for cell in cells:
        case = cell["mode"], cell["temperature"]
        base = lengths.get((*case, math.inf))
        over = base and ratio(lengths[*case, cell["a"]], base)
        cell |= {"over_target_only": over and over.value, "interval": over and [over.lower, over.upper]}
    return cells


def _cases(shapes: dict[str, DraftShape], temperatures: Sequence[float]) -> Iterator[tuple[str, DraftShape, float]]:
    for mode, shape in shapes.items():
        for temperature in temperatures:
            yield mode, shape, temperature


def _figures(run: Run) -> dict[str, Any]:
    return {
        "acceptance_length": run.acceptance_length,
        "acceptance_per_position": run.acceptance_per_position,
        "requests": len(run.answers),
    }
