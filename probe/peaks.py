"""The fastest that a device could run a model: published peaks, and the roofline of a target on the device."""

from pathlib import Path

from aerie.contracts.config import Config
from aerie.contracts.step import Capacity
from aerie.engine.memory import parameter_count
from aerie.engine.model.config import read_model_config
from aerie.probe.overlap import Roofline

_PEAKS = {
    "H100 PCIe": (2.0e12, 756e12),
    "H100": (3.35e12, 989e12),
    "H200": (4.8e12, 989e12),
    "A100": (2.0e12, 312e12),
    "L40S": (0.864e12, 362e12),
    "L4": (0.3e12, 121e12),
    "B200": (8.0e12, 2250e12),
}
"""By a part of a device's name: bytes per second, and dense bf16 operations per second (a multiply-add is two), from
the makers' data sheets. The first match counts.
"""


def peaks_of(device: str) -> tuple[float, float] | None:
    return next((peaks for name, peaks in _PEAKS.items() if name in device), None)


def roofline_of(config: Config, capacity: Capacity, measured: tuple[float, float] | None = None) -> Roofline | None:
    """The roofline of a deployment's target, by what was `measured` or else by the device's published peaks; None if
    those are unknown. Drafting counts as waste, so it is free.
    """
    peaks = measured or peaks_of(str(capacity.report.get("device")))
    if peaks is None:
        return None
    model = read_model_config(Path(config.model.path))
    itemsize = 4 if capacity.report.get("dtype") == "float32" else 2
    read = parameter_count(model) - (0 if model.tied_embeddings else model.vocabulary * model.hidden_size)
    return Roofline(
        bandwidth=peaks[0],
        flops=peaks[1],
        weight_bytes=float(read * itemsize),
        parameters=float(read),
        kv_bytes=2.0 * model.layers * model.kv_heads * model.head_dim * itemsize,
        attention_flops=4.0 * model.layers * model.heads * model.head_dim,
        draft_seconds=0.0,
        draft_token_seconds=0.0,
    )
