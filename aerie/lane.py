"""Chooses the lane of a deployment: on a CPU a process of its own, or in place where `engine.lane: inline` asks for
it.
"""

from contracts.config import Config
from contracts.errors import ConfigError
from contracts.step import Lane

WORKER_FACTORY = "spec.build:build_worker"


def make_lane(config: Config) -> Lane:
    """Raises ConfigError where the model cannot be served."""
    if config.engine.kind != "native":
        raise ConfigError(f"engine.kind {config.engine.kind!r} is not built yet; use native", param="engine.kind")
    if config.engine.device == "cuda":
        raise ConfigError("engine.device cuda is not built yet; use cpu", param="engine.device")
    if config.model.weights == "dummy":
        raise ConfigError("model.weights dummy is not built yet; use safetensors", param="model.weights")
    from engine.build import lane_threads

    threads = lane_threads(config)
    if config.engine.lane == "inline":
        import torch

        from engine.lanes.inline import InlineLane
        from spec.build import build_worker

        torch.set_num_threads(threads)
        return InlineLane(build_worker(config))
    from engine.lanes.cpu import CpuLane

    return CpuLane(WORKER_FACTORY, config, threads=threads)
