"""`aerie probe gpu-bench`: a GPU's speed, measured in a few minutes on a model's shape with random weights.

plain        greedy decoding by batch, as a share of the device's roofline; host time per step
references   the same with the references in torch in place of Triton's kernels
sampling     rows that sample, and rows that filter, plain and drafted
speculation  simulated acceptance by shape and batch: tokens/s, the parts of a step's time, idle shares
attention    every backend and every FlashInfer option for verifying trees, by rows, nodes and length
kernels      Aerie's own kernels against their references (probe/fused.py)
products     products of few tokens by every library and kernel (probe/products.py)
profile      the kernels of a plain step and of a round by time (probe/gpu_profile.py)

Runs on a CPU too, which tests it but measures little. Every cell names its device and what is simulated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.engine.device import resolve_device, resolve_dtype
from aerie.engine.model.config import read_model_config
from aerie.probe.ceilings import ceilings_of
from aerie.probe.drive import MakeLane
from aerie.probe.overlap import Roofline
from aerie.probe.peaks import roofline_of
from aerie.probe.steady import Steady, steady

Cell = dict[str, Any]
Say = Callable[[str], None]
SAMPLING = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
}
"""The kinds of rows that steps, and graphs, tell apart."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What is measured at each batch: kinds of SAMPLING, loops, and the length of a run."""

    batches: Sequence[int]
    prompt: int
    steps: int
    kinds: Sequence[str] = ("greedy",)
    overlaps: Sequence[bool] = (True, False)
    say: Say = lambda _: None


def measure_plain(config: Config, make_lane: MakeLane, runs: Runs) -> Iterator[Cell]:
    """Plain decoding without a head."""
    plain = config.model_copy(
        update={"spec": config.spec.model_copy(update={"head": "none", "simulate_acceptance": None})}
    )
    for cell in _cells(plain, make_lane, runs):
        cell.pop("drafts")
        runs.say(f"plain, {_said(cell)}")
        yield cell


def measure_speculation(
    config: Config, make_lane: MakeLane, runs: Runs, *, acceptances: Sequence[float], shapes: Sequence[DraftShape]
) -> Iterator[Cell]:
    """Makes a lane for each shape and acceptance, since graphs contain them. Leaves out acceptances that a shape is too
    shallow for. Raises ConfigError without a head.
    """
    for shape, acceptance in product(shapes, acceptances):
        if acceptance > shape.depth + 1:
            runs.say(f"acceptance {acceptance:g} is more than drafts of depth {shape.depth} can have: left out")
            continue
        wanted = {"planner": "fixed", "depth": shape.depth, "topk": shape.topk, "nodes": shape.nodes, "by_load": []}
        spec = config.spec.model_copy(update={"simulate_acceptance": acceptance, **wanted})
        for cell in _cells(config.model_copy(update={"spec": spec}), make_lane, runs):
            if not cell.pop("drafts"):
                raise ConfigError("the target has no head to draft with; set spec.head", param="spec.head")
            name = f"{shape.depth},{shape.topk},{shape.nodes}"
            runs.say(f"simulated acceptance {acceptance:g}, shape {name}, {_said(cell)}")
            yield cell | {"acceptance": "simulated", "simulated_acceptance": acceptance, "shape": name}


def _said(cell: Cell) -> str:
    loop = "overlapped" if cell["overlap"] else "synchronous"
    return f"{cell['batch']} rows, {cell['sampling']}, {loop}: {cell['tokens_per_s']:.0f} tokens/s"


def _cells(config: Config, make_lane: MakeLane, runs: Runs) -> Iterator[Cell]:
    config, device = recording_little(config, runs.batches), resolve_device(config)
    ceilings = ceilings_of(device, resolve_dtype(config, read_model_config(Path(config.model.path)).dtype, device))
    with closing(make_lane(config)) as lane:
        rooflines = {
            "e_sys": roofline_of(config, lane.capacity),
            "e_sys_measured": roofline_of(config, lane.capacity, ceilings),
        }
        for batch, kind, overlap in product(runs.batches, runs.kinds, runs.overlaps):
            scheduler = config.scheduler.model_copy(update={"overlap": overlap})
            own = config.model_copy(update={"scheduler": scheduler})
            run = steady(lane, own, rows=batch, prompt=runs.prompt, steps=runs.steps, sampling=SAMPLING[kind])
            yield {
                **_origin(lane),
                "batch": batch,
                "sampling": kind,
                "overlap": overlap,
                **_figures(run),
                **{name: None if line is None else _efficiency(run, line) for name, line in rooflines.items()},
                "measured_bandwidth": ceilings[0],
                "measured_flops": ceilings[1],
            }


def recording_little(config: Config, batches: Sequence[int]) -> Config:
    """With graphs for the rows that are measured, and none for rows that edit logits: a lane records for seconds."""
    scheduler = config.scheduler.model_copy(update={"max_running": max(batches)})
    engine = config.engine.model_copy(update={"edit_slots": 0})
    return config.model_copy(update={"scheduler": scheduler, "engine": engine})


def _figures(run: Steady) -> Cell:
    return {
        "tokens_per_s": run.tokens_per_s,
        "acceptance_length": run.acceptance_length,
        "step_ms": 1e3 * run.seconds / run.steps,
        "host_ms_per_step": 1e3 * run.host_seconds / run.steps,
        "idle_share": run.idle_share,
        "phase_ms": {name: 1e3 * spent / run.steps for name, spent in run.phase_seconds.items()},
    }


def _efficiency(run: Steady, roofline: Roofline) -> float:
    """The roofline's time of the verified work over the measured time; drafting counts as waste."""
    mean = run.context / (run.steps * run.rows)
    lengths = np.full(run.rows, mean, dtype=np.int32)
    ideal = roofline.step_seconds(lengths, run.verified // run.steps, 0, 0)
    return ideal * run.steps / run.seconds


def _origin(lane: Lane) -> Cell:
    names = ("device", "dtype", "attention", "kernels", "graphs", "graph_seconds", "graph_bytes", "weights")
    return {name: lane.capacity.report.get(name) for name in names} | {"drafts": lane.capacity.drafts}


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
    from aerie.engine.device_time import microseconds
    from aerie.probe.attention_cases import Backends

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
                except Exception as error:  # noqa: BLE001  of any library: an option that no graph captures
                    result = str(error).strip().partition("\n")[0] or type(error).__name__
                yield cell | {"missing" if isinstance(result, str) else "microseconds": result}
            say(f"attention of {count} rows, {width} nodes, {length} tokens{', slow ways' if slow else ''}")
