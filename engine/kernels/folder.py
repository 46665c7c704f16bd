"""Where compiled kernels lie, for GPUs and for CPUs."""

import os
from pathlib import Path

from contracts.places import cache


def folder() -> Path:
    """Where kernels are written: the first of `folders`."""
    return folders()[0]


def folders() -> list[Path]:
    """Where kernels are looked for: those of AERIE_KERNELS, separated as in PATH; else build/kernels of a checkout, or
    what an installed Aerie has in the user's cache.
    """
    named = [Path(part) for part in os.environ.get("AERIE_KERNELS", "").split(os.pathsep) if part]
    return named or [cache() / "kernels"]
