"""Waiting and measuring in tests, on machines that stand still now and then.

What must come is awaited with patience, which only a defect uses up. What must come soon is measured again where it
came late: a machine does not stand still each time, a defect is late each time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

PATIENCE = 100.0
"""Seconds to wait for what comes in a moment on a calm machine; less than a test may take."""
TRIES = 5
_LOOK_SECONDS = 0.005


def until(condition: Callable[[], object], missing: str) -> None:
    """Waits for the condition, `missing` being what is wrong where it never holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, missing
        time.sleep(_LOOK_SECONDS)


async def come(condition: Callable[[], object], missing: str) -> None:
    """The same on an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, missing
        await asyncio.sleep(_LOOK_SECONDS)


def quickest(measure: Callable[[], float], enough: float) -> float:
    """The least of a few tries at something that a stalled machine makes greater; one below `enough` is the last."""
    least = measure()
    for _ in range(TRIES - 1):
        if least < enough:
            break
        least = min(least, measure())
    return least


async def quickest_of(measure: Callable[[], Awaitable[float]], enough: float) -> float:
    """The same for what is awaited."""
    least = await measure()
    for _ in range(TRIES - 1):
        if least < enough:
            break
        least = min(least, await measure())
    return least


def runs(pid: int) -> bool:
    """Whether a process lives; one that has ended and waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def end_of(*pids: int) -> None:
    """Waits until none of these processes lives."""
    until(lambda: not any(map(runs, pids)), f"one of the processes {pids} outlives its parent")
