"""The speed of a replay beside that of a real run with the same requests: what a replay on measured costs is worth.

The real run is on an inline lane, by CPU time, so that nothing else on the machine counts. Used by `replays`.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from aerie.contracts.config import Config
from aerie.probe.arrivals import answered
from aerie.probe.clocks import CpuClock
from aerie.probe.drive import MakeLane
from aerie.probe.recording import Recording, chain
from aerie.probe.simulation import OFF, Cell, Machine, Policy, config_under, name_of, simulate
from aerie.scheduler import Scheduler

CHAINS = (1, 3)
MOST_ROWS = 16
_ASKED = 32
"""Requests, at least; twice as many as rows."""


def beside_real_runs(
    config: Config,
    recordings: Sequence[Recording],
    machine: Machine,
    make_lane: MakeLane,
    *,
    depth: int,
    loads: Sequence[int],
) -> Iterator[Cell]:
    """A cell for each load of at most MOST_ROWS, of no speculation and of two chains. `replayed_over_real`: tokens a
    second of the replay on the machine's costs, over those of the real run.
    """
    for load in (load for load in loads if load <= MOST_ROWS):
        some = recordings[: max(_ASKED, 2 * load)]
        policies: list[Policy] = [OFF, *(one for one in CHAINS if one <= depth)]
        for policy in policies:
            own, clock = config_under(config, policy, [chain(depth)], load), CpuClock()
            with closing(make_lane(own)) as lane:
                scheduler = Scheduler(lane, own, clock=clock)
                asked = [one.request for one in some]
                real = answered(scheduler, clock, asked, rows=load, speculation=policy != OFF)
            replayed = simulate(config, some, replace(machine, inline=True), policy, rows=load, depth=depth)
            yield {
                "machine": machine.label,
                "arrivals": "real run",
                "rows": load,
                "policy": name_of(policy),
                "tokens_per_s": real.speed,
                "replayed_over_real": replayed.speed / real.speed,
            }
