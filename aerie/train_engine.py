"""What the training pipeline uses from serving: the target behind a URL, and heads measured in the real engine."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from aerie.contracts.config import Config, load_config
from aerie.contracts.errors import AerieError
from aerie.lane import make_lane
from aerie.resolve import with_local_model
from aerie.train.pipeline.config import PipelineConfig

_HOST = "127.0.0.1"
_START_SECONDS = 600.0
_STOP_SECONDS = 30.0
_REPLY_SECONDS = 5.0


def served_target(config: PipelineConfig) -> AbstractContextManager[str]:
    """Serves the target without a head; yields the base URL of its API."""
    threads = f"engine.threads={config.features.threads}"
    return served([config.target, "spec.head=none", *_template(config), threads, *config.evaluate.settings])


@contextlib.contextmanager
def served(words: list[str]) -> Iterator[str]:
    """Runs `aerie serve` with these words on a free port of this machine; yields the base URL of its API.

    Raises AerieError with the server's output if it does not start.
    """
    port = _free_port()
    own = [f"server.host={_HOST}", f"server.port={port}", "server.log_requests=false"]
    command = [sys.executable, "-m", "aerie", "serve", *words, *own]
    with tempfile.TemporaryFile("w+") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "500"})
        try:
            _wait_ready(server, port, output)
            yield f"http://{_HOST}:{port}/v1"
        finally:
            server.terminate()
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _free_port() -> int:
    """A port that nobody listens on; the server takes it a moment later."""
    with socket.socket() as one:
        one.bind((_HOST, 0))
        return int(one.getsockname()[1])


def _wait_ready(server: subprocess.Popen[bytes], port: int, output: Any) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _ready(port):
        if server.poll() is not None or time.monotonic() > deadline:
            output.seek(0)
            raise AerieError(f"the target could not be served (aerie serve):\n{output.read()[-2000:]}")
        time.sleep(0.1)


def _ready(port: int) -> bool:
    """Whether GET /ready answers 200; until then the server refuses the connection or answers 503."""
    with closing(HTTPConnection(_HOST, port, timeout=_REPLY_SECONDS)) as connection:
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False


def measure_head(config: PipelineConfig, head: Path, prompts: dict[str, list[list[int]]]) -> Iterator[dict[str, Any]]:
    """Yields one cell per task, shape and temperature of the config, on the scheduler and engine of the server."""
    from aerie.probe.acceptance import CONCURRENCY, accepted
    from aerie.probe.shapes import for_lane, parse_shape
    from aerie.probe.tasks import counts_by_place

    stage = config.evaluate
    shapes = {text: parse_shape(text) for text in stage.shapes}
    served = for_lane(served_pair(config, head), list(shapes.values()), rows=CONCURRENCY)
    with closing(make_lane(served)) as lane:
        for task, ids in prompts.items():
            for text, shape in shapes.items():
                for temperature in stage.temperatures:
                    run = accepted(lane, served, shape, ids, temperature, stage.max_tokens)
                    yield {
                        "task": task,
                        "shape": text,
                        "temperature": temperature,
                        "prompts": len(ids),
                        "tokens": sum(map(len, run.tokens)),
                        "acceptance_length": round(run.acceptance_length, 4),
                        "acceptance_per_position": [round(share, 4) for share in run.acceptance_per_position],
                        "by_place": {place: list(counts) for place, counts in counts_by_place(run.answers).items()},
                        "by_answer": [list(one) for one in zip(run.steps, run.decoded, strict=True)],
                    }


def served_pair(config: PipelineConfig, head: Path | None) -> Config:
    """The config that serves the target with this head, or without one."""
    words = [f"model.path={config.target}", f"spec.head={head or 'none'}", "engine.lane=inline", *_template(config)]
    return with_local_model(load_config(None, [*words, *config.evaluate.settings]))


def _template(config: PipelineConfig) -> list[str]:
    return [] if config.template is None else [f"server.chat_template={config.template}"]
