"""The CPU's lane: a process that holds weights, pools and tables, so that host and device work really overlap.

A thread would share the interpreter's lock with the scheduler and overlap nothing. Frames travel over a socket pair
that only the two processes hold. When either end dies the other reads the end of the stream, so no one waits forever.
"""

import multiprocessing
import sys
import traceback
from collections import deque
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from queue import SimpleQueue
from threading import Thread
from typing import Any

from aerie.contracts.child import ending_with_parent, start_child
from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import AerieError, EngineDead
from aerie.contracts.grammar import Grammar, Prepared
from aerie.contracts.step import Capacity, StepOutput, StepPlan
from aerie.contracts.worker import Run, StagingWorker, Worker
from aerie.engine.lanes.frames import Failure, Prepare, decode, encode, encode_error

_CLOSE_SECONDS = 5.0
_SWITCH_SECONDS = 2e-5
"""When a step ends, it waits at most so long for the interpreter's lock, which the next one's staging may hold."""


class CpuLane:
    """Implements contracts.step.Lane. `factory` names a function `package.module:name` that builds a worker from the
    config and `arguments`. Without `wait` the lane exists before its worker, until `await_ready`.
    """

    def __init__(
        self, factory: str, config: Config, *, threads: int, arguments: tuple[int, ...] = (), wait: bool = True
    ) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = start_child(
            _serve, theirs, factory, config.model_dump_json(), threads, arguments, name="aerie-lane", daemon=True
        )
        theirs.close()
        # A lane that nobody closes ends with its owner, or with the interpreter, which would otherwise wait for it.
        Finalize(self, self._pipe.close, exitpriority=0)
        self._capacity: Capacity
        self._outputs: deque[StepOutput] = deque()
        self._prepared: list[Prepared] = []
        if wait:
            self.await_ready()

    def await_ready(self) -> None:
        """Waits for the worker. Raises ConfigError if it could not be built, EngineDead if the process died."""
        self._capacity = self._receive()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The process's exit code; None while it runs."""
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """Readable once the process has ended."""
        return self._process.sentinel

    @property
    def connection(self) -> Connection:
        """Readable when an output, or the process's end, can be received."""
        return self._pipe

    def launch(self, plan: StepPlan) -> None:
        self._send(plan)

    def settle(self) -> StepOutput:
        while not self._outputs:
            self._sort(self._receive())
        return self._outputs.popleft()

    def prepare(self, request: int, grammar: Grammar) -> None:
        self._send(Prepare(request, grammar))

    def prepared(self, seconds: float = 0.0) -> list[Prepared]:
        while self._ready_within(0.0 if self._prepared else seconds):
            self._sort(self._receive())
        found, self._prepared = self._prepared, []
        return found

    def forget(self, request: int) -> None:
        self._send(Prepare(request, None))

    def close(self) -> None:
        """Ends the process; kills it if it does not exit in time."""
        self.hang_up()
        self._process.join(_CLOSE_SECONDS)
        self.kill()

    def hang_up(self) -> None:
        """Lets the process end, without waiting for it."""
        self._pipe.close()

    def kill(self) -> None:
        """Kills the process at once if it still runs."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _send(self, value: Any) -> None:
        try:
            self._pipe.send_bytes(encode(value))
        except OSError:
            raise self._dead() from None

    def _sort(self, value: StepOutput | Prepared) -> None:
        if isinstance(value, Prepared):
            self._prepared.append(value)
        else:
            self._outputs.append(value)

    def _ready_within(self, seconds: float) -> bool:
        try:
            return self._pipe.poll(seconds)
        except OSError:
            raise self._dead() from None

    def _receive(self) -> Any:
        try:
            value = decode(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._dead() from None
        if isinstance(value, Failure):
            raise value.error()
        return value

    def _dead(self) -> EngineDead:
        self._process.join(_CLOSE_SECONDS)
        return EngineDead(f"the lane process ended with exit code {self._process.exitcode}; its requests are lost")


def _serve(pipe: Connection, factory: str, config_json: str, threads: int, arguments: tuple[int, ...]) -> None:
    """The process's main function: build, report the capacity, then run steps until the other end closes."""
    try:
        with ending_with_parent():
            import torch

            torch.set_num_threads(threads)
            worker = _made(factory)(parse_config(Config.model_validate_json(config_json).model_dump()), *arguments)
        pipe.send_bytes(encode(worker.capacity))
        _run(worker, pipe)
    except AerieError as error:
        pipe.send_bytes(encode_error(error))
    except Exception as error:  # noqa: BLE001  the process ends here, and the scheduler must hear of any error
        traceback.print_exc()
        pipe.send_bytes(encode_error(EngineDead(f"{type(error).__name__}: {error}")))


_Steps = SimpleQueue[Run | Exception | None]
"""Staged steps in launch order; then None if the other end has closed, or the error that ended a thread."""
_Outputs = SimpleQueue[Callable[[], StepOutput | Prepared] | None]


def _run(worker: Worker, pipe: Connection) -> None:
    """Runs steps until the other end closes. Separate threads read frames and stage their steps, and make outputs and
    write them. They cost a step little, since it does not hold the interpreter's lock while it computes.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    steps: _Steps = SimpleQueue()
    outputs: _Outputs = SimpleQueue()
    writer = Thread(target=_beside, args=(steps, lambda: _write(pipe, outputs)), daemon=True)
    writer.start()
    Thread(target=_beside, args=(steps, lambda: _read(pipe, steps, worker, outputs)), daemon=True).start()
    try:
        while (run := steps.get()) is not None:
            if isinstance(run, Exception):
                raise run
            run(outputs.put)
    finally:  # send all answers before the error that ends the process
        worker.close()
        outputs.put(None)
        writer.join()


def _beside(steps: _Steps, act: Callable[[], None]) -> None:
    """A thread's main function: if it ends early, the steps end too."""
    try:
        act()
    except (EOFError, OSError):
        steps.put(None)
    except Exception as error:  # noqa: BLE001  the steps raise it
        steps.put(error)


def _read(pipe: Connection, steps: _Steps, worker: Worker, outputs: _Outputs) -> None:
    def done(prepared: Prepared) -> None:
        outputs.put(lambda: prepared)

    stage = worker.stage if isinstance(worker, StagingWorker) else lambda plan: _whole(worker, plan)
    while True:
        frame = decode(pipe.recv_bytes())
        if not isinstance(frame, Prepare):
            steps.put(stage(frame))
        elif worker.guides is not None and frame.grammar is not None:
            worker.guides.prepare(frame.request, frame.grammar, done)
        elif worker.guides is not None:
            worker.guides.forget(frame.request)


def _whole(worker: Worker, plan: StepPlan) -> Run:
    """A step of which nothing is staged."""
    return lambda answer: worker.step(plan, lambda output: answer(lambda: output))


def _write(pipe: Connection, outputs: _Outputs) -> None:
    while (output := outputs.get()) is not None:
        pipe.send_bytes(encode(output()))


def _made(factory: str) -> Callable[..., Worker]:
    module, _, name = factory.partition(":")
    made: Callable[..., Worker] = getattr(import_module(module), name)
    return made
