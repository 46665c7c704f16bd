"""Masks beside a simulated device: whether it has to wait for them.

The masks are real, of rows that follow a grammar over a vocabulary of 128k made-up pieces; their CPU time is measured
on one thread. What the interpreter's lock allows one thread alone counts whole, what other threads may do meanwhile is
divided by the threads of the *simulated* host. The device is the roofline of an 8B model on an H100. So the time of the
masks is an upper bound, and nothing of it was measured on a GPU.
"""

import random
import string
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import tokenizers

from aerie.contracts.step import Ending, Ints, Longs, StepOutput
from aerie.engine.grammars.filling import Filling
from aerie.engine.grammars.follower import Follower
from aerie.engine.grammars.guided import Guided
from aerie.engine.grammars.matcher import Matcher, Vocabulary
from aerie.engine.sampling.masks import mask_words
from aerie.probe.overlap import Roofline
from aerie.probe.structured_costs import PLAIN

Cell = dict[str, Any]

ROWS = (1, 4, 16, 64)
_PIECES, _END = 128_256, 0
_CONTEXT = 1000
"""Tokens before each row's step."""
_PCIE = 25e9
"""Bytes a second to the device."""
_ACCEPTED = 0.75
"""The share of drafts that the target accepts."""


def made_up_vocabulary(pieces: int = _PIECES, seed: int = 0) -> Vocabulary:
    """Pieces of letters, with a space before or not, of digits and of punctuation."""
    source, found = random.Random(seed), {"<end>": _END}
    for character in (*string.ascii_letters, *string.digits, *string.punctuation, "\u0120"):
        found.setdefault(character, len(found))
    kinds = ((string.ascii_lowercase, 0.9), (string.digits, 0.95), ('{}[]",:._-', 1.0))
    while len(found) < pieces:
        roll = source.random()
        letters = next(letters for letters, most in kinds if roll < most)
        text = "".join(source.choices(letters, k=source.randrange(2, 9 if letters.isalpha() else 4)))
        found.setdefault("\u0120" + text if source.random() < 0.5 else text, len(found))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=found, merges=[]))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return Vocabulary(tokenizer, pieces, (_END,))


def measure_masked_device(
    vocabulary: Vocabulary, *, rows: tuple[int, ...] = ROWS, steps: int = 30, depth: int = 3, threads: int = 8
) -> list[Cell]:
    """A cell for each number of rows: the pass of the device, the masks, and the share of the step that it waits."""
    return [_measure(vocabulary, count, steps, depth, threads) for count in rows]


def _measure(vocabulary: Vocabulary, rows: int, steps: int, depth: int, threads: int) -> Cell:
    assert PLAIN.grammar is not None
    source, first = random.Random(rows), vocabulary.matcher(PLAIN.grammar)
    timed = [_Timed(first.copy()) for _ in range(rows)]
    followers = [Follower(Guided(0, one, vocabulary.end_ids, False)) for one in timed]
    whole, apart, copied = 0.0, 0.0, 0
    for _ in range(steps):
        drafts, output = _step(followers, source, depth)
        words = np.zeros((drafts.size, mask_words(vocabulary.size)), np.int32)
        of = np.zeros(drafts.size, np.int64)
        began, apart_before = time.thread_time(), sum(one.seconds for one in timed)
        filling = _fill(followers, words, of, drafts)
        whole += time.thread_time() - began
        apart += sum(one.seconds for one in timed) - apart_before
        copied += words[: filling.used].nbytes + of.nbytes
        assert not filling.settled(output).faults
    roofline, lengths, nodes = Roofline(), np.full(rows, _CONTEXT, np.int32), rows * (depth + 1)
    masks = (whole - apart + apart / threads + copied / _PCIE) / steps
    through = roofline.step_seconds(lengths, nodes, 0, 0)
    return {
        "rows": rows,
        "threads": threads,
        "pass_ms": 1e3 * through,
        "masks_ms": 1e3 * masks,
        "one_thread_ms": 1e3 * whole / steps,
        "idle_share_more": max(0.0, masks - through) / roofline.step_seconds(lengths, nodes, depth, rows * depth),
        "device": "simulated",
    }


def _fill(followers: list[Follower], words: Ints, of: Longs, drafts: Ints) -> Filling:
    """Makes all masks of a step of chains: drafts [rows, nodes]."""
    rows, nodes = drafts.shape
    firsts = np.arange(rows, dtype=np.int32) * nodes
    filling = Filling(dict(enumerate(followers)), words, of, np.full(rows, nodes, np.int32), firsts)
    pool = _AtOnce()
    filling.begin(pool)
    filling.grow(pool, drafts, np.tile(np.arange(-1, nodes - 1, dtype=np.int32), (rows, 1)))
    filling.finish(lambda: False)
    return filling


def _step(followers: list[Follower], source: random.Random, depth: int) -> tuple[Ints, StepOutput]:
    """What a step drafts [rows, depth + 1], the root first, and what it commits."""
    rows = len(followers)
    drafts = np.zeros((rows, depth + 1), np.int32)
    tokens, counts, none = np.zeros_like(drafts), np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for row, follower in enumerate(followers):
        matcher = follower.matcher.copy()
        for token in follower.due:
            matcher.take(token)
        path = [_allowed(matcher, source) for _ in range(depth + 1)]
        drafts[row, 1:] = path[:depth]
        counts[row] = 1 + next((place for place in range(depth) if source.random() > _ACCEPTED), depth)
        tokens[row] = path
    return drafts, StepOutput(0, tokens, counts, counts - 1, none + depth, none, none + Ending.OPEN)


def _allowed(matcher: Matcher, source: random.Random) -> int:
    """Takes a random token."""
    token: int = source.choice(np.flatnonzero(matcher.mask()).tolist())
    matcher.take(token)
    return token


class _Timed:
    """A matcher that adds up the CPU time of its masks, which other threads need not wait for."""

    def __init__(self, inner: Matcher) -> None:
        self._inner = inner
        self.seconds = 0.0
        self.allows, self.mask, self.take = inner.allows, inner.mask, inner.take
        self.undo, self.forced, self.copy = inner.undo, inner.forced, inner.copy

    def words(self) -> bytes:
        began = time.thread_time()
        words = self._inner.words()
        self.seconds += time.thread_time() - began
        return words


class _AtOnce(Executor):
    """Runs a task when it is submitted."""

    def submit(self, task: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(task(*given, **named))
        return future
