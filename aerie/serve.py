"""The composition root of a server: this process speaks HTTP, a child schedules, and the child's lane holds the model.

The lifetimes of the three processes are tied: when the server ends it stops the scheduler, when the scheduler ends it
closes the lane, and the server notices the death of either within a fraction of a second.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from aerie.contracts import wire
from aerie.contracts.child import ENDING, ending_with_parent, start_child
from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Ready
from aerie.server.run import listen, run
from aerie.server.telemetry.head_watch import Promise
from aerie.server.telemetry.request_log import write_lines_bare

_STOP_SECONDS = 10.0
_BAD_CONFIG = 2
"""Exit code of a scheduler that could not be built. It has printed its message."""


logger = logging.getLogger("aerie.serve")


def serve(config: Config, announce: Callable[[Ready, str], None]) -> int:
    """Serves until a signal; returns the exit code. Raises ConfigError if the server itself cannot start.

    A signal that comes before the event loop handles signals is passed to it later, so that there is one way to end.
    """
    write_lines_bare()
    if config.engine.kind == "sglang" and config.sglang.node_rank > 0:
        from aerie.bridge.process import run_rank

        return run_rank(config)  # a further machine runs ranks but no HTTP server
    early: list[int] = []
    before = {number: signal.signal(number, lambda number, _: early.append(number)) for number in ENDING}
    try:
        return _serve(config, announce, lambda: bool(early))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(config: Config, announce: Callable[[Ready, str], None], stopped: Callable[[], bool]) -> int:
    began = time.monotonic()
    logger.info("loading %s, head %s", config.model.path, config.spec.head)
    listener = listen(config.server)
    address = wire.private_address()
    said = config.model_dump_json(exclude_unset=True)
    scheduler = start_child(_schedule, address, said, os.getpid(), name="aerie-scheduler")
    patience = 0.0  # during startup there is nothing to shut down cleanly

    def on_ready(ready: Ready, url: str) -> None:
        nonlocal patience
        patience = _STOP_SECONDS
        logger.info("ready in %.1f s", time.monotonic() - began)
        announce(ready, url)

    try:
        code = run(
            config,
            listener=listener,
            address=address,
            folder=Path(config.model.path),
            scheduler_alive=scheduler.is_alive,
            announce=on_ready,
            promise=_promise(config),
            stopped=stopped,
        )
        return _BAD_CONFIG if scheduler.exitcode == _BAD_CONFIG else code
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)  # no further signal interrupts the shutdown
        _end(scheduler, patience)
        wire.remove_address(address)


def _promise(config: Config) -> Promise | None:
    """The acceptance that the card of the deployment's head promises."""
    from aerie.spec.checkpoints.card import promised
    from aerie.spec.checkpoints.registry import locate, read_pairs

    folder = locate(config.spec.head)
    found = None if folder is None else promised(folder, config.spec, read_pairs())
    return None if found is None else Promise(config.spec.head, *found)


def _end(scheduler: BaseProcess, patience: float) -> None:
    scheduler.join(patience)
    if scheduler.is_alive():
        scheduler.kill()
        scheduler.join()


def _schedule(address: str, config_json: str, parent: int) -> None:
    """The scheduler process: builds the lane and runs the loop, or bridges to SGLang's engine, until a Stop."""
    config = parse_config(Config.model_validate_json(config_json).model_dump(exclude_unset=True))
    try:
        code = _run(address, config, parent)
    except ConfigError as error:
        print(f"aerie: {error.message}", file=sys.stderr)
        code = _BAD_CONFIG
    finally:
        if os.getppid() != parent:  # the parent was killed and could not clean up
            wire.remove_address(address)
    sys.exit(code)


def _run(address: str, config: Config, parent: int) -> int:
    if config.engine.kind == "sglang":
        from aerie.bridge import process as bridge

        return bridge.run(address, config, parent=parent)
    with ending_with_parent(lambda: wire.remove_address(address)):
        from aerie.lane import make_lane
        from aerie.scheduler import process

        lane = make_lane(config)
    return process.run(address, lane, config, parent=parent)
