"""Where compiled kernels lie, for GPUs and for CPUs."""

import os
from pathlib import Path


def folder() -> Path:
    """AERIE_KERNELS, or build/kernels of this checkout."""
    return Path(os.environ.get("AERIE_KERNELS") or Path(__file__).parents[2] / "build" / "kernels")
