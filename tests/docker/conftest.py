"""A real server that has answered a few requests, and the option that asks for images."""

import re
import shutil
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import QUESTION, Server
from tests.house import HOME
from tests.patience import PATIENCE

DOCKER = HOME / "docker"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--image", action="store_true", help="build and run the CPU image too (make image-test)")


@pytest.fixture(scope="session")
def promtool() -> str:
    return found("promtool", "it comes with Prometheus (Debian: prometheus)")


def found(program: str, hint: str) -> str:
    """The program's path; skips where it is missing."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"no {program} here; {hint}")
    return path


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The demo pair, asked with speculation and without, so that every counter has moved that does in a day's work."""
    with Server("spec.planner=goodput") as running:  # whose panels the dashboard has, too
        ask(running)
        yield running
        assert running.end() == 0, running.output


def ask(server: Server) -> None:
    with server.client() as client:
        for temperature in (0.0, 1.0):
            client.chat.completions.create(model=server.name, messages=QUESTION, max_tokens=24, temperature=temperature)


def scrape(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        return answer.read().decode()


def metric_names(text: str) -> set[str]:
    """Names in an expression that only Aerie or its process could have exported."""
    return set(re.findall(r"\b(?:(?:aerie|vllm):|process_)\w+", text))
