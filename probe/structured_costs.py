"""`aerie probe structured-costs`: what grammars and penalties cost rows that decode, and how a large schema arrives.

In each round every batch decodes the same prompt to the same number of tokens, one a step, so that a busy machine slows
all alike. Lane time is CPU time; the time of a token is that between two steps, as a stream sees it. `masked_device`
has what masks cost beside a simulated device.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.grammar import Grammar, Masking
from aerie.contracts.messages import Abort, Failed, Finished, Generate
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.step import Lane, StepKind
from aerie.probe.drive import MakeLane, Prompts, drive
from aerie.probe.lane_log import LaneLog
from aerie.probe.named_schemas import Named
from aerie.probe.paired import ratio, work
from aerie.probe.shapes import shape_at, with_shape
from aerie.scheduler import Scheduler

Cell = dict[str, Any]

_MANY = 512
"""Items of an array, more than a row has room for: it does not end before it is cut."""


def _array(items: dict[str, Any]) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps({"type": "array", "minItems": _MANY, "items": items}))


PLACE = {
    "type": "object",
    "properties": {
        "line": {"type": "integer"},
        "kind": {"enum": ["function", "class", "module"]},
        "public": {"type": "boolean"},
    },
    "required": ["line", "kind", "public"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Row:
    grammar: Grammar | None = None
    named: bool = False
    """It has the grammar that its prompt names."""
    edits: dict[str, Any] = field(default_factory=dict)


FREE = Row()
NAMED = Row(named=True)
PLAIN = Row(_array(PLACE))
BOUNDED = Row(_array({"type": "string", "maxLength": 40}))
PENALISED = Row(edits={"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5})
KEPT = Row(Grammar(kind="regex", text="(.|\\n)*"))
BATCHES = {
    "free": (FREE, FREE),
    "kept grammars": (KEPT, KEPT),
    "schemas that prompts name": (NAMED, NAMED),
    "schemas of something else": (PLAIN, PLAIN),
    "one row of bounded strings": (BOUNDED, FREE),
    "one penalised row": (PENALISED, FREE),
    "penalised rows": (PENALISED, PENALISED),
}
"""The first row of each batch, and its others. Grammars are kept if the model writes what they allow anyway."""


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 4
    rounds: int = 144
    arrivals: int = 12
    tokens: int = 48
    temperatures: Sequence[float] = (0.0, 0.8)


def measure_costs(config: Config, prompts: Sequence[Named], make_lane: MakeLane, sizes: Sizes = Sizes()) -> list[Cell]:
    """A cell for each batch and temperature: lane time of a step and time of a token, and both over those of free rows,
    with their intervals.
    """
    cells, config = list[Cell](), _unplanned(config)
    with closing(make_lane(config)) as lane:
        for temperature in sizes.temperatures:
            took: dict[str, list[_Decoded]] = {name: [] for name in BATCHES}
            for one in range(sizes.rounds + 1):
                for name in reversed(BATCHES) if one % 2 else BATCHES:
                    asked = _batch(prompts[one % len(prompts)], BATCHES[name], temperature, sizes)
                    took[name].append(_decode(lane, config, asked))
            cells += _cells({name: rounds[1:] for name, rounds in took.items()}, temperature)  # the first warms up
    return cells


def _unplanned(config: Config) -> Config:
    """With no planner, whose calibration would count among the steps."""
    return with_shape(config, shape_at(config, 1))


@dataclass(frozen=True, slots=True)
class _Decoded:
    steps: int
    """Those of all rows that follow another such step."""
    worked: float
    """Seconds of lane time in these steps."""
    passed: float
    """Seconds from one of them to the next."""
    masking: Masking


def _cells(took: dict[str, list[_Decoded]], temperature: float) -> Iterator[Cell]:
    steps = {name: [one.steps for one in rounds] for name, rounds in took.items()}
    lane = {name: work(steps[name], [one.worked for one in rounds]) for name, rounds in took.items()}
    token = {name: work(steps[name], [one.passed for one in rounds]) for name, rounds in took.items()}
    for name, rounds in took.items():
        over, slower = ratio(lane["free"], lane[name]), ratio(token["free"], token[name])
        yield {
            "batch": name,
            "temperature": temperature,
            "steps": sum(steps[name]),
            "lane_ms_a_step": 1e3 / lane[name].speed,
            "over_free": over.value,
            "lower": over.lower,
            "upper": over.upper,
            "token_ms": 1e3 / token[name].speed,
            "token_over_free": slower.value,
            "token_lower": slower.lower,
            "token_upper": slower.upper,
            "masks_a_step": sum(one.masking.masks for one in rounds) / sum(steps[name]),
            "mask_ms_a_step": 1e3 * sum(one.masking.seconds for one in rounds) / sum(steps[name]),
        }


def _batch(named: Named, kinds: tuple[Row, Row], temperature: float, sizes: Sizes) -> list[Generate]:
    rows = [kinds[place > 0] for place in range(sizes.rows)]
    held = [replace(row, grammar=named.grammar) if row.named else row for row in rows]
    return [
        _request(f"row-{place}", named.prompt, row, temperature, sizes.tokens, seed=place)
        for place, row in enumerate(held)
    ]


def _request(id: str, prompt: Sequence[int], row: Row, temperature: float, tokens: int, seed: int = 0) -> Generate:
    return Generate(
        id=id,
        prompt=list(prompt),
        sampling=SamplingParams(
            temperature=temperature, max_tokens=tokens, seed=seed, ignore_eos=row.grammar is None, **row.edits
        ),
        speculation=SpeculationParams(enabled=False),
        grammar=row.grammar,
    )


def _decode(lane: Lane, config: Config, asked: list[Generate]) -> _Decoded:
    log = LaneLog(lane)
    run = drive(log, config, asked, concurrency=len(asked))
    whole = [step for step in log.steps if step.kind is StepKind.DECODE and step.rows == len(asked)]
    passed = whole[-1].settled - whole[0].settled
    return _Decoded(len(whole) - 1, sum(step.busy for step in whole[1:]), passed, run.masking)


def _values(one: int) -> dict[str, Any]:
    return {"enum": [f"{one:03} value number {n:05}" for n in range(2200)]}


def _fields(one: int) -> dict[str, Any]:
    names = [f"field_{one:03}_{n:04}" for n in range(1600)]
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": names[:9]}


LARGE: dict[str, Callable[[int], dict[str, Any]]] = {"values": _values, "properties": _fields}
"""Schemas of 50 to 64 kB; each round's is another."""


