"""Child processes that import nothing of their parent's program: how the server starts its scheduler, and a scheduler
its lane.

A child imports only what its task names. It does not run the parent's main module again, as multiprocessing would: that
module may be a user's script that loads a model on import. Invariants: from its first moment a child ignores Ctrl-C,
which reaches every process of a terminal, and SIGTERM, which a supervisor may send to all of a service: only the first
process handles them. A started child ends with its parent.
"""

import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

from aerie.contracts.logs import level_here, log_to_stderr

ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that ask a server to end."""


def start_child(task: Callable[..., object], *arguments: Any, name: str, daemon: bool = False) -> BaseProcess:
    """Starts a new interpreter that calls `task`, a function of a module, with these arguments; returns the process."""
    given = (task, level_here(), *arguments)
    process = multiprocessing.get_context("spawn").Process(target=begin, args=given, name=name, daemon=daemon)
    # Must come first: starting the tracker ends by unblocking these signals.
    resource_tracker.ensure_running()
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def begin(task: Callable[..., object], log_level: int | None, *arguments: Any) -> None:
    """A child's main."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    if log_level is not None:
        log_to_stderr(log_level)
    task(*arguments)


@contextmanager
def ending_with_parent(tidy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Guards a child's start: if the parent ends meanwhile, calls `tidy` and exits. Later the child's loop checks."""
    starting = True
    parent = multiprocessing.parent_process()

    def watch(sentinel: int) -> None:
        wait([sentinel])
        if starting:
            tidy()
            os._exit(1)

    if parent is not None:
        Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
    try:
        yield
    finally:
        starting = False
