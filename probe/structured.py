"""`aerie probe structured`: whether answers match their grammars, and are the same however they are decoded.

The same requests run without drafts, as chains and as trees, with and without overlap, at several temperatures, on one
lane for each head. Every answer that ends with `stop` is parsed and checked by an independent validator. The same
prompts without grammars give the tokens of a step to compare with. `structured_costs` has what the masks cost.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from aerie.contracts.config import Config
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.probe.drive import Answer, MakeLane, Prompts, Run, ask, drive
from aerie.probe.shapes import chain_of, for_lane, shape_at, tree_of, with_shape

Cell = dict[str, Any]
Read = Callable[[list[int]], str]
"""Decodes an answer's tokens."""
Check = Callable[[Any, dict[str, Any]], None]
"""Raises an error unless a value matches a schema."""

_PLACE = {"type": "object", "properties": {"line": {"type": "integer"}, "file": {"type": "string", "maxLength": 16}}}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", None, 1.5]}, "minItems": 1, "maxItems": 5},
    {
        "type": "object",
        "properties": {"kind": {"const": "call"}, "places": {"type": "array", "items": _PLACE, "maxItems": 2}},
        "required": ["kind", "places"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "integer", "minimum": -5, "maximum": 99}, {"type": "string", "pattern": "^[a-z]{2,8}$"}]},
    {"type": "string", "format": "date"},
]
REGEX = r"[A-Z][a-z]{1,9}( [a-z]{1,9}){0,4}\."
CHOICES = ["yes", "no", "perhaps, if it rains"]
GRAMMARS = [
    *(Grammar(kind="json_schema", text=json.dumps(schema)) for schema in SCHEMAS),
    Grammar(kind="regex", text=REGEX),
    Grammar(kind="choice", text=json.dumps(CHOICES)),
]


@dataclass(frozen=True, slots=True)
class Sizes:
    temperatures: Sequence[float] = (0.0, 0.8, 2.0)
    concurrency: int = 4
    max_tokens: int = 96
    top_k: int = 0


def measure_structured(
    configs: Sequence[Config], prompts: Prompts, make_lane: MakeLane, read: Read, check: Check, sizes: Sizes = Sizes()
) -> list[Cell]:
    """One cell for each head, mode, loop and temperature; each asks every prompt once. The configs have the same target
    and other heads, of which the first runs without drafts too. Raises AssertionError, with the text, if an answer that
    ended with `stop` does not match.
    """
    cells: list[Cell] = []
    first: dict[float, list[list[int]]] = {}
    for config in configs:
        shape = shape_at(config, 1)
        chain, tree = chain_of(shape), tree_of(shape)
        modes = {"off": chain, "chain": chain, "tree": tree} if config is configs[0] else {"chain": chain, "tree": tree}
        with closing(make_lane(for_lane(config, [chain, tree], rows=sizes.concurrency))) as lane:
            for temperature, mode, overlap in product(sizes.temperatures, modes, (True, False)):
                own = _Mode(config, lane, modes[mode], overlap, speculation=mode != "off")
                run = own.run(_requests(prompts, temperature, sizes, own.speculation), sizes)
                free = own.run(_free(prompts, temperature, sizes, own.speculation), sizes)
                equal = run.tokens == first.setdefault(temperature, run.tokens)
                cell = {"head": Path(config.spec.head or "").name, "mode": mode, "overlap": overlap}
                cell |= {"temperature": temperature, "equal": equal}
                cells.append(cell | _figures(run, free, read, check))
    return cells


@dataclass(frozen=True, slots=True)
class _Mode:
    config: Config
    lane: Lane
    shape: DraftShape
    overlap: bool
    speculation: bool

    def run(self, requests: list[Generate], sizes: Sizes) -> Run:
        config = with_shape(self.config, self.shape)
        scheduler = config.scheduler.model_copy(update={"overlap": self.overlap})
        own = config.model_copy(update={"scheduler": scheduler})
        return drive(self.lane, own, requests, concurrency=sizes.concurrency)


def _free(prompts: Prompts, temperature: float, sizes: Sizes, speculation: bool) -> list[Generate]:
    """The requests without grammars, of about the same lengths."""
    length = min(sizes.max_tokens, 24)
    return ask(prompts, [temperature], max_tokens=length, speculation=speculation, ignore_eos=True)


def _requests(prompts: Prompts, temperature: float, sizes: Sizes, speculation: bool) -> list[Generate]:
    asked = ask(prompts, [temperature], max_tokens=sizes.max_tokens, speculation=speculation)
    return [
        Generate(
            id=one.id,
            prompt=one.prompt,
            sampling=_sampled(one.sampling, sizes),
            speculation=one.speculation,
            grammar=GRAMMARS[index % len(GRAMMARS)],
        )
        for index, one in enumerate(asked)
    ]


def _sampled(sampling: SamplingParams, sizes: Sizes) -> SamplingParams:
    return replace(sampling, top_k=sizes.top_k)


def _figures(run: Run, free: Run, read: Read, check: Check) -> Cell:
    stopped = list(_checked(run.answers, read, check))
    return {
        "answers": len(run.answers),
        "stopped": len(stopped),
        "valid": len(stopped),
        "tokens_a_step": run.acceptance_length,
        "tokens_a_step_free": free.acceptance_length,
        "lane_ms_a_step": _lane_ms(run),
        "masks_a_choice": run.masking.masks / max(run.masking.choices, 1),
        "mask_us": 1e6 * run.masking.seconds / max(run.masking.masks, 1),
        "drafted": run.masking.drafted,
        "forbidden_drafts": run.masking.forbidden,
        "forced_drafts": run.masking.forced,
        "tokens_over_free": run.acceptance_length / free.acceptance_length,
    }


def _checked(answers: Sequence[Answer], read: Read, check: Check) -> Iterator[str]:
    """The texts that ended with `stop`."""
    for index, answer in enumerate(answers):
        if answer.finish == "stop":
            text = read(answer.tokens)
            assert matches(index % len(GRAMMARS), text, check), (
                f"{text!r} does not match {GRAMMARS[index % len(GRAMMARS)]}"
            )
            yield text


def matches(which: int, text: str, check: Check) -> bool:
    """Whether a text matches GRAMMARS[which]."""
    if which < len(SCHEMAS):
        check(json.loads(text), SCHEMAS[which])
        return True
    return re.fullmatch(REGEX, text) is not None if which == len(SCHEMAS) else text in CHOICES


def _lane_ms(run: Run) -> float:
    """Lane time of one row's step."""
    steps = sum(answer.usage.steps for answer in run.answers if answer.usage is not None)
    return 1e3 * run.busy_seconds / max(steps, 1)
