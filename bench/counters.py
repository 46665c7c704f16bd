"""Speculation counters in a server's /metrics: read before and after a cell, and subtracted.

They give acceptance a second time, besides the requests' usage, and are the only source for servers whose usage lacks
it. They cover the whole cell, warm-up included. The names are vLLM's, which Aerie and llama.cpp share. Their convention
is acceptance length = 1 + accepted / drafts, so it counts the bonus token.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_FAMILIES = ("vllm:spec_decode_", "llamacpp:spec_decode_", "aerie:spec_decode_")
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over the server's engines. `accepted_per_position[d]` counts accepted tokens of depth d."""

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    accepted_per_position: tuple[float, ...] = ()

    def since(self, before: "Counters") -> dict[str, Any] | None:
        """None if nothing was drafted in between, or the server restarted."""
        drafts = self.drafts - before.drafts
        accepted = self.accepted - before.accepted
        if drafts <= 0 or accepted < 0:
            return None
        earlier = (*before.accepted_per_position, *[0.0] * len(self.accepted_per_position))
        gained = [now - then for now, then in zip(self.accepted_per_position, earlier, strict=False)]
        return {
            "drafts": drafts,
            "drafted": self.drafted - before.drafted,
            "accepted": accepted,
            "acceptance_length": 1 + accepted / drafts,
            "acceptance_per_position": [count / drafts for count in gained],
        }


def parse(text: str) -> Counters | None:
    """Parses Prometheus' text format; None if it has no speculation counters."""
    samples = list(_samples(text))
    family = next((one for one in _FAMILIES if any(name.startswith(one) for name, _, _ in samples)), None)
    if family is None:
        return None
    own = [(name.removeprefix(family).removesuffix("_total"), labels, value) for name, labels, value in samples]
    by_position: dict[int, float] = {}
    for name, labels, value in own:
        if name == "num_accepted_tokens_per_pos" and (found := _POSITION.search(labels)):
            by_position[int(found[1])] = by_position.get(int(found[1]), 0.0) + value
    sums: dict[str, float] = {}
    for name, _, value in own:
        sums[name] = sums.get(name, 0.0) + value
    return Counters(
        sums.get("num_drafts", 0.0),
        sums.get("num_draft_tokens", 0.0),
        sums.get("num_accepted_tokens", 0.0),
        tuple(by_position.get(position, 0.0) for position in range(max(by_position, default=-1) + 1)),
    )


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    for line in text.split("\n"):
        if found := _SAMPLE.match(line):
            try:
                yield found[1], found[2] or "", float(found[3])
            except ValueError:  # a line in some other format
                continue
