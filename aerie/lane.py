"""Chooses the lane of a deployment: on a CPU a process of its own, or in place where `engine.lane: inline` asks for
it.
"""

import logging

from contracts.config import Config
from contracts.errors import ConfigError
from contracts.labels import labels
from contracts.step import Lane

logger = logging.getLogger("aerie.lane")

WORKER_FACTORY = "spec.build:build_worker"


def make_lane(config: Config) -> Lane:
    """Raises ConfigError where the model cannot be served."""
    if config.engine.kind != "native":
        raise ConfigError(f"engine.kind {config.engine.kind!r} is not built yet; use native", param="engine.kind")
    for label in labels(config).values():
        logger.warning("%s", label)
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
