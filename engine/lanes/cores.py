"""The CPUs that this process can use: those it may run on, limited by its control groups' quotas."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cores() -> float:
    """The number of cores. A quota may be fractional: 0.5 is half a core."""
    return min([len(os.sched_getaffinity(0)), *_quotas()])


def _quotas() -> Iterator[float]:
    """Quotas of this process's control group and of its ancestors, for versions 2 and 1."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = _CGROUPS / "cpu" if controllers else _CGROUPS
        group = top / path.lstrip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            if controllers:
                words = [_word(folder / "cpu.cfs_quota_us"), _word(folder / "cpu.cfs_period_us")]
            else:
                words = _word(folder / "cpu.max").split()
            if len(words) == 2 and all(word.isdigit() for word in words):  # else "max", or -1
                yield int(words[0]) / int(words[1])


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
