"""Matchers of requests, built and freed beside the steps."""

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_native_id
from typing import Any

from aerie.contracts.grammar import Grammar, Prepared
from aerie.engine.grammars.kept import KeptMatchers
from aerie.engine.grammars.matcher import Matcher, Vocabulary

_NICER = 5
"""A third of the share of a core that steps get. Building takes longer for it only where cores are short."""


class Building:
    def __init__(self, vocabulary: Callable[[], Vocabulary], kept: KeptMatchers | None) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self.made: dict[int, Matcher] = {}
        """By request: matchers that have taken nothing yet, and never do; rows get copies."""
        self._kept = KeptMatchers() if kept is None else kept
        """Used only on the thread that builds."""
        self._building = ThreadPoolExecutor(1, thread_name_prefix="grammar", initializer=_yield_to_steps)
        self._freeing = ThreadPoolExecutor(1, thread_name_prefix="freed-grammar")
        """A large grammar takes milliseconds to free, with the interpreter's lock: never on a thread that yields."""

    def prepare(self, request: int, grammar: Grammar, done: Callable[[Prepared], None]) -> None:
        """Builds a request's matcher on a thread, then calls `done` there."""
        self._building.submit(lambda: done(self._prepare(request, grammar)))

    def forget(self, request: int) -> None:
        """The request has ended."""
        self._building.submit(self._forget, request)  # after its own preparation

    def free(self, held: list[Any]) -> None:
        """Empties a list, beside the steps."""
        self._freeing.submit(held.clear)

    def vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = self._make_vocabulary()
        return self._vocabulary

    def close(self) -> None:
        for pool in (self._building, self._freeing):
            pool.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, request: int, grammar: Grammar) -> Prepared:
        started = time.perf_counter()
        kept = self._kept.get(grammar)
        try:
            self.made[request] = self._built(grammar) if kept is None else kept
        except Exception as error:  # noqa: BLE001  of any kind: a request waits for the answer
            return Prepared(request, time.perf_counter() - started, str(error))
        return Prepared(request, time.perf_counter() - started, reused=kept is not None)

    def _built(self, grammar: Grammar) -> Matcher:
        matcher = self.vocabulary().matcher(grammar)
        matcher.words()  # here: that of a large schema takes milliseconds, in which steps go on
        dropped = self._kept.put(grammar, matcher)
        self.free(dropped)
        return matcher

    def _forget(self, request: int) -> None:
        made = [self.made.pop(request, None)]  # without another name for it, which could be the last to let go
        self.free(made)


def _yield_to_steps() -> None:
    """Lowers the priority of this thread: a large grammar takes a core for a quarter of a second, and steps beside it
    come first where cores are short.
    """
    if sys.platform == "linux":  # elsewhere threads have no priority of their own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
