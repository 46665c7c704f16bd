"""Other people's clients against a whole `aerie serve` of the demo pair, on loopback. Run by `make test-clients`.

The prompts name neither schemas nor how to write them, as the demo model was taught to expect: what it answers is only
right because grammars make it so. Shapes are small, since it would fill an unbounded text up to the limit.
"""

import os
import socket
from collections.abc import Iterator
from typing import Any, Literal

os.environ |= {
    "OPENAI_API_KEY": "none",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
}

import pytest
from pydantic import BaseModel, ConfigDict

from tests.e2e.conftest import Server
from tests.house import HOME

MODEL = "aerie-demo"
MOST = 256
"""Tokens that end any of these answers, though every part may stand on a line of its own, indented by 20 spaces."""
QUESTION = "Is the sky blue here, or there?"
PATCHED = socket.socket.connect


class Answer(BaseModel):
    """Bounded, so that any model ends it."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green", "blue"]
    sure: bool


Place = Literal["here", "there"]
LOOK_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"type": "string", "enum": ["here", "there"]}},
    "required": ["place"],
    "additionalProperties": False,
}


class Served(Server):
    """The server runs in the environment of `make setup`; this one holds clients only."""

    python = str(HOME / ".venv/bin/python")


@pytest.fixture(scope="session", autouse=True)
def only_loopback() -> Iterator[None]:
    """No client may call home."""

    def connect(self: socket.socket, address: Any) -> None:
        home = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost")
        assert home, f"a client connects to {address}"
        PATCHED(self, address)

    socket.socket.connect = connect  # type: ignore[method-assign, assignment]
    yield
    socket.socket.connect = PATCHED  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Served("server.reasoning_parser=none") as running:  # else the demo model may think up to the limit
        yield running
        assert running.end() == 0, running.output


@pytest.fixture(scope="session")
def url(server: Server) -> str:
    return f"{server.url}/v1"
