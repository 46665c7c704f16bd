"""Where compiled kernels are stored, for GPUs and for CPUs."""

import os
from pathlib import Path

from aerie.contracts.places import cache


def folder() -> Path:
    """The folder that kernels are written to: the first of `folders`."""
    return folders()[0]


def folders() -> list[Path]:
    """The folders that are searched for kernels: those of AERIE_KERNELS, separated as in PATH; else build/kernels of a
    checkout, or an installed Aerie's folder in the user's cache.
    """
    named = [Path(part) for part in os.environ.get("AERIE_KERNELS", "").split(os.pathsep) if part]
    return named or [cache() / "kernels"]
