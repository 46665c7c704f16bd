"""The processes of SGLang's engine under Aerie: the bridge beside the front end, and the ranks of further machines.

Called by the composition root. To the front end the bridge acts as Aerie's scheduler process: it ends when the server
sends Stop, when its parent dies, or, with code 1, when the engine dies; code 2 means a ConfigError in the caller.
"""

import asyncio
import logging
import os
import signal
import time
from typing import Any, NoReturn

import zmq.asyncio

from aerie.bridge.arguments import server_arguments
from aerie.bridge.backend import EngineBackend, lives
from aerie.bridge.bridge import LOOK_SECONDS, Bridge
from aerie.contracts import wire
from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.sglang_section import SGLangConfig
from aerie.engine.sglang import plugin
from aerie.engine.sglang.release import engine_release

FAILED_START = 2
"""Exit code if the engine could not be started; its log says why."""

logger = logging.getLogger("aerie.sglang")


def run(address: str, config: Config, *, parent: int) -> int:
    """Serves the socket at `address` until a Stop; returns the exit code. Raises ConfigError if SGLang is not
    installed, is of an unsupported release, or cannot serve the config.
    """
    release = engine_release()
    arguments = server_arguments(config, grammars=plugin.installed())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the front end drains, then sends Stop
    engine = _start(arguments, config)
    try:
        return int(engine.loop.run_until_complete(_serve(engine, config, release, address, parent)))
    finally:
        engine.shutdown()


def run_rank(config: Config) -> int:
    """Runs the ranks of a further machine until a signal (0) or until one of them ends (1)."""
    engine_release()
    arguments = server_arguments(config, grammars=plugin.installed())
    os.environ["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] = "0"  # Engine() returns once its ranks are up
    _end_on_signals()
    engine = _start(arguments, config)
    try:
        pids = engine.get_all_child_pids()
        _end_on_signals()  # replaces SGLang's handlers
        logger.setLevel(logging.INFO)
        spread = config.sglang
        logger.info("machine %d of %d is up: ranks %s", spread.node_rank, spread.nnodes, pids)
        while all(lives(pid) for pid in pids):
            time.sleep(LOOK_SECONDS)
        logger.error("a rank of machine %d ended; the others are ended with it", spread.node_rank)
        return 1
    finally:
        engine.shutdown()


def _end_on_signals() -> None:
    """SIGINT and SIGTERM end this process and its ranks with code 0. An exception would not do: Python drops those that
    a handler raises inside its own hooks, and SGLang may wait for other machines for ever.
    """
    from sglang.srt.utils import kill_process_tree

    def end(number: int, frame: object) -> NoReturn:
        try:
            kill_process_tree(os.getpid(), include_parent=False)
        finally:
            os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


async def _serve(engine: Any, config: Config, release: str, address: str, parent: int) -> int:
    backend = EngineBackend(engine, config, grammars=plugin.installed())
    _take_signals(engine, backend)
    context = zmq.asyncio.Context()
    socket = wire.connect(context, address)
    try:
        return await Bridge(backend, socket, parent=parent).serve(backend.ready(release, await backend.load()))
    finally:
        socket.close()
        context.term()


def _take_signals(engine: Any, backend: EngineBackend) -> None:
    """Replaces SGLang's signal handlers, which end this process at once: open requests must end first."""
    engine.tokenizer_manager.auto_create_handle_loop()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGQUIT, backend.fail, "one of its processes failed, as its log says")
    loop.remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _start(arguments: dict[str, Any], config: Config) -> Any:
    """Returns a started engine. Raises ConfigError; SGLang's log says more."""
    os.environ.setdefault("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")  # log probabilities before temperature, as Aerie's
    if config.engine.device == "cpu":
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", _cores(config.sglang))
    logging.getLogger("sglang").setLevel(logging.WARNING)  # it logs all of its arguments, twice
    import sglang

    logging.getLogger("sglang.srt.entrypoints.engine").addFilter(_is_news)
    try:
        return sglang.Engine(custom_sigquit_handler=_on_failed_start, **arguments)
    except (AssertionError, RuntimeError, TypeError, ValueError, OSError) as error:
        raise ConfigError(f"SGLang's engine did not start: {type(error).__name__}: {error}") from error


def _on_failed_start(number: int, frame: object) -> NoReturn:
    """A child that fails while the engine starts sends SIGQUIT. No exception is safe at that point, so this process and
    its children end here.
    """
    from sglang.srt.utils import kill_process_tree

    os.write(2, b"aerie: SGLang's engine did not start: a process of it failed, and its log above says why\n")
    kill_process_tree(os.getpid(), include_parent=False)
    os._exit(FAILED_START)


def _cores(spread: SGLangConfig) -> str:
    """The cores of each rank on a CPU, which SGLang requires if there are more ranks than NUMA nodes."""
    cores = sorted(os.sched_getaffinity(0))
    ranks = spread.tp * spread.pp * spread.dp
    share = max(1, len(cores) // ranks)
    places = [cores[rank * share % len(cores) :][:share] for rank in range(ranks)]
    return "|".join(",".join(map(str, place)) for place in places)


def _is_news(record: logging.LogRecord) -> bool:
    return "custom SIGQUIT" not in record.getMessage()
