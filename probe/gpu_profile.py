"""Where a step's device time goes: kernels by time, of plain steps and of rounds with simulated acceptance.

A part of `aerie probe gpu-bench`. Recording slows the host down, so the figures of the other parts are taken without.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from torch.profiler import ProfilerActivity, profile

from aerie.contracts.config import Config
from aerie.engine.device import resolve_device
from aerie.probe.drive import MakeLane
from aerie.probe.gpu_bench import recording_little
from aerie.probe.steady import steady

Cell = dict[str, Any]
LARGEST = 25
"""Kernels reported of each case."""


def measure_profile(
    config: Config, make_lane: MakeLane, *, batches: Sequence[int], prompt: int, steps: int
) -> Iterator[Cell]:
    """The kernels of greedy steps that take longest: times a step, microseconds a step, and share of the total."""
    if resolve_device(config).type == "cpu":  # whole steps in C++ start no operators that a profile could name
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"kernels": "torch"})})
    with closing(make_lane(recording_little(config, batches))) as lane:
        device = str(lane.capacity.report.get("device"))
        on_gpu = device != "cpu"
        activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
        for batch in batches:
            recorded = profile(activities=[activity])
            steady(lane, config, rows=batch, prompt=prompt, steps=steps, during=recorded)
            kernels = [
                (event.key, event.count, event.self_device_time_total if on_gpu else event.self_cpu_time_total)
                for event in recorded.key_averages()
            ]
            whole = sum(spent for _, _, spent in kernels) or 1.0
            for name, count, spent in sorted(kernels, key=lambda kernel: -kernel[2])[:LARGEST]:
                yield {
                    "device": device,
                    "step": "round" if lane.capacity.drafts else "plain",
                    "batch": batch,
                    "kernel": name,
                    "times_per_step": count / steps,
                    "microseconds_per_step": spent / steps,
                    "share": spent / whole,
                }
