"""Runs a function in a fork of the test process, which has imported SGLang once.

SGLang keeps one runner's settings and process groups in a process, and takes half a minute of processor time to import:
every test that loads a model runs its body here.
"""

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

import tests.sglang.pools  # noqa: F401  forks may run torch in threads
from aerie.contracts.child import begin

_BEFORE_FORKS = (
    "sglang.srt.models.registry",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.llama_eagle3",
    "aerie.engine.sglang.start",
)


def run_forked(body: Callable[[], None], seconds: float = 300) -> None:
    """Fails the test with the body's own traceback; a body that takes longer than `seconds` is killed."""
    for name in _BEFORE_FORKS:
        __import__(name)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_the_fork(body, writer)
    os.close(writer)
    report = _read(reader, pid, time.monotonic() + seconds)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        pytest.fail(report or f"the fork ended with {code}", pytrace=False)


def fork_child(task: Callable[..., object], *arguments: Any, name: str, daemon: bool = False) -> BaseProcess:
    """Stands in for `contracts.child.start_child` where children shall have imported SGLang already."""
    import multiprocessing

    context: BaseContext = multiprocessing.get_context("fork")
    process: BaseProcess = context.Process(target=begin, args=(task, None, *arguments), name=name, daemon=daemon)  # type: ignore[attr-defined]
    process.start()
    return process


def _be_the_fork(body: Callable[[], None], writer: int) -> None:
    os.setsid()
    faulthandler.enable()
    code = 0
    try:
        body()
    except BaseException:  # noqa: BLE001  pytest's own are not Exceptions; the parent reports all of them
        code = 1
        os.write(writer, traceback.format_exc().encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read(reader: int, pid: int, deadline: float) -> str:
    import select

    text = b""
    while True:
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.killpg(pid, signal.SIGKILL)
            return "the fork took too long and was killed"
        part = os.read(reader, 65536)
        if not part:
            os.close(reader)
            return text.decode(errors="replace")
        text += part
