"""Where compiled kernels lie, for GPUs and for CPUs."""

import os
from pathlib import Path


def folder() -> Path:
    """Where kernels are written: the first of `folders`."""
    return folders()[0]


def folders() -> list[Path]:
    """Where kernels are looked for: those of AERIE_KERNELS, separated as in PATH, or build/kernels of this checkout."""
    named = [Path(part) for part in os.environ.get("AERIE_KERNELS", "").split(os.pathsep) if part]
    return named or [Path(__file__).parents[2] / "build" / "kernels"]
