"""`aerie probe grammars`: random schemas, and requests with grammars that leave at any time. Neither may harm a server.

Schemas hold every keyword that JSON Schema knows, with values of the right and of the wrong kind. Each is checked as a
server checks it: it is refused by name, or it builds, and a random walk over its masks ends or fails by name.
"""

import json
import random
import resource
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Abort, Failed, Finished, Generate
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.step import Lane
from aerie.engine.grammars.matcher import GrammarFailed, Matcher, Vocabulary
from aerie.probe.structured import GRAMMARS
from aerie.scheduler import Scheduler

Check = Callable[[str], None]
"""Checks the text of a schema as a server does; raises BadRequest."""
Figures = dict[str, Any]

_NAMES = ("a", "name", "kind", "a b", "\u00fc", "$ref", "", "x" * 40)
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null", "any", 3)
_PATTERNS = ("^[a-z]+$", "(a|b){2,9}", "[", "(?=a)b", ".*", "a{1,999999}", "\\d+\\.\\d\\d", "\u00e9|\U0001f600")
_FORMATS = ("date", "date-time", "uuid", "email", "ipv4", "color", "")
_WALK = 24
"""Tokens of a walk over a schema's masks."""


def random_schema(source: random.Random, depth: int = 4) -> Any:
    """A schema, or nearly one."""
    if depth == 0 or source.random() < 0.06:
        return source.choice([True, False, {}, {"type": "string"}, {"const": None}, 7, [], "string"])
    keywords = source.sample(sorted(_KEYWORDS), source.randrange(1, 5))
    found = {keyword: _KEYWORDS[keyword](source, depth - 1) for keyword in keywords}
    return {"type": source.choice(_TYPES)} | found if source.random() < 0.8 else found


def _schemas(source: random.Random, depth: int) -> list[Any]:
    return [random_schema(source, depth) for _ in range(source.randrange(4))]


def _properties(source: random.Random, depth: int) -> dict[str, Any]:
    return {name: random_schema(source, depth) for name in source.sample(_NAMES, source.randrange(4))}


def _number(source: random.Random, depth: int) -> Any:
    return source.choice([0, 1, 2, 5, 64, -3, 2.5, 10**6, 10**30, "3", None])


_KEYWORDS: dict[str, Callable[[random.Random, int], Any]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _number),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _number),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _schemas),
    **dict.fromkeys(("items", "additionalProperties", "not", "if", "then", "contains", "propertyNames"), random_schema),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "dependentSchemas"), _properties),
    "required": lambda source, depth: source.sample(_NAMES, source.randrange(4)),
    "enum": lambda source, depth: [
        source.choice([1, "a", None, [], {"b": 2}, 1.5]) for _ in range(source.randrange(5))
    ],
    "const": lambda source, depth: source.choice([1, "a", None, [1, 2], {"b": 2}]),
    "pattern": lambda source, depth: source.choice(_PATTERNS),
    "format": lambda source, depth: source.choice(_FORMATS),
    "uniqueItems": lambda source, depth: source.random() < 0.5,
    "$ref": lambda source, depth: source.choice(["#", "#/$defs/a", "#/$defs/none", "https://example.org/s", 4]),
}


def fuzz_schemas(check: Check, vocabulary: Vocabulary, count: int, seed: int = 0) -> Figures:
    """Raises AssertionError for a refusal without a field, and what a check or a walk raises otherwise."""
    source, refused, failed, slowest = random.Random(seed), 0, 0, 0.0
    half = 0
    for number in range(count):
        text = json.dumps(random_schema(source))
        began = time.perf_counter()
        try:
            check(text)
        except BadRequest as error:
            assert error.param and error.code == "invalid_grammar", f"{text} is refused without a field: {error}"
            refused += 1
        else:
            failed += not _walks(vocabulary.matcher(Grammar(kind="json_schema", text=text)), source, vocabulary)
        slowest = max(slowest, time.perf_counter() - began)
        half = _peak_mb() if number == count // 2 else half
    return {
        "schemas": count,
        "refused": refused,
        "built": count - refused,
        "failed_later": failed,
        "slowest_ms": 1e3 * slowest,
        "peak_mb_half": half,
        "peak_mb": _peak_mb(),
    }


def _walks(matcher: Matcher, source: random.Random, vocabulary: Vocabulary) -> bool:
    """Whether a random walk ends, or goes on without a fault."""
    try:
        for _ in range(_WALK):
            token = source.choice(np.flatnonzero(matcher.mask()).tolist())
            if token in vocabulary.end_ids:
                return True
            matcher.take(token)
    except GrammarFailed:
        return False
    return True


def cancel_at_random(
    lane: Lane, config: Config, prompts: Sequence[Sequence[int]], count: int, seed: int = 0
) -> Figures:
    """Requests with grammars, among free ones, of which `count` leave at any time and some rows are preempted. Raises
    AssertionError if one fails or a page is lost.
    """
    source, scheduler = random.Random(seed), Scheduler(lane, config)
    open_ones: set[str] = set()
    asked = cancelled = ended = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while cancelled < count or not scheduler.idle:
            while cancelled < count and len(open_ones) < 2 * scheduler.rows.count:
                asked += 1
                open_ones.add(str(asked))
                scheduler.submit(_request(str(asked), prompts[asked % len(prompts)], source))
            for reply in scheduler.iterate():
                assert not isinstance(reply, Failed), reply
                if isinstance(reply, Finished):
                    ended += reply.reason != "abort"
                    open_ones.discard(reply.id)
            if open_ones and cancelled < count:
                cancelled += 1
                scheduler.submit(Abort(id=source.choice(sorted(open_ones))))
    scheduler.check()
    return {"cancelled": cancelled, "asked": asked, "ended": ended, "masks": scheduler.stats.masking.masks}


def _request(id: str, prompt: Sequence[int], source: random.Random) -> Generate:
    sampling = SamplingParams(
        temperature=source.choice([0.0, 1.0, 2.0]),
        max_tokens=source.randrange(4, 40),
        top_k=source.choice([0, 0, 7]),
        repetition_penalty=source.choice([1.0, 1.0, 1.3]),
        seed=source.randrange(2**31),
    )
    return Generate(id=id, prompt=list(prompt), sampling=sampling, grammar=source.choice([None, *GRAMMARS]))


def _peak_mb() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def vocabulary_at(folder: Path, lane: Lane) -> Vocabulary:
    return Vocabulary.of_model(folder, lane.capacity.vocabulary, lane.capacity.end_ids)
