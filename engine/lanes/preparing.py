"""Grammars of a lane in the scheduler's own process: they are built on the worker's thread, and wait in a queue."""

from queue import Empty, SimpleQueue

from aerie.contracts.grammar import Builder, Grammar, Guiding, Prepared


class Preparing:
    """Implements contracts.grammar.Preparing for a worker."""

    def __init__(self, worker: Guiding) -> None:
        self._builder: Builder | None = getattr(worker, "guides", None)  # workers of tests may lack it
        self._done: SimpleQueue[Prepared] = SimpleQueue()

    def prepare(self, request: int, grammar: Grammar) -> None:
        assert self._builder is not None, "the capacity has no grammars"
        self._builder.prepare(request, grammar, self._done.put)

    def prepared(self, seconds: float = 0.0) -> list[Prepared]:
        found: list[Prepared] = []
        try:
            while True:
                wait = 0.0 if found else seconds
                found.append(self._done.get(block=wait > 0, timeout=wait or None))
        except Empty:
            return found

    def forget(self, request: int) -> None:
        if self._builder is not None:
            self._builder.forget(request)


class NoGrammars:
    """Implements contracts.grammar.Preparing for a lane whose capacity has none."""

    def prepare(self, request: int, grammar: Grammar) -> None:
        raise NotImplementedError("the capacity has no grammars")

    def prepared(self, seconds: float = 0.0) -> list[Prepared]:
        return []

    def forget(self, request: int) -> None:
        """Nothing was prepared."""
