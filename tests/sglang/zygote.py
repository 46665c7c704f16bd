"""A process that has imported SGLang once, and forks an `aerie` for every line that it reads.

SGLang takes half a minute of processor time to import, in each of the three processes and more that one engine is made
of; forks of this one start in seconds. What differs from `aerie` on a command line: children are forked, not spawned.

A line of stdin is JSON, `{"words": [...], "environment": {...}, "log": PATH}`; the answer on stdout is a process id.
`{"wait": PID}` is answered with its exit code once it has ended, `{"look": PID}` with that or null.
"""

import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from aerie.contracts.child import begin

LOADED = (
    "aerie.commands.app",
    "aerie.serve",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "sglang.srt.models.llama",
    "sglang.srt.models.llama_eagle3",
    "sglang.srt.speculative.eagle_worker_v2",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.layers.attention.intel_amx_backend",
    "aerie.bridge.process",
    "tests.sglang.pools",
)


def main() -> None:
    for name in LOADED:
        try:
            __import__(name)
        except ImportError as error:  # a module that some release has elsewhere is loaded by whoever needs it
            print(f"zygote: {name}: {error}", file=sys.stderr, flush=True)
    _say("loaded")
    codes: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "words" in asked:
            _say(_start(asked["words"], asked["environment"], asked["log"]))
        else:
            _say(_code(asked, codes))
    os._exit(0)  # what it has imported need not be put in order


def _start(words: list[str], environment: dict[str, str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become(environment, log)
        code = _run(words)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - the end of a process; its log has the traceback
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become(environment: dict[str, str], log: str) -> None:
    os.setsid()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _run(words: list[str]) -> int:
    """The command line, whose children and theirs are forked."""
    import aerie.serve
    from aerie.__main__ import main as command

    os.register_at_fork(after_in_child=_forget_handlers)
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment, method-assign]
    aerie.serve.start_child = _fork_child  # type: ignore[attr-defined]
    sys.argv = ["aerie", *words]
    command()
    return 0


def _forget_handlers() -> None:
    """A spawned process would not know its parent's."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _fork_child(task: Callable[..., object], *arguments: Any, name: str, daemon: bool = False) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(
        target=begin, args=(task, None, *arguments), name=name, daemon=daemon
    )
    process.start()
    return process


def _code(asked: dict[str, int], codes: dict[int, int]) -> int | None:
    pid = asked["wait"] if "wait" in asked else asked["look"]
    if pid not in codes:
        found, status = os.waitpid(pid, 0 if "wait" in asked else os.WNOHANG)
        if not found:
            return None
        codes[pid] = os.waitstatus_to_exitcode(status)
    return codes[pid]


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
