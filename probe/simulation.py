"""Recorded answers under any arrivals: every static chain, the planner, and the best choice of each step in hindsight.

Used by `aerie probe replay`. The scheduler and the planner are the real ones; the clock is virtual. A step's seconds
come from the costs measured on this machine, or from the roofline of a GPU, which is labelled *simulated*.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape, chain_depths
from aerie.contracts.step import Capacity
from aerie.probe.arrivals import Outcome, answered
from aerie.probe.clocks import Clock
from aerie.probe.decisions import Decisions
from aerie.probe.hindsight import Hindsight
from aerie.probe.overlap import Roofline
from aerie.probe.recording import Recording, always, chain
from aerie.probe.replay import Host, Price, ReplayLane
from aerie.probe.shapes import label, load_shape
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.calibration import calibrated
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.work import StepWork

OFF, PLANNER, HINDSIGHT = "off", "planner", "hindsight"
_PAGE = 16

Cell = dict[str, Any]
Policy = str | int | DraftShape
"""A name, the depth of a chain that is always drafted, or a tree that is."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where steps run. `label` says what is simulated of it."""

    label: str
    price: Price
    host: Host
    inline: bool = False
    """Whether steps run in the host's own thread."""


def measured_machine(costs: StepCosts) -> Machine:
    """This machine, by costs that were measured on it."""
    return Machine("measured costs", costs.phases, costs.gap)


def roofline_machine(name: str, roofline: Roofline) -> Machine:
    def price(work: StepWork) -> Mapping[str, float]:
        lengths = np.array([work.context / max(work.rows, 1)] * work.rows, dtype=np.int32)
        phases = {"verify": roofline.step_seconds(lengths, round(work.tokens), 0, 0)}
        if work.levels:
            phases["draft"] = work.levels * (roofline.draft_seconds + roofline.draft_token_seconds * work.frontier)
        if work.pairs:
            phases["extend"] = roofline.draft_seconds + roofline.draft_token_seconds * work.pairs
        return phases

    return Machine(f"simulated: 8B on {name}", price, lambda work: 0.0)


H100, H200 = Roofline(), replace(Roofline(), bandwidth=4.8e12)


def simulate(
    config: Config,
    recordings: Sequence[Recording],
    machine: Machine,
    policy: Policy,
    *,
    times: Sequence[float] | None = None,
    rows: int = 64,
    depth: int,
    confident: bool = False,
    swapped_at: int = 0,
    decisions: Decisions | None = None,
) -> Outcome:
    """Replays the recordings under a policy: off, a chain's depth, a tree, the planner, or hindsight.

    Requests arrive at `times`; without them, `rows` requests are open until none is left. The planner and hindsight
    choose among chains up to `depth` and the recorded trees. Drafts of chains end by the recorded confidence if
    `confident`. Before decode step `swapped_at` no draft is right. `decisions` takes in the planner's.
    """
    shapes = [chain(depth), *recordings[0].trees]
    own = config_under(config, policy, shapes, rows)
    clock = Clock()
    capacity = _capacity(recordings, rows, max(shape.nodes for shape in shapes), config)
    lane = ReplayLane(capacity, machine.price, clock, machine.host, confident, swapped_at, machine.inline)
    planner = None
    if policy == HINDSIGHT:
        most = rows * max(shape.nodes for shape in shapes)
        planner = Hindsight(own.spec, calibrated(lane, rows, chain_depths(shapes), most), shapes[:1], rows=rows)
        planner.lane, planner.trees = lane, tuple(shapes[1:])
    scheduler = Scheduler(lane, own, clock=clock, planner=planner)
    lane.know(recordings)
    lane.decoded = 0  # not the steps of the calibration
    if decisions is not None and scheduler.planner is not None:
        decisions.watch(scheduler.planner)
    return answered(scheduler, clock, [one.request for one in recordings], times, rows=rows, speculation=policy != OFF)


def config_under(config: Config, policy: Policy, shapes: Sequence[DraftShape], rows: int) -> Config:
    """The config under which a policy is simulated; `shapes` are those among which a planner chooses."""
    scheduling = config.scheduler.model_copy(
        update={"max_running": rows, "prefix_cache": False, "poison": False, "max_waiting": 1 << 20}
    )
    config = config.model_copy(update={"scheduler": scheduling})
    if isinstance(policy, int):
        return always(config, chain(policy))
    if isinstance(policy, DraftShape):
        return always(config, policy)
    fixed = always(config, shapes[0])
    if policy == OFF:
        return fixed
    entries = tuple(load_shape(shape, rows=rows) for shape in shapes)
    spec = fixed.spec.model_copy(update={"planner": "goodput", "by_load": entries})
    return fixed.model_copy(update={"spec": spec})


def _capacity(recordings: Sequence[Recording], rows: int, nodes: int, config: Config) -> Capacity:
    longest = max(len(one.request.prompt) + len(one.tokens) for one in recordings) + 2 * nodes
    pages = rows * (-(-(longest + nodes) // _PAGE) + 1) + 1
    return Capacity(
        rows=rows,
        pages=pages,
        page_size=_PAGE,
        max_length=longest + nodes,
        vocabulary=1 << 20,
        end_ids=(),
        drafts=True,
        reserve=nodes,
        tail=config.spec.resting_tokens,
    )


def compared(
    config: Config,
    recordings: Sequence[Recording],
    machine: Machine,
    statics: Sequence[Policy],
    *,
    depth: int,
    rows: int,
    times: Sequence[float] | None = None,
) -> Iterator[Cell]:
    """A cell for each policy, on the same requests: off, the statics, the planner and hindsight."""
    runs = {
        policy: simulate(config, recordings, machine, policy, times=times, rows=rows, depth=depth)
        for policy in (OFF, *statics, PLANNER, HINDSIGHT)
    }
    off, best = runs[OFF], max(runs[policy].speed for policy in (OFF, *statics))
    for policy, run in runs.items():
        yield {
            "machine": machine.label,
            "rows": rows,
            "policy": name_of(policy),
            "tokens_per_s": run.speed,
            "over_off": run.speed / off.speed,
            "over_best_static": run.speed / best,
            "latency": run.latency,
            "latency_over_off": run.latency / off.latency,
        }


def name_of(policy: Policy) -> str:
    if isinstance(policy, str):
        return policy
    return label(chain(policy) if isinstance(policy, int) else policy)
