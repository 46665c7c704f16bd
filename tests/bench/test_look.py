"""`aerie bench run` looks at its server before the first cell, and keeps each run in a folder of its own."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.bench.cells import read_cells
from aerie.bench.config import SweepError, Target
from aerie.bench.look import look_at
from aerie.bench.targets import free_port
from aerie.commands.app import app
from aerie.contracts.errors import AerieError
from tests.bench.fake_server import Manners, serving


@pytest.fixture
def server() -> Iterator[tuple[Manners, str]]:
    """A fake that serves in a thread of its own, and its URL."""
    manners, began, over = Manners(ttft=0, gap=0), threading.Event(), threading.Event()
    reported: list[str] = []

    async def serve() -> None:
        async with serving(manners) as url:
            reported.append(url)
            began.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    began.wait()
    yield manners, reported[0]
    over.set()
    thread.join()


def target(url: str, **given: object) -> Target:
    return Target.model_validate({"name": "server", "url": url, **given})


def test_a_good_server_gets_one_tiny_request(server: tuple[Manners, str]) -> None:
    manners, url = server
    fields = {"ignore_eos": True, "min_tokens": 64, "max_tokens": 64}
    assert look_at(target(f"{url}/v1", fields=fields), 0.5) == "fake"
    [body] = manners.bodies
    assert body["max_tokens"] == 1 and "min_tokens" not in body
    assert (body["ignore_eos"], body["temperature"], body["stream"]) == (True, 0.5, True)


def test_nobody_at_the_address_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(app, ["bench", "run", "--url", where])
    assert isinstance(done.exception, AerieError)
    assert f"nothing answers at http://{where}/v1/models: " in str(done.exception)
    assert "--url" in str(done.exception) and not os.listdir(tmp_path)


def test_what_the_server_refuses_is_said_with_what_it_serves(server: tuple[Manners, str]) -> None:
    manners, url = server
    manners.status = 404
    with pytest.raises(SweepError, match=r"one token: .*answers 404: .*; it serves fake, and other was asked for"):
        look_at(target(url, model="other"))
    manners.status = 401
    with pytest.raises(SweepError, match=r"wants another API key \(401\); give --api-key or AERIE_API_KEY"):
        look_at(target(url))


def test_an_error_in_the_stream_is_one(server: tuple[Manners, str]) -> None:
    manners, url = server
    manners.error_after = 0
    with pytest.raises(SweepError, match=r"one token: .*gone"):
        look_at(target(url))


def test_a_page_that_is_no_api_is_told_apart(server: tuple[Manners, str]) -> None:
    with pytest.raises(SweepError, match="answers 404"):
        look_at(target(f"{server[1]}/elsewhere"))


def test_each_run_has_a_folder_of_its_own(
    server: tuple[Manners, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same second for both, and other options, which one folder would refuse."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "2026-01-02-030405")
    for count in ("2", "3"):
        words = ["bench", "run", "--url", server[1], "--concurrency", "1", "--requests", count, "--max-tokens", "4"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    folders = sorted(Path("build/bench").iterdir())
    assert [folder.name for folder in folders] == ["2026-01-02-030405", "2026-01-02-030405-2"]
    assert all(read_cells(folder) for folder in folders)
