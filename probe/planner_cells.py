"""The cells of `aerie probe planner`: ratios of its modes with their intervals, and the worst of them.

A ratio is that of all tokens over all seconds, at equally many prompt tokens (`paired`); its interval comes from
resampling the rounds of slices. No speculation takes part twice: the second time is the *null*, whose ratio to the
first one is 1 but for what the method cannot resolve. The other modes are compared with both together.

The planner is also compared with the best fixed way of its cell: off, the config's own shapes, or a chain, whichever
was fastest in the same rounds. That choice is made in hindsight, so it favours the mode that chance favoured: the best
way looks better than it is, and the planner's ratio over it comes out too low on average, by the more the more modes
are near each other and the wider their intervals are. The interval keeps to the one way that was chosen and does not
contain this. So a cell that passes would also pass against the way that is best in truth; one that fails by less than
its interval is wide says little.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aerie.probe.paired import Ratio, Work, difference, over, ratio, work
from aerie.probe.slices import Contestant, Slice

OFF, NULL, PLANNER, FIXED = "off", "off again", "planner", "fixed"
_FEWEST, _BETWEEN = 64, 8
"""Rounds of a cell at the least, and between two looks at its intervals."""
LEAST_REQUESTS = 200
"""Requests behind a 99th percentile."""
_KILO = 1000.0

Cell = dict[str, Any]
Round = Mapping[str, Slice]


def cell_of(mode: str, taking: Mapping[str, Contestant], rounds: Sequence[Round]) -> Cell:
    """What one mode did, beside no speculation. `alone` is the share of its steps that were launched while the lane had
    none, the first of each slice left out; `added_waits` are such steps in 1,000 tokens beyond those of no
    speculation.
    """
    own, off = taking[mode], taking[OFF]
    both = sorted(own.ended & off.ended)
    by_clock, by_cpu = (_over_off(rounds, mode, by_cpu=by_cpu) for by_cpu in (False, True))
    slices = [one[mode] for one in rounds]
    waits = added_waits(slices, [one[OFF] for one in rounds])
    behind = min(len(own.ttft), len(off.ttft))
    return {
        "tokens_per_s": _work(rounds, mode, by_cpu=False).speed,
        "over_off": by_clock.value,
        "interval": [by_clock.lower, by_clock.upper],
        "tokens_per_cpu_s": _work(rounds, mode, by_cpu=True).speed,
        "cpu_over_off": by_cpu.value,
        "cpu_interval": [by_cpu.lower, by_cpu.upper],
        "acceptance_length": own.decoded / max(own.steps, 1),
        "answer_tokens": sum(len(own.answers[id]) for id in own.ended) / max(len(own.ended), 1),
        "identical": sum(own.answers[id] == off.answers[id] for id in both) / max(len(both), 1),
        "compared": len(both),
        "rounds": len(rounds),
        "ttft_requests": behind,
        "ttft_p99_ms": 1e3 * _late(own) if len(own.ttft) >= LEAST_REQUESTS else None,
        "ttft_p99_over_off": _late(own) / _late(off) if behind >= LEAST_REQUESTS else None,
        "alone": sum(one.waits for one in slices) / max(sum(one.steps for one in slices), 1),
        "added_waits": waits.value,
        "added_waits_interval": [waits.lower, waits.upper],
    }


def over_best(rounds: Sequence[Round]) -> Cell:
    """The planner over the best fixed way of these rounds, by the clock and by CPU time."""
    found: Cell = {}
    for by_cpu, name in ((False, ""), (True, "cpu_")):
        way, own = _over_best(rounds, by_cpu=by_cpu)
        found |= {
            f"{name}best": way,
            f"{name}over_best": own.value,
            f"{name}over_best_interval": [own.lower, own.upper],
        }
    return found


def summary(cells: Sequence[Cell]) -> list[Cell]:
    """The planner's worst cell by the clock and by CPU time, over off and over the best fixed way: the one with the
    least lower bound. And the cell in which it adds most waits, by the lower bound too.
    """
    planned = [cell for cell in cells if cell["mode"] == PLANNER]
    if not planned:
        return []
    found = []
    for clock, prefix in (("wall", ""), ("cpu", "cpu_")):
        for against, interval in (("off", f"{prefix}interval"), ("best", f"{prefix}over_best_interval")):
            worst = min(planned, key=lambda cell: float(cell[interval][0]))
            way = OFF if against == "off" else worst[f"{prefix}best"]
            figures = {"clock": clock, "way": way, "ratio": worst[f"{prefix}over_{against}"]}
            found.append(_worst(worst, len(planned), against, interval) | figures)
    most = max(planned, key=lambda cell: float(cell["added_waits_interval"][0]))
    waits = {"added_waits": most["added_waits"]}
    return [*found, _worst(most, len(planned), "waits", "added_waits_interval") | waits]


def _worst(cell: Cell, cells: int, against: str, interval: str) -> Cell:
    place = {name: cell[name] for name in ("load", "temperature", "rows")}
    lower, upper = cell[interval]
    return place | {"cells": cells, "against": against, "lower": lower, "upper": upper}


def narrow_enough(rounds: Sequence[Round], narrow: float) -> bool:
    """Whether the intervals that matter reach no further than `narrow` to both sides: the null's, and the planner's
    over off and over the best fixed way.
    """
    if not narrow or len(rounds) < _FEWEST or len(rounds) % _BETWEEN:
        return False
    intervals = [_over_off(rounds, mode, by_cpu=True) for mode in (NULL, PLANNER)]
    return all(one.half_width <= narrow for one in [*intervals, _over_best(rounds, by_cpu=True)[1]])


def added_waits(own: Sequence[Slice], off: Sequence[Slice]) -> Ratio:
    """Steps in 1,000 tokens that were launched while the lane had none, beyond those of `off`, with the interval at
    95 %. They are the loop's to avoid: the lane waits for the host before each of them. The first step of a slice
    counts nowhere.
    """
    return difference(*(work([_KILO * one.waits for one in side], [one.tokens for one in side]) for side in (own, off)))


def _late(one: Contestant) -> float:
    """The 99th percentile of the seconds to the first token."""
    return float(np.quantile(one.ttft, 0.99))


def _over_off(rounds: Sequence[Round], mode: str, *, by_cpu: bool) -> Ratio:
    own = _work(rounds, mode, by_cpu=by_cpu)
    return ratio(own, _work(rounds, OFF, by_cpu=by_cpu) if mode in (OFF, NULL) else _off(rounds, by_cpu=by_cpu))


def _over_best(rounds: Sequence[Round], *, by_cpu: bool) -> tuple[str, Ratio]:
    """The fastest fixed way of these rounds, and the planner over it."""
    fixed = [mode for mode in rounds[0] if mode not in (OFF, NULL, PLANNER)]
    ways = {OFF: _off(rounds, by_cpu=by_cpu)} | {mode: _work(rounds, mode, by_cpu=by_cpu) for mode in fixed}
    best = max(ways, key=lambda way: over(ways[way], ways[OFF]))
    return best, ratio(_work(rounds, PLANNER, by_cpu=by_cpu), ways[best])


def _off(rounds: Sequence[Round], *, by_cpu: bool) -> Work:
    """No speculation, both times."""
    return _work(rounds, OFF, by_cpu=by_cpu) + _work(rounds, NULL, by_cpu=by_cpu)


def _work(rounds: Sequence[Round], mode: str, *, by_cpu: bool) -> Work:
    slices = [one[mode] for one in rounds]
    return work(
        [one.tokens for one in slices],
        [one.cpu_seconds if by_cpu else one.seconds for one in slices],
        [one.read for one in slices],
    )
