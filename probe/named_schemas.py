"""Answers that are JSON because the prompt asks for it: `aerie probe structured` holds them to the schema it names.

The same prompts are answered with the schema as a grammar and without, so that what a grammar does to acceptance is
seen apart from what it does to a model that would have written something else.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import msgspec

from aerie.contracts.config import Config
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Generate
from aerie.contracts.step import Lane
from aerie.probe.drive import Answer, MakeLane, Run, ask, drive
from aerie.probe.paired import ratio, work
from aerie.probe.shapes import chain_of, for_lane, shape_at, tree_of, with_shape
from aerie.probe.structured import Cell, Check, Read, Sizes

WHOLE = Sizes(temperatures=(0.0, 0.8), max_tokens=400)
"""Answers that end by themselves."""


@dataclass(frozen=True, slots=True)
class Named:
    """A prompt that asks for JSON, and the schema that it names."""

    prompt: Sequence[int]
    schema: dict[str, Any]

    @property
    def grammar(self) -> Grammar:
        return Grammar(kind="json_schema", text=json.dumps(self.schema))

    @property
    def strict(self) -> "Named":
        """With all properties of its objects required, and no others allowed."""
        return replace(self, schema=_strict(self.schema))


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if schema["type"] == "array":
        return {**schema, "items": _strict(schema["items"])}
    return {**schema, "required": list(schema["properties"]), "additionalProperties": False}


def schema_in(text: str) -> dict[str, Any]:
    """The schema that a prompt names: its first JSON object with a `type`."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text, text.index('{"type"'))[0]
    return found


def measure_named(
    config: Config,
    prompts: Sequence[Named],
    make_lane: MakeLane,
    read: Read,
    check: Check,
    sizes: Sizes = WHOLE,
) -> list[Cell]:
    """A cell for each shape, temperature and strictness: tokens of a step with the grammar and without, and their
    ratio with its interval from resampling prompts. Raises an error if an answer that ended with `stop` does not match.
    """
    shape = shape_at(config, 1)
    modes = {"chain": chain_of(shape), "tree": tree_of(shape)}
    wide, cells = for_lane(config, list(modes.values()), rows=sizes.concurrency), list[Cell]()
    with closing(make_lane(wide)) as lane:
        for temperature, (mode, drafted) in product(sizes.temperatures, modes.items()):
            own = with_shape(wide, drafted)
            asked = ask([one.prompt for one in prompts], [temperature], max_tokens=sizes.max_tokens)
            free = drive(lane, own, asked, concurrency=sizes.concurrency)
            for strict in (False, True):
                held = [one.strict if strict else one for one in prompts]
                run = _held(lane, own, asked, held, sizes)
                valid = _valid(run.answers, held, read, check)
                cells.append({"mode": mode, "temperature": temperature, "strict": strict, "valid": valid})
                cells[-1] |= _figures(run, free)
    return cells


def _held(lane: Lane, config: Config, asked: list[Generate], prompts: Sequence[Named], sizes: Sizes) -> Run:
    pairs = zip(asked, prompts, strict=True)
    requests = [msgspec.structs.replace(one, grammar=named.grammar) for one, named in pairs]
    return drive(lane, config, requests, concurrency=sizes.concurrency)


def _valid(answers: Sequence[Answer], prompts: Sequence[Named], read: Read, check: Check) -> int:
    """How many ended with `stop`; all of them match."""
    stopped = [pair for pair in zip(answers, prompts, strict=True) if pair[0].finish == "stop"]
    for answer, named in stopped:
        check(json.loads(read(answer.tokens)), named.schema)
    return len(stopped)


def _figures(run: Run, free: Run) -> Cell:
    over = ratio(*(work(one.decoded, one.steps) for one in (run, free)))
    return {
        "answers": len(run.answers),
        "same": sum(own == other for own, other in zip(run.tokens, free.tokens, strict=True)),
        "tokens_a_step": run.acceptance_length,
        "tokens_a_step_free": free.acceptance_length,
        "over_free": over.value,
        "lower": over.lower,
        "upper": over.upper,
        "masks_a_choice": run.masking.masks / max(run.masking.choices, 1),
        "drafted": run.masking.drafted,
        "forced_drafts": run.masking.forced,
        "forbidden_drafts": run.masking.forbidden,
    }
