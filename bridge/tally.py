"""Counts what SGLang's engine has done since its start, as the Snapshot that /metrics shows. Fed by the bridge.

Invariant: a count that SGLang does not give stays 0 and is listed in docs/sglang.md; none is estimated. Counts of
drafts arrive at the end of a request.
"""

import time
from dataclasses import dataclass

from aerie.contracts.messages import Snapshot, Tokens, Usage


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load over all its replicas. KV is counted in tokens."""

    running: int = 0
    tokens_used: int = 0
    tokens_total: int = 0
    max_running: int = 0
    """The most requests decoded at once; KV may bound it below the setting."""


class Tally:
    def __init__(self, depth: int) -> None:
        self._positions = [0] * depth
        self._committed = 0
        self._ended = Usage(prompt_tokens=0, completion_tokens=0)
        self._worked = time.process_time()

    def commit(self, tokens: Tokens) -> None:
        self._committed += len(tokens.ids)

    def end(self, usage: Usage) -> None:
        """Adds a request's usage, however it ended."""
        was = self._ended
        for depth, count in enumerate(usage.accepted_per_position[: len(self._positions)]):
            self._positions[depth] += count
        self._ended = Usage(
            prompt_tokens=was.prompt_tokens + usage.prompt_tokens,
            completion_tokens=was.completion_tokens + usage.completion_tokens,
            cached_tokens=was.cached_tokens + usage.cached_tokens,
            steps=was.steps + (usage.steps if usage.drafted else 0),
            drafted=was.drafted + usage.drafted,
            accepted=was.accepted + usage.accepted,
            preemptions=was.preemptions + usage.preemptions,
        )

    def snapshot(self, load: Load, *, still_open: int) -> Snapshot:
        """`still_open`: the number of requests without an ending; an idle engine's last reported load is stale."""
        ended = self._ended
        running = min(load.running, still_open)
        return Snapshot(
            running=running,
            waiting=still_open - running,
            pages_used=load.tokens_used,
            pages_total=load.tokens_total,
            prefix_queries=ended.prompt_tokens,
            prefix_hits=ended.cached_tokens,
            preemptions=ended.preemptions,
            steps=0,
            step_tokens=[],
            prefill_tokens=ended.prompt_tokens - ended.cached_tokens,
            drafts=ended.steps,
            drafted=ended.drafted,
            accepted=ended.accepted,
            accepted_per_position=list(self._positions),
            committed=self._committed,
            phase_seconds={},
            idle_seconds=0.0,
            busy_seconds=0.0,
            host_seconds=time.process_time() - self._worked,
        )
