"""Checks the grammars of requests before anything is queued: the only place of the server that imports llguidance.

A check builds the grammar once, on a thread and under limits, so that what the lane builds later is known to build. A
grammar that was checked before is not built again.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar, schema_of, vocabulary_of, written
from aerie.contracts.server_section import LimitsConfig
from aerie.server.text.tokenizer import Tokenizer

_OTHERS = re.compile(r"[^][(){}]+")
_STEPS = dict.fromkeys("{[(", 1) | dict.fromkeys("}])", -1)
_KEPT_BYTES = 8 << 20
"""Of the texts of grammars that were checked."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a request asks its answer to match, not yet made: `make` may take long and runs on a thread."""

    param: str
    """The field that asks for it, named in errors."""
    make: Callable[[], Grammar]
    """Raises BadRequest, or ValueError with the reason."""


class Grammars:
    def __init__(self, tokenizer: Tokenizer, limits: LimitsConfig) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._vocabulary: LLTokenizer | None = None
        self._checked: OrderedDict[Grammar, Grammar] = OrderedDict()
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def checked(self, constraint: Constraint, end_ids: list[int]) -> Grammar:
        """The grammar, known to build with the model's tokens. Raises BadRequest with the field and the reason."""
        work = asyncio.get_running_loop().run_in_executor(self._thread, self.check, constraint, end_ids)
        try:
            return await asyncio.wait_for(asyncio.shield(work), self._limits.grammar_seconds)
        except TimeoutError:
            seconds = self._limits.grammar_seconds
            raise _refused(
                constraint, f"took longer than {seconds:g} s to build (limits.grammar_seconds); make it simpler"
            ) from None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def check(self, constraint: Constraint, end_ids: list[int]) -> Grammar:
        """The same, here and now."""
        try:
            grammar = constraint.make()
            self._check_size(constraint, grammar)
            return self._kept(grammar) or self._keep(grammar, self._built(constraint, grammar, end_ids))
        except (ValueError, RecursionError) as error:
            raise _refused(constraint, f"cannot be read: {error}") from None

    def _check_size(self, constraint: Constraint, grammar: Grammar) -> None:
        size, most = len(grammar.text.encode()), self._limits.grammar_bytes
        if size > most:
            raise _refused(constraint, f"has {size} bytes; at most {most} are allowed (limits.grammar_bytes)")
        depth, deepest = _nesting(grammar.text), self._limits.grammar_nesting
        if depth > deepest:
            raise _refused(constraint, f"nests {depth} levels; at most {deepest} are allowed (limits.grammar_nesting)")

    def _built(self, constraint: Constraint, grammar: Grammar, end_ids: list[int]) -> Grammar:
        """The grammar in the notation that the lane takes. Raises BadRequest if it does not build, ValueError for
        a schema that is not the JSON of an object: the lane does not read it.
        """
        if grammar.kind == "lark" and "::=" in grammar.text:
            grammar = msgspec.structs.replace(grammar, text=_as_lark(constraint, grammar.text))
        if grammar.kind == "json_schema":
            schema_of(grammar)
        text = written(grammar, self._tokenizer.token_of(grammar.behind))
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._made_vocabulary(constraint, end_ids), text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # of the first token: where none may come, only this tells
        if matcher.is_error():
            raise _refused(constraint, f"cannot be used: {_reason(matcher.get_error())}")
        return grammar

    def _made_vocabulary(self, constraint: Constraint, end_ids: list[int]) -> LLTokenizer:
        if self._vocabulary is None:
            try:
                self._vocabulary = LLTokenizer(vocabulary_of(self._tokenizer.as_json()), eos_token=end_ids)
            except Exception as error:  # noqa: BLE001  the library raises what its tokenizers raise
                raise _refused(
                    constraint, f"is not possible with this model's tokenizer: {_reason(str(error))}"
                ) from None
        return self._vocabulary

    def _kept(self, grammar: Grammar) -> Grammar | None:
        if grammar in self._checked:
            self._checked.move_to_end(grammar)
        return self._checked.get(grammar)

    def _keep(self, asked: Grammar, built: Grammar) -> Grammar:
        self._checked[asked] = built
        self._bytes += _size(asked, built)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= _size(*self._checked.popitem(last=False))
        return built


def _as_lark(constraint: Constraint, rules: str) -> str:
    """A grammar that is written with `::=`, in Lark's notation."""
    try:
        converted: str = any_to_lark(rules)
    except Exception as error:  # noqa: BLE001  a parser of its own, with errors of its own
        raise _refused(constraint, f"cannot be read: {_reason(str(error))}") from None
    return converted


def _size(asked: Grammar, built: Grammar) -> int:
    return len(asked.text) + len(built.text)


def _nesting(text: str) -> int:
    """The deepest nesting of brackets, those within strings and expressions included. Without a loop in Python, which
    would hold up the event loop beside it.
    """
    steps = map(_STEPS.__getitem__, _OTHERS.sub("", text))
    return max(accumulate(steps), default=0)


def _reason(error: str) -> str:
    """What llguidance says, without the place in a text that the caller has not written, and without that text."""
    if error.startswith("NoExtension"):
        return "no text matches it"
    lines = error.split("\n")
    found = next((line for line in lines if line.startswith("error: ")), lines[0])  # of a regular expression
    return re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: |^error: ", "", found)[:300]


def _refused(constraint: Constraint, why: str) -> BadRequest:
    return BadRequest(f"{constraint.param} {why}", param=constraint.param, code="invalid_grammar")