def measure_arrival(config: Config, prompts: Prompts, make_lane: MakeLane, sizes: Sizes = Sizes()) -> list[Cell]:
    """A cell for each of LARGE: the longest step beside the arrival of a request with it, and the longest of as many
    steps beside one with no grammar: of more steps, a busy machine makes the longest longer.
    """
    cells, config = list[Cell](), _unplanned(config)
    with closing(make_lane(config)) as lane:
        for name, make in LARGE.items():
            own: list[list[float]] = []
            free: list[list[float]] = []
            for one in range(sizes.arrivals + 1):
                row = Row(Grammar(kind="json_schema", text=json.dumps(make(one))))
                own.append(_steps_beside(lane, config, prompts, row, sizes))
                free.append(_steps_beside(lane, config, prompts, FREE, sizes, least=len(own[-1])))
            longest, longest_free = (statistics.median(map(max, rounds[1:])) for rounds in (own, free))
            cells.append(
                {
                    "schema": name,
                    "bytes": len(json.dumps(make(0))),
                    "steps": statistics.median_high(map(len, own[1:])),
                    "longest_ms": 1e3 * longest,
                    "longest_ms_free": 1e3 * longest_free,
                    "stall_ms": 1e3 * (longest - longest_free),
                }
            )
    return cells


def _steps_beside(lane: Lane, config: Config, prompts: Prompts, new: Row, sizes: Sizes, least: int = 1) -> list[float]:
    """Wall seconds of the steps of rows that decode, from the arrival of a new row to its end, and `least` at least."""
    scheduler, took = Scheduler(lane, config), list[float]()
    for row in range(sizes.rows):
        scheduler.submit(_request(f"row-{row}", prompts[-1], FREE, 0.8, 8 * sizes.tokens, seed=row))
    while scheduler.rows.decoding.sum() < sizes.rows:
        scheduler.iterate()
    scheduler.submit(_request("new", prompts[0], new, 0.8, 2))
    waits = True
    while waits or (len(took) < least and not scheduler.idle):
        began = time.perf_counter()
        replies = scheduler.iterate()
        took.append(time.perf_counter() - began)
        assert not any(isinstance(reply, Failed) for reply in replies), replies
        waits &= not any(isinstance(reply, Finished) and reply.id == "new" for reply in replies)
    for row in range(sizes.rows):
        scheduler.submit(Abort(id=f"row-{row}"))
    while not scheduler.idle:
        scheduler.iterate()
    return took
