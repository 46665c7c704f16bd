"""Runs uvicorn and shuts it down. The composition root calls this for the API process.

Call `listen` first, so that a busy port is found before a model is loaded; then `run`, which returns the exit code.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from aerie.contracts.child import ENDING
from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError, Overloaded
from aerie.contracts.messages import Ready
from aerie.contracts.server_section import ServerConfig
from aerie.server.app import create_app
from aerie.server.dispatch.client import Engine
from aerie.server.http.parser import BoundedHttp
from aerie.server.service import Service, build_service
from aerie.server.telemetry.head_watch import Promise
from aerie.server.text.tokenizer import Tokenizer

FAREWELL_SECONDS = 1.0
"""How long the last error events may take to reach their clients."""
LOOK_SECONDS = 0.02
SPARE_DESCRIPTORS = 256
"""Descriptors reserved for files and for sockets other than connections."""

logger = logging.getLogger("aerie.server")


def listen(config: ServerConfig) -> socket.socket:
    """Binds a socket to server.host and server.port (0: any free port). Raises ConfigError with the cause."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen()
    except OSError as error:
        listener.close()
        where = f"{config.host}:{config.port}"
        if error.errno == errno.EADDRINUSE:
            message = f"port {config.port} is busy ({where}); choose another with server.port=N, or end what holds it"
            raise ConfigError(message, param="server.port", code="port_busy") from None
        raise ConfigError(f"cannot listen on {where}: {error}", param="server.host") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL for clients on this machine; the loopback address if it listens on all addresses."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    config: Config,
    *,
    listener: socket.socket,
    address: str,
    folder: Path,
    scheduler_alive: Callable[[], bool],
    announce: Callable[[Ready, str], None] | None = None,
    promise: Promise | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Serves until a signal or the scheduler's death; returns exit code 0 after a drain, 1 if the engine died.

    `address` is an address of contracts.wire (this end binds it); `folder` holds tokenizer.json; `scheduler_alive` is
    called five times a second; `announce` is called once, with the scheduler's Ready and the URL, when the server
    accepts requests; `promise` is what the head's card promises; `stopped` says whether a signal came before this
    function handled signals. Raises ConfigError for a tokenizer or a template that cannot be served.
    """
    _allow_descriptors(config.server.max_connections)
    tokenizer = Tokenizer.served(folder, config.server)

    async def main() -> int:
        service = build_service(config, tokenizer, Engine(address, scheduler_alive), promise)
        return await _Run(service, listener, announce, stopped).until_the_end()

    try:
        with asyncio.Runner(loop_factory=_uvicorn_config(None, config).get_loop_factory()) as runner:
            return runner.run(main())
    finally:
        tokenizer.close()
        listener.close()


def _allow_descriptors(connections: int) -> None:
    """Raises the soft limit of file descriptors, often 1024, to cover `connections` and the process's own files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Run:
    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        announce: Callable[[Ready, str], None] | None,
        stopped: Callable[[], bool],
    ) -> None:
        self._service = service
        self._listener = listener
        self._announce = announce
        self._stopped = stopped
        self._signals = 0
        self._signaled = asyncio.Event()
        self._server = _Server(_uvicorn_config(create_app(service), service.config))

    async def until_the_end(self) -> int:
        engine = self._service.engine
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self._on_signal)
        if self._stopped():
            self._on_signal()
        await engine.start()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        announcing = asyncio.create_task(self._announce_ready())
        endings = [asyncio.create_task(self._signaled.wait()), asyncio.create_task(engine.died.wait())]
        try:
            await asyncio.wait([serving, *endings], return_when=asyncio.FIRST_COMPLETED)
            if engine.death is None:
                await self._drain()
            await self._part()
            await serving
        finally:
            for task in (announcing, *endings):
                task.cancel()
            await engine.close()
            self._service.grammars.close()
            if self._service.tracing is not None:
                self._service.tracing.close()
        return 0 if engine.death is None else 1

    def _on_signal(self) -> None:
        self._signals += 1
        self._signaled.set()

    async def _announce_ready(self) -> None:
        await self._service.engine.became_ready.wait()
        if self._announce is not None and self._service.engine.ready is not None:
            self._announce(self._service.engine.ready, url_of(self._listener))

    async def _drain(self) -> None:
        """Rejects new requests and waits for running ones, for drain_seconds or until a second signal."""
        admission, engine = self._service.admission, self._service.engine
        admission.draining = True
        seconds = self._service.config.server.drain_seconds
        logger.info("draining: %d requests run, at most %g s are left to them", admission.taken, seconds)
        end = time.monotonic() + seconds
        while admission.taken and time.monotonic() < end and self._signals < 2 and engine.death is None:
            await asyncio.sleep(LOOK_SECONDS)
        if admission.taken and engine.death is None:
            logger.info("%d requests are ended early", admission.taken)
            engine.fail_all(Overloaded("the server is shutting down; the answer is not complete", code="draining"))

    async def _part(self) -> None:
        """Sends the last events, drops connections that do not read them, and stops uvicorn."""
        if self._service.engine.death is not None:
            logger.error("%s", self._service.engine.death.message)
        end = time.monotonic() + FAREWELL_SECONDS
        while self._service.admission.taken and time.monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS)
        self._service.cut.set()
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would raise the signal again after a drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: object, config: Config) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=functools.partial(BoundedHttp, settings=config.server),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",  # the composition root logs the phases of a server's life
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=round(config.server.keep_alive_seconds),
        timeout_graceful_shutdown=2,
    )
