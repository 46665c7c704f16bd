"""Recorded answers under any arrivals: every static chain, the planner, and the best choice of each step in hindsight.

Used by `aerie probe replay`. The scheduler and the planner are the real ones; the clock is virtual. A step's seconds
come from the costs measured on this machine, or from the roofline of a GPU, which is labelled *simulated*.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.messages import Failed, Finished, Generate, Tokens
from aerie.contracts.sampling import SpeculationParams
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import Capacity, Ints, Longs
from aerie.probe.overlap import Roofline
from aerie.probe.recording import Recording, plain_chains
from aerie.probe.replay import Clock, Price, ReplayLane
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.calibration import calibrated
from aerie.scheduler.planner.costs import StepCosts, StepWork
from aerie.scheduler.planner.goodput import Goodput

OFF, PLANNER, HINDSIGHT = "off", "planner", "hindsight"
ARRIVALS = ("poisson", "bursts", "ramp", "heavy tails")
_PAGE = 16

Cell = dict[str, Any]


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


class Hindsight(Goodput):
    """Knows what each draft will be accepted to, and takes the best step by the lane's own costs."""

    lane: ReplayLane

    def pays(self, rows: int, temperature: float, context: int) -> bool:
        return True

    def rests(self, headed: Longs, rows: int) -> bool:
        return False

    def decide(self, headed: Longs, most: Ints, rows: int, context: int, behind: int) -> tuple[DraftShape, Ints]:
        nodes = np.ones(len(headed), dtype=np.int32)
        deepest = self.depths[-1]
        reach = np.minimum(self.lane.acceptance(headed), most)
        chances = (np.arange(deepest) < reach[:, None]).astype(np.float64)
        if not chances.any():
            return NO_DRAFT, nodes
        chosen = self.chains.best(chances, rows, context, behind)
        if chosen.tokens * self.costs.plain(rows, context) <= rows * chosen.seconds:
            return NO_DRAFT, nodes
        self.chains.nodes(chosen, nodes)
        widest = int(nodes.max())
        return DraftShape(widest - 1, 1, widest), nodes


@dataclass(frozen=True, slots=True)
class Machine:
    """Where steps run. `label` says what is simulated of it."""

    label: str
    price: Price
    host: float
    """Seconds between two steps in which the device has nothing to do, at the least."""
    rests: bool
    """Whether rows can rest."""


def measured_machine(costs: StepCosts) -> Machine:
    """This machine, by costs that were measured on it."""
    return Machine("measured costs", costs.phases, costs.gap(StepWork(1, 1, 0)), True)


def roofline_machine(name: str, roofline: Roofline) -> Machine:
    def price(work: StepWork) -> Mapping[str, float]:
        lengths = np.array([work.context / max(work.rows, 1)] * work.rows, dtype=np.int32)
        phases = {"verify": roofline.step_seconds(lengths, round(work.tokens), 0, 0)}
        if work.levels:
            phases["draft"] = work.levels * (roofline.draft_seconds + roofline.draft_token_seconds * work.frontier)
        if work.pairs:
            phases["extend"] = roofline.draft_seconds + roofline.draft_token_seconds * work.pairs
        return phases

    return Machine(f"simulated: 8B on {name}", price, 0.0, False)


