"""Child processes that know nothing of their parent's program: how the server starts its scheduler, and a scheduler its
lane.

A child imports what its task names and nothing else: the parent's main module, which multiprocessing would run again,
may be a user's script that starts a model as it is imported. Invariant: a Ctrl-C, which reaches every process of a
terminal, is the first process's affair alone, from a child's first moment on.
"""

import multiprocessing
import signal
import sys
import types
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any


def start_child(task: Callable[..., object], *arguments: Any, name: str, daemon: bool = False) -> BaseProcess:
    """A running process of its own interpreter that calls `task`, a function of a module, with these arguments."""
    process = multiprocessing.get_context("spawn").Process(target=task, args=arguments, name=name, daemon=daemon)
    # First of all, since its start ends with these signals let through again.
    resource_tracker.ensure_running()
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process
