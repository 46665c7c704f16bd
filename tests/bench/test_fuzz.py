"""Hostile requests: a server that stands them, and what counts as a fault of one that does not."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from aerie.bench.config import SweepError, Target
from aerie.bench.fuzz import GROWTH_MIB, Outcome, fuzz, fuzz_server, resident_mib
from aerie.bench.loads.hostile import Hostile
from aerie.bench.targets import Server
from aerie.commands.app import app

DEMO = f"{sys.executable} -m aerie serve configs/serve/demo.yaml"
NAMED = {"error": {"message": "no", "param": "tools[0].function.name"}}
MANNERS = {
    "answers": (200, '{"choices": []}', 0),
    "refuses by field": (400, json.dumps(NAMED), 0),
    "refuses without a field": (400, '{"error": {"message": "no", "param": null}}', 30),
    "fails": (500, "oh", 30),
    "fails in a stream": (200, 'data: {"error":{"message":"oh"}}', 30),
    "is overloaded": (503, json.dumps(NAMED), 30),
}


@asynccontextmanager
async def answering(status: int, text: str) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=200 if request.path == "/health" else status, text=text)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("manner", MANNERS)
async def test_what_is_no_answer_and_names_no_field_is_a_fault(manner: str) -> None:
    status, text, faulty = MANNERS[manner]
    async with answering(status, text) as url:
        outcome = await fuzz(url, "tools", 30, 0, lambda: 100.0)
    assert (outcome.requests, outcome.faulty, outcome.good) == (30, faulty, not faulty)
    assert outcome.answered + outcome.refused + outcome.faulty == 30
    assert bool(outcome.faults) == bool(faulty)
    if manner == "refuses by field":
        assert outcome.params == {"tools": 30}


async def test_a_server_that_is_gone_is_a_fault() -> None:
    async with answering(200, "{}") as url:
        pass
    outcome = await fuzz(url, "schemas", 10, 0, lambda: None)
    assert outcome.faulty >= 10 and not outcome.good


def test_memory_that_grows_is_no_good() -> None:
    assert Outcome(resident_mib=[500.0, 500.0 + GROWTH_MIB, 480.0]).good
    assert not Outcome(resident_mib=[500.0, 501.0 + GROWTH_MIB, 480.0]).good


@pytest.mark.parametrize("kind", ["schemas", "tools"])
def test_a_seed_makes_the_same_bodies(kind: str) -> None:
    first, second, other = (Hostile(seed).make[kind] for seed in (3, 3, 4))
    assert [first() for _ in range(50)] == [second() for _ in range(50)] != [other() for _ in range(50)]


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="there are no hostile 'prompts'; known are schemas, tools"):
        fuzz_server("prompts", "true {port}", 10, 0, tmp_path)


@pytest.mark.parametrize("faults", [[], ["500 oh"]])
def test_what_came_of_them_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[str]) -> None:
    outcome = Outcome(requests=10, refused=10, faults=faults, faulty=len(faults), resident_mib=[5.0])
    outcome.params["tools"] += 10
    monkeypatch.setattr("aerie.bench.fuzz.fuzz_server", lambda *_: (outcome, {"commit": "c"}))
    file = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["bench", "fuzz", "tools", "--json", str(file)])
    assert done.exit_code == len(faults) and "10 refused by field" in done.output, done.output
    written = json.loads(file.read_text())
    assert written["provenance"] == {"commit": "c"}
    assert (written["cells"][0]["params"], written["cells"][0]["kind"]) == ({"tools": 10}, "tools")


def test_the_demo_server_stands_them(tmp_path: Path) -> None:
    """Few of them here; `aerie bench fuzz` sends 10,000."""
    with Server(Target(name="demo", command=DEMO + " server.port={port}"), tmp_path) as server:
        assert server.group is not None
        for kind in ("schemas", "tools"):
            outcome = asyncio.run(fuzz(server.url, kind, 120, 1, lambda: resident_mib(server.group or 0)))
            assert outcome.good, (outcome.faults, outcome.resident_mib)
            assert outcome.answered > 20 and outcome.refused > 20, outcome
            assert len(outcome.resident_mib) == 10 and outcome.resident_mib[0] > 50