H100, H200 = Roofline(), replace(Roofline(), bandwidth=4.8e12)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one policy."""

    tokens: int
    seconds: float
    """In which any request was open."""
    latency: float
    """Mean seconds of a request."""
    replies: dict[str, list[int]]
    """Tokens of each reply, by request."""


def simulate(
    config: Config,
    recordings: Sequence[Recording],
    machine: Machine,
    policy: str | int,
    *,
    times: Sequence[float] | None = None,
    rows: int = 64,
    depth: int,
) -> Outcome:
    """Replays the recordings under a policy: off, a chain's depth, the planner, or hindsight.

    Requests arrive at `times`; without them, `rows` requests are open until none is left.
    """
    chains = plain_chains(config, policy if isinstance(policy, int) else depth)
    planned = policy in (PLANNER, HINDSIGHT)
    spec = chains.spec.model_copy(update={"planner": "goodput" if planned else "fixed"})
    scheduling = chains.scheduler.model_copy(
        update={"max_running": rows, "prefix_cache": False, "poison": False, "max_waiting": 1 << 20}
    )
    own = chains.model_copy(update={"spec": spec, "scheduler": scheduling})
    clock = Clock()
    lane = ReplayLane(_capacity(recordings, rows, depth, config, machine), machine.price, clock, host=machine.host)
    planner = None
    if policy == HINDSIGHT:
        most = rows * (depth + 1)
        planner = Hindsight(
            spec, calibrated(lane, rows, (1, depth), most), [DraftShape(depth, 1, depth + 1)], rows=rows
        )
        planner.lane = lane
    scheduler = Scheduler(lane, own, clock=clock, planner=planner)
    lane.know(recordings)
    return _run(scheduler, lane, recordings, times, rows, speculation=policy != OFF)


def _run(
    scheduler: Scheduler,
    lane: ReplayLane,
    recordings: Sequence[Recording],
    times: Sequence[float] | None,
    rows: int,
    *,
    speculation: bool,
) -> Outcome:
    clock, began = lane.clock, lane.clock.now
    coming = [(began + (times[index] if times else 0.0), one.request) for index, one in enumerate(recordings)]
    coming.reverse()
    asked: dict[str, float] = {}
    replies: dict[str, list[int]] = {}
    latencies: list[float] = []
    tokens = 0
    idle = 0.0
    while coming or not scheduler.idle:
        if coming and scheduler.idle and coming[-1][0] > clock.now:
            idle += coming[-1][0] - clock.now
            clock.now = coming[-1][0]
        while coming and coming[-1][0] <= clock.now and (times or len(asked) - len(latencies) < rows):
            at, request = coming.pop()
            asked[request.id] = at
            scheduler.submit(_asking(request, speculation=speculation))
        for reply in scheduler.iterate():
            assert not isinstance(reply, Failed), f"{reply.id} failed: {reply.message}"
            if isinstance(reply, Tokens):
                tokens += len(reply.ids)
                replies.setdefault(reply.id, []).append(len(reply.ids))
            elif isinstance(reply, Finished):
                latencies.append(clock.now - asked[reply.id])
    return Outcome(tokens, clock.now - began - idle, sum(latencies) / len(latencies), replies)


def _asking(request: Generate, *, speculation: bool) -> Generate:
    params = SpeculationParams(enabled=speculation)
    return Generate(id=request.id, prompt=request.prompt, sampling=request.sampling, speculation=params)


def _capacity(recordings: Sequence[Recording], rows: int, depth: int, config: Config, machine: Machine) -> Capacity:
    longest = max(len(one.request.prompt) + len(one.tokens) for one in recordings) + 2 * depth + 2
    pages = rows * (-(-(longest + depth + 1) // _PAGE) + 1) + 1
    return Capacity(
        rows=rows,
        pages=pages,
        page_size=_PAGE,
        max_length=longest + depth,
        vocabulary=1 << 20,
        end_ids=(),
        drafts=True,
        reserve=depth + 1,
        tail=config.spec.resting_tokens if machine.rests else 0,
    )


def policies(depths: Sequence[int]) -> list[str | int]:
    return [OFF, *depths, PLANNER, HINDSIGHT]


def compared(
    config: Config,
    recordings: Sequence[Recording],
    machine: Machine,
    depths: Sequence[int],
    *,
    depth: int,
    rows: int,
    times: Sequence[float] | None = None,
) -> Iterator[Cell]:
    """A cell for each policy, on the same requests."""
    runs = {
        policy: simulate(config, recordings, machine, policy, times=times, rows=rows, depth=depth)
        for policy in policies(depths)
    }
    statics = [run.tokens / run.seconds for policy, run in runs.items() if policy == OFF or isinstance(policy, int)]
    off = runs[OFF]
    for policy, run in runs.items():
        speed = run.tokens / run.seconds
        yield {
            "machine": machine.label,
            "rows": rows,
            "policy": f"chain {policy}" if isinstance(policy, int) else policy,
            "tokens_per_s": speed,
            "over_off": speed * off.seconds / off.tokens,
            "over_best_static": speed / max(statics),
            "latency": run.latency,
            "latency_over_off": run.latency / off.latency,
        }
