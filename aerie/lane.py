"""Chooses the lane of a deployment: inline if `engine.lane` says so, else a GPU's stream or a separate CPU process."""

import logging

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.labels import labels
from aerie.contracts.step import Lane
from aerie.large_pages import large_pages

logger = logging.getLogger("aerie.lane")

WORKER_FACTORY = "aerie.worker:build_worker"
RANK_FACTORY = "aerie.worker:build_rank"


def make_lane(config: Config) -> Lane:
    """Raises ConfigError if the model cannot be served."""
    if config.engine.kind == "sglang":
        raise ConfigError("engine.kind sglang has no lane: SGLang schedules for itself", param="engine.kind")
    for label in labels(config).values():
        logger.warning("%s", label)
    from aerie.engine.lanes.place import lane_threads, runs_on_cpu

    threads = lane_threads(config)
    warn_of_waiting(threads)
    ranks = config.sglang.tp if config.engine.kind == "sglang-model" else 1
    if ranks > 1:
        from aerie.engine.sglang.ranks import RanksLane

        return RanksLane(RANK_FACTORY, config, ranks=ranks, threads=max(1, threads // ranks))
    if config.engine.lane == "inline":
        import torch

        from aerie.engine.lanes.inline import InlineLane
        from aerie.worker import build_worker

        torch.set_num_threads(threads)
        return InlineLane(build_worker(config))
    if not runs_on_cpu(config):
        return _cuda_lane(config)
    from aerie.engine.lanes.cpu import CpuLane

    with large_pages():
        return CpuLane(WORKER_FACTORY, config, threads=threads)


def warn_of_waiting(threads: int) -> None:
    """For those set by a person: too many make a lane many times slower."""
    from aerie.engine.lanes.cores import usable_cores

    cores = usable_cores()
    if threads > max(1, cores):
        logger.warning(
            "engine.threads is %d, and this process can use %g cores: threads will wait for each other; leave "
            "engine.threads out",
            threads,
            cores,
        )


def _cuda_lane(config: Config) -> Lane:
    if config.engine.lane == "process":
        raise ConfigError("engine.lane process is a CPU's; a GPU's lane is its stream", param="engine.lane")
    import torch

    from aerie.engine.lanes.cuda import CudaLane
    from aerie.worker import build_launcher

    try:
        return CudaLane(build_launcher(config))
    except torch.OutOfMemoryError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the GPU ran out of memory while the model was loaded: {reason}; lower engine.memory_share, "
            f"scheduler.max_running or spec.nodes, or set engine.graphs=false, whose steps keep no memory of their own",
            param="engine.memory_share",
        ) from error
