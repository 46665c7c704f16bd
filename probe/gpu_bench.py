"""`aerie probe gpu-bench`: a GPU's speed, measured in a few minutes on a model's shape with random weights.

plain        plain decoding by batch, as a fraction of the device's roofline; host time per step
speculation  simulated acceptance by batch: tokens/s, the parts of a step's time, idle shares with overlap and without
attention    every backend and every FlashInfer option for verifying trees, by rows, nodes and length
kernels      Aerie's own kernels against their references (probe/fused.py)

Runs on a CPU too, which tests it but measures little. Every cell names its device and what is simulated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.step import Capacity, Lane
from aerie.probe.drive import MakeLane
from aerie.probe.overlap import Roofline
from aerie.probe.peaks import roofline_of
from aerie.probe.steady import Steady, steady

Cell = dict[str, Any]
Say = Callable[[str], None]


def measure_plain(
    config: Config, make_lane: MakeLane, *, batches: Sequence[int], prompt: int, steps: int, say: Say = lambda _: None
) -> Iterator[Cell]:
    """Plain decoding without a head, overlapped and synchronous at each batch."""
    plain = config.model_copy(
        update={"spec": config.spec.model_copy(update={"head": "none", "simulate_acceptance": None})}
    )
    with closing(make_lane(plain)) as lane:
        roofline = roofline_of(plain, lane.capacity)
        for batch in batches:
            for overlap in (True, False):
                cell = _measured(lane, plain, roofline, batch, overlap, prompt, steps)
                say(f"plain, {batch} rows, {_loop(overlap)}: {cell['tokens_per_s']:.0f} tokens/s")
                yield cell


def measure_speculation(
    config: Config,
    make_lane: MakeLane,
    *,
    acceptances: Sequence[float],
    batches: Sequence[int],
    prompt: int,
    steps: int,
    say: Say = lambda _: None,
) -> Iterator[Cell]:
    """Makes a lane for each acceptance, since graphs contain it. Raises ConfigError without a head."""
    for acceptance in acceptances:
        spec = config.spec.model_copy(update={"simulate_acceptance": acceptance})
        own = config.model_copy(update={"spec": spec})
        with closing(make_lane(own)) as lane:
            if not lane.capacity.drafts:
                raise ConfigError("the target has no head to draft with; set spec.head", param="spec.head")
            roofline = roofline_of(own, lane.capacity)
            for batch in batches:
                for overlap in (True, False):
                    measured = _measured(lane, own, roofline, batch, overlap, prompt, steps)
                    said = f"{batch} rows, {_loop(overlap)}: {measured['tokens_per_s']:.0f} tokens/s"
                    say(f"simulated acceptance {acceptance:g}, {said}")
                    yield measured | {"acceptance": "simulated", "simulated_acceptance": acceptance}


def _loop(overlap: bool) -> str:
    return "overlapped" if overlap else "synchronous"


def _measured(
    lane: Lane, config: Config, roofline: Roofline | None, batch: int, overlap: bool, prompt: int, steps: int
) -> Cell:
    scheduler = config.scheduler.model_copy(update={"overlap": overlap})
    run = steady(lane, config.model_copy(update={"scheduler": scheduler}), rows=batch, prompt=prompt, steps=steps)
    return {
        **_origin(lane.capacity),
        "batch": batch,
        "overlap": overlap,
        "tokens_per_s": run.tokens_per_s,
        "acceptance_length": run.acceptance_length,
        "step_ms": 1e3 * run.seconds / run.steps,
        "host_ms_per_step": 1e3 * run.host_seconds / run.steps,
        "idle_share": run.idle_share,
        "phase_ms": {name: 1e3 * spent / run.steps for name, spent in run.phase_seconds.items()},
        "e_sys": None if roofline is None else _efficiency(run, roofline),
    }


def _efficiency(run: Steady, roofline: Roofline) -> float:
    """The roofline's time of the verified work over the measured time; drafting counts as waste."""
    mean = run.context / (run.steps * run.rows)
    lengths = np.full(run.rows, mean, dtype=np.int32)
    ideal = roofline.step_seconds(lengths, run.verified // run.steps, 0, 0)
    return ideal * run.steps / run.seconds


def _origin(capacity: Capacity) -> Cell:
    names = ("device", "dtype", "attention", "graphs", "graph_seconds", "graph_bytes", "weights")
    return {name: capacity.report.get(name) for name in names}


def measure_attention(
    config: Config,
    *,
    rows: Sequence[int] = (1, 8, 32),
    nodes: Sequence[int] = (1, 8, 16, 32, 64),
    lengths: Sequence[int] = (1024, 8192, 32768),
    repeats: int = 20,
    say: Say = lambda _: None,
) -> Iterator[Cell]:
    """One layer of the target's shape; the median of `repeats` runs of each option available here.

    Options that compile for minutes come last.
    """
    from aerie.probe.attention_cases import Backends
    from aerie.probe.device_time import microseconds

    backends = Backends(config)
    cases = [case for case in product(rows, nodes, lengths) if backends.fits(case[0], case[2] + case[1])]
    for slow in (False, True):
        for count, width, length in cases:
            for name, run in backends.runs(count, width, length, slow=slow):
                cell = {
                    "device": backends.device_name,
                    "backend": name,
                    "rows": count,
                    "nodes": width,
                    "length": length,
                    "microseconds": None,
                    "missing": None,
                }
                try:
                    result = run if isinstance(run, str) else microseconds(run, backends.device, repeats)
                except RuntimeError as error:  # an option that cannot be captured in a graph
                    result = str(error).strip().partition("\n")[0]
                yield cell | {"missing" if isinstance(result, str) else "microseconds": result}
            say(f"attention of {count} rows, {width} nodes, {length} tokens{', slow ways' if slow else ''}")
