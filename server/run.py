"""uvicorn, and how it ends: what the composition root calls for the API process.

`listen` first, so that a busy port is known before a model is loaded; then `run`, which returns the exit code.
"""

import errno
import socket
from collections.abc import Callable
from pathlib import Path

from contracts.config import Config, ServerConfig
from contracts.errors import ConfigError
from contracts.messages import Ready


def listen(config: ServerConfig) -> socket.socket:
    """A listening socket on server.host and server.port (0: any free one). Raises ConfigError that names the port."""
    raise NotImplementedError


def run(
    config: Config,
    *,
    listener: socket.socket,
    address: str,
    folder: Path,
    scheduler_alive: Callable[[], bool],
    announce: Callable[[Ready, str], None] | None = None,
) -> int:
    """Serves until a signal or the scheduler's death; the exit code is 0 after a drain and 1 when the engine died.

    `address` is of contracts.wire (this end binds it), `folder` holds tokenizer.json, `scheduler_alive` is asked five
    times a second, `announce` is called once, with the scheduler's Ready and the URL, when requests can come.
    """
    raise NotImplementedError
