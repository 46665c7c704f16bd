"""The record of a finished HTTP request: the source of its log line and its trace.

Made by `generation` when it closes. Times are `time.monotonic()` in seconds.
"""

from dataclasses import dataclass

from aerie.contracts.messages import Generate, Usage

LEFT = "left"
"""The outcome of a request whose caller disconnected before its end."""


@dataclass(frozen=True, slots=True)
class Account:
    """`requests`, `finish` and `usage` hold one entry for each choice."""

    id: str
    model: str
    outcome: str
    """`finished`, `left`, or the code of the error that ended it."""
    requests: list[Generate]
    finish: list[str | None]
    usage: list[Usage]
    parent: str | None
    """The caller's `traceparent` header."""
    began: float
    first: float | None
    """When the first tokens of any choice arrived."""
    last: float
    """When the last tokens arrived; equals `began` if none did."""
    ended: float

    @property
    def failed(self) -> bool:
        return self.outcome not in ("finished", LEFT)


def total(usage: list[Usage]) -> Usage:
    """Sums the counts of all choices. Takes the longest times, since choices run concurrently."""
    deepest = max((len(part.accepted_per_position) for part in usage), default=0)
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in usage),
        completion_tokens=sum(part.completion_tokens for part in usage),
        cached_tokens=sum(part.cached_tokens for part in usage),
        steps=sum(part.steps for part in usage),
        drafted=sum(part.drafted for part in usage),
        accepted=sum(part.accepted for part in usage),
        accepted_per_position=[
            sum(sum(part.accepted_per_position[depth : depth + 1]) for part in usage) for depth in range(deepest)
        ],
        forbidden=sum(part.forbidden for part in usage),
        preemptions=sum(part.preemptions for part in usage),
        queue_seconds=max((part.queue_seconds for part in usage), default=0.0),
        prefill_seconds=max((part.prefill_seconds for part in usage), default=0.0),
    )


def acceptance_length(usage: Usage) -> float | None:
    """Mean tokens committed per step, the bonus included; None if no step ran."""
    return 1 + usage.accepted / usage.steps if usage.steps else None
