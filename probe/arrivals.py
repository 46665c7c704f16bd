"""Requests that arrive: at random, in bursts, at a rate that rises, or with heavy tails between them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from aerie.contracts.errors import AerieError
from aerie.contracts.messages import Failed, Finished, Generate, Tokens
from aerie.contracts.sampling import SpeculationParams
from aerie.probe.clocks import Clock, CpuClock
from aerie.scheduler import Scheduler

ARRIVALS = ("poisson", "bursts", "ramp", "heavy tails")


def arrivals(kind: str, count: int, rate: float, *, seed: int = 0) -> list[float]:
    """Seconds at which `count` requests arrive, `rate` a second on average."""
    source = random.Random(f"{seed} {kind}")
    now, times = 0.0, []
    for number in range(count):
        share = number / count
        own = {"bursts": 2.0 if int(share * 8) % 2 else 0.25, "ramp": 0.25 + 2.0 * share}.get(kind, 1.0) * rate
        gap = source.expovariate(own)
        if kind == "heavy tails":
            gap = (source.paretovariate(1.5) - 1.0) / (2.0 * rate)
        now += gap
        times.append(now)
    return times


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of requests that arrived."""

    tokens: int
    seconds: float
    """In which any request was open; under a steady load, in which all its rows were."""
    latency: float
    """Mean seconds of a request."""
    ttft: list[float]
    """Seconds to each request's first token."""
    replies: dict[str, list[int]]
    """Tokens of each reply, by request."""
    drafted: dict[str, int]
    """Nodes verified beyond the roots, by request."""

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def answered(
    scheduler: Scheduler,
    clock: Clock | CpuClock,
    requests: Sequence[Generate],
    times: Sequence[float] | None = None,
    *,
    rows: int,
    speculation: bool,
) -> Outcome:
    """Answers requests that arrive at `times`, on the scheduler's own clock; without them, `rows` are open until none
    is left. Raises AerieError when one fails.
    """
    began, idle = clock.now, 0.0
    coming = [(began + (times[index] if times else 0.0), request) for index, request in enumerate(requests)]
    coming.reverse()
    asked: dict[str, float] = {}
    replies: dict[str, list[int]] = {}
    drafted: dict[str, int] = {}
    latencies: list[float] = []
    counted: tuple[int, float] | None = None  # tokens and seconds, once a steady load falls
    ttft: list[float] = []
    while coming or not scheduler.idle:
        if coming and scheduler.idle and coming[-1][0] > clock.now:
            idle += coming[-1][0] - clock.now
            clock.now = coming[-1][0]
        while coming and coming[-1][0] <= clock.now and (times or len(asked) - len(latencies) < rows):
            at, request = coming.pop()
            asked[request.id] = at
            scheduler.submit(replace(request, speculation=SpeculationParams(enabled=speculation)))
        for reply in scheduler.iterate():
            if isinstance(reply, Failed):
                raise AerieError(f"{reply.id} failed: {reply.message}", code=reply.code)
            if isinstance(reply, Tokens):
                if reply.id not in replies:
                    ttft.append(clock.now - asked[reply.id])
                replies.setdefault(reply.id, []).append(len(reply.ids))
            elif isinstance(reply, Finished):
                latencies.append(clock.now - asked[reply.id])
                drafted[reply.id] = reply.usage.drafted
        if counted is None and times is None and not coming and len(asked) - len(latencies) < rows:
            counted = _tokens(replies), clock.now - began
    tokens, seconds = counted or (_tokens(replies), clock.now - began - idle)
    return Outcome(tokens, seconds, sum(latencies) / len(latencies), ttft, replies, drafted)


def _tokens(replies: dict[str, list[int]]) -> int:
    return sum(sum(own) for own in replies.values())
