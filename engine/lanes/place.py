"""Where steps run, determined without loading PyTorch: a scheduler whose lane is a separate process does not need it.

The composition root asks once, before it builds a lane.
"""

import ctypes

from aerie.contracts.config import Config
from aerie.engine.lanes.cores import usable_cores

_DRIVER = "libcuda.so.1"
"""Every CUDA program loads this library; without it there is no usable GPU."""


def lane_threads(config: Config) -> int:
    """Usable cores - 1, at least 1: the scheduler needs one, and more threads than free cores stall each other. Fewer
    serve where those are faster (native/choice.py).
    """
    return config.engine.threads or max(1, int(usable_cores()) - 1)


def runs_on_cpu(config: Config) -> bool:
    """Raises ConfigError if a GPU is requested but not available."""
    wanted = config.engine.device
    if wanted == "cpu" or (wanted == "auto" and not _has_driver()):
        return True
    from aerie.engine.device import resolve_device

    return resolve_device(config).type == "cpu"


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True
