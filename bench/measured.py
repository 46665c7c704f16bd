"""The figures of one request and of many: the definitions that every table and plot uses.

* TTFT: from the first attempt to send until the first piece of text, waits after a 429 or 503 included.
* E2E: from the first attempt until the stream's end.
* TPOT of a request: (last piece - first piece) / (output tokens - 1); tokens are the server's own count.
* ITL: time between pieces of text. With speculation a piece holds several tokens, so ITL is not the time per token.
* Output throughput: tokens per second in the steady window; a request's tokens are spread evenly between its first
  and its last piece.
* Steady window: from the end of the warm-up until the last request is sent; in a closed loop all slots are busy then.
* Throughput with the drain: the same until the last request has ended, as other load generators count it.
* 99th percentiles need 200 values; of fewer there is none.
* Goodput: requests per second that met every latency target of the sweep.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

PERCENTS = {50: 1, 90: 1, 95: 1, 99: 200}
"""Percentiles, and how many values each needs."""
_T975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 0.975 for 1, 2, ... degrees of freedom."""
_NORMAL = 1.96


@dataclass(slots=True)
class Measured:
    """One request. Times are seconds on one monotonic clock."""

    sent: float
    pieces: list[float] = field(default_factory=list)
    """When each piece of text arrived."""
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the server's prefix cache."""
    tokens: int = 0
    """Output tokens, from the server's usage."""
    speculation: dict[str, Any] | None = None
    """From the server's usage: `steps`, `accepted`, `accepted_per_position`."""
    retries: int = 0
    error: str | None = None
    text: str = ""

    @property
    def ttft(self) -> float:
        return self.pieces[0] - self.sent

    @property
    def e2e(self) -> float:
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """None for a single token."""
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)]

    def tokens_within(self, begin: float, end: float) -> float:
        first, last = self.pieces[0], self.pieces[-1]
        if last <= first:
            return self.tokens * (begin <= first < end)
        return self.tokens * max(0.0, min(last, end) - max(first, begin)) / (last - first)


@dataclass(frozen=True, slots=True)
class Window:
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def summarize(
    results: Sequence[Measured], window: Window, targets: dict[str, float] | None = None
) -> dict[str, object]:
    """Figures of one cell, from the requests sent within the window; failed ones are counted, not timed."""
    own = [one for one in results if window.begin <= one.sent < window.end]
    good = [one for one in own if one.error is None and one.pieces]
    whole = [one for one in results if one.error is None and one.pieces]
    seconds = max(window.seconds, 1e-9)
    ended = max((one.ended for one in whole), default=window.end)
    tpots = [tpot for one in good if (tpot := one.tpot) is not None]
    figures: dict[str, object] = {
        "requests": len(own),
        "failed": len(own) - len(good),
        "errors": _counted(one.error for one in own if one.error is not None),
        "retries": sum(one.retries for one in own),
        "window_seconds": seconds,
        "output_tokens_per_s": sum(one.tokens_within(window.begin, window.end) for one in whole) / seconds,
        "output_tokens_per_s_with_drain": sum(one.tokens_within(window.begin, math.inf) for one in whole)
        / max(ended - window.begin, 1e-9),
        "requests_per_s": sum(window.begin <= one.ended < window.end for one in whole) / seconds,
        "output_tokens": sum(one.tokens for one in good),
        "prompt_tokens": sum(one.prompt_tokens for one in good),
        "cached_tokens": sum(one.cached_tokens for one in good),
        "ttft": percentiles([one.ttft for one in good]),
        "tpot": percentiles(tpots),
        "e2e": percentiles([one.e2e for one in good]),
        "itl": percentiles([gap for one in good for gap in one.gaps]),
    }
    if targets:
        figures["goodput_per_s"] = sum(_meets(one, targets) for one in good) / seconds
        figures["latency_targets"] = targets
    return figures | acceptance(good)


def acceptance(results: Iterable[Measured]) -> dict[str, object]:
    """Acceptance from the requests' own usage: over all steps together, and per request. None if the server does not
    report it, or drafts nothing.
    """
    reports = [one.speculation for one in results if one.speculation]
    steps = sum(part.get("steps") or 0 for part in reports)
    if not steps or not sum(part.get("drafted") or 0 for part in reports):
        return {"acceptance_length": None, "acceptance_per_position": None, "acceptance_of_requests": None}
    by_position: list[list[int]] = [part.get("accepted_per_position") or [] for part in reports]
    deepest = max((len(part) for part in by_position), default=0)
    counts = [sum(part[d] for part in by_position if d < len(part)) for d in range(deepest)]
    return {
        "acceptance_length": 1 + sum(part.get("accepted") or 0 for part in reports) / steps,
        "acceptance_per_position": [count / steps for count in counts],
        "acceptance_of_requests": percentiles(
            [1 + (p.get("accepted") or 0) / p["steps"] for p in reports if p.get("steps")]
        ),
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and those percentiles (nearest rank) that so many values have; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {
        f"p{percent}": ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
        for percent, least in PERCENTS.items()
        if len(ordered) >= least
    }
    return {"mean": fmean(ordered), **ranks}


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean over repeats and half of its 95 % confidence interval (Student's t); no interval for one repeat."""
    if len(values) < 2:
        return fmean(values), None
    freedom = len(values) - 1
    t = _T975[freedom - 1] if freedom <= len(_T975) else _NORMAL
    return fmean(values), t * stdev(values) / len(values) ** 0.5


def _meets(one: Measured, targets: dict[str, float]) -> bool:
    measured = {"ttft": one.ttft, "tpot": one.tpot or 0.0, "e2e": one.e2e}
    return all(measured[name] <= most for name, most in targets.items())


def _counted(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found
