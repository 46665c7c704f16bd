"""Whole sweeps: resumed after a kill, kept apart, and going on when a server dies."""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.bench.cells import Cell, planned, read_cells
from aerie.bench.config import SweepError, load_sweep, parse_sweep
from aerie.bench.reports.report import write_report
from aerie.bench.sweep import run_sweep
from aerie.bench.targets import free_port
from aerie.commands.app import app
from aerie.contracts.errors import AerieError
from tests.bench.fake_server import Manners, serving
from tests.bench.test_counters import SCRAPE
from tests.house import HOME
from tests.patience import PATIENCE, end_of, quickest


@pytest.fixture
def servers() -> Iterator[tuple[dict[str, Manners], dict[str, str]]]:
    """Two fake servers in a thread of their own; by name, their manners and their URLs."""
    manners = {"slow": Manners(ttft=0.02, gap=0.02), "fast": Manners(ttft=0.02, gap=0.01, drafted=True)}
    urls: dict[str, str] = {}
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with serving(manners["slow"]) as slow, serving(manners["fast"]) as fast:
            urls.update(slow=slow, fast=fast)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(PATIENCE)
    yield manners, urls
    loop.call_soon_threadsafe(stop.set)
    thread.join(PATIENCE)
    loop.close()


def sweep_of(urls: dict[str, str], **more):
    targets = [{"name": name, "url": url} for name, url in urls.items()]
    small = {"load": {"concurrency": [1, 2]}, "requests": 4, "rounds": 2, "repeats": 2, "max_tokens": 8}
    return parse_sweep({"targets": targets} | small | more, "test")


def run(sweep, out: Path, seen: list[Cell] | None = None) -> list[str]:
    said: list[str] = []

    def watch(cell: Cell, count: int):
        if seen is not None:
            seen.append(cell)
        return lambda ended: None

    run_sweep(sweep, out, watch, said.append)
    return said


def test_targets_alternate_and_the_first_changes_from_repeat_to_repeat() -> None:
    cells = planned(sweep_of({"a": "http://x", "b": "http://y"}))
    assert [cell.target for cell in cells] == ["a", "b", "a", "b", "b", "a", "b", "a"]
    alone = planned(sweep_of({"a": "http://x", "b": "http://y"}, together=False))
    assert [cell.target for cell in alone] == ["a", "a", "b", "b", "b", "b", "a", "a"]


def test_a_sweep_makes_its_cells_tables_and_pictures(servers, tmp_path: Path) -> None:
    _, urls = servers

    def slowness() -> float:
        """The inverse of the speed-up that a sweep finds."""
        out = Path(tempfile.mkdtemp(dir=tmp_path))
        run(sweep_of(urls, latency_targets={"ttft": 1.0}), out)
        _check_cells_and_pictures(out, urls)
        report = (out / "report.md").read_text()
        fast = next(line for line in report.splitlines() if line.startswith("| 1 | fast"))
        values = dict(zip([c.strip() for c in _head(report)], [c.strip() for c in fast.split("|")[1:-1]], strict=True))
        assert float(values["acceptance length"].split()[0]) == 3.0 and "±" in values["tokens/s"]
        return 1 / float(values["speed-up"].split()[0])

    assert quickest(slowness, 1) < 1, "its pieces come twice as fast"


def _check_cells_and_pictures(out: Path, urls: dict[str, str]) -> None:
    cells = read_cells(out)
    assert len(cells) == 8 and all(cell["status"] == "ok" for cell in cells)
    first = cells[0]
    assert {"command", "commit", "dirty", "at", "measured", "machine"} <= first["provenance"].keys() and first[
        "server"
    ]["url"] == urls["slow"]
    assert first["joules_per_token"] == "not measured" or first["joules_per_token"] > 0
    names = {path.name for path in write_report(out)}
    assert names == {
        "tpot.png",
        "throughput.png",
        "speedup.png",
        "pareto.png",
        "acceptance.png",
        "report.md",
        "report.html",
    }
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5 and 'src="http' not in page and "<link" not in page


def _head(report: str) -> list[str]:
    return next(line for line in report.splitlines() if line.startswith("| concurrency")).split("|")[1:-1]


def test_the_command_shows_what_it_measured_and_fails_where_that_is_nothing(
    servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = servers[1]["fast"].removeprefix("http://")
    load = ["--concurrency", "1", "--requests", "2", "--max-tokens", "4"]
    done = CliRunner().invoke(app, ["bench", "run", "--url", where, *load, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and "tokens/s" in done.output and "report.html" in done.output
    monkeypatch.setattr("aerie.bench.look.look_at", lambda *_: "fake")  # it went away right after
    where = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(app, ["bench", "run", "--url", where, *load, "--out", str(tmp_path / "none")])
    assert done.exit_code == 1 and isinstance(done.exception, AerieError)
    assert "no cell was measured" in str(done.exception)


def test_a_killed_sweep_goes_on_where_it_was(servers, tmp_path: Path) -> None:
    _, urls = servers
    sweep, out, seen = sweep_of(urls), tmp_path / "out", []
    run(sweep, out)
    lines = (out / "cells.jsonl").read_text().splitlines()
    (out / "cells.jsonl").write_text("\n".join([*lines[:5], lines[5][:40]]))
    run(sweep, out, seen)
    assert seen == planned(sweep)[5:]
    assert len(read_cells(out)) == 8


def test_another_sweep_s_folder_is_refused(servers, tmp_path: Path) -> None:
    _, urls = servers
    run(sweep_of(urls, repeats=1), tmp_path / "out")
    with pytest.raises(SweepError, match="holds another sweep"):
        run(sweep_of(urls, repeats=1, max_tokens=9), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("x")
    with pytest.raises(SweepError, match="not empty and holds no sweep"):
        run(sweep_of(urls), tmp_path / "mine")


def test_a_server_that_dies_fails_its_cells_and_no_others(servers, tmp_path: Path) -> None:
    manners, urls = servers
    manners["slow"].status = 500
    seen: list[Cell] = []
    run(sweep_of(urls, repeats=1), tmp_path / "out", seen)
    by_target = {(cell["target"], cell["status"]) for cell in read_cells(tmp_path / "out")}
    assert by_target == {("slow", "failed"), ("fast", "ok")} and len(seen) == 4
    assert "slow (1 failed)" in _report(tmp_path / "out") and "all requests failed" in _report(tmp_path / "out")


MORTAL = """import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"data": [{"id": "m"}]}')
    def do_POST(self):
        os._exit(9)
open(sys.argv[2], "a").write("started\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def test_a_server_that_dies_under_load_is_started_again_for_the_next_cell(servers, tmp_path: Path) -> None:
    _, urls = servers
    (tmp_path / "mortal.py").write_text(MORTAL)
    command = f"{sys.executable} {tmp_path / 'mortal.py'} {{port}} {tmp_path / 'starts'}"
    targets = [{"name": "mortal", "command": command}, {"name": "fast", "url": urls["fast"]}]
    said = run(sweep_of({}, targets=targets, repeats=1), tmp_path / "out")
    cells = [(cell["target"], cell["load"], cell["status"]) for cell in read_cells(tmp_path / "out")]
    assert cells == [("mortal", 1, "failed"), ("fast", 1, "ok"), ("mortal", 2, "failed"), ("fast", 2, "ok")]
    assert (tmp_path / "starts").read_text().count("started") == 2 and "mortal has ended; it is started again" in said
    assert "the server died under load" in _report(tmp_path / "out")


@pytest.mark.parametrize("scrape", [None, SCRAPE])
def test_metrics_are_a_second_witness_of_acceptance(scrape: str | None, servers, tmp_path: Path) -> None:
    manners, urls = servers
    manners["fast"].metrics = manners["slow"].metrics = scrape
    run(sweep_of(urls, repeats=1, load={"concurrency": [1]}), tmp_path / "out")
    reported = {cell["metrics"] for cell in read_cells(tmp_path / "out")}
    assert len(reported) == 1 and ("404" if scrape is None else "nothing was drafted") in reported.pop()


def test_a_target_that_cannot_start_says_where_its_log_is(servers, tmp_path: Path) -> None:
    _, urls = servers
    broken = {"name": "broken", "command": f"{sys.executable} -c 'raise SystemExit(3)' {{port}}"}
    sweep = parse_sweep(
        {"targets": [broken, {"name": "fast", "url": urls["fast"]}], "load": {"concurrency": [1]}, "requests": 2},
        "test",
    )
    said = run(sweep, tmp_path / "out")
    assert "broken ended while it started" in said[0] and "broken.log" in said[0]
    assert {(cell["target"], cell["status"]) for cell in read_cells(tmp_path / "out")} == {
        ("broken", "failed"),
        ("fast", "ok"),
    }


def _report(out: Path) -> str:
    write_report(out)
    return (out / "report.md").read_text()


def test_a_started_target_is_stopped_with_its_children(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "import http.server, os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[2], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        '        self.send_response(200); self.end_headers(); self.wfile.write(b\'{"data": [{"id": "m"}]}\')\n'
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()\n"
    )
    from aerie.bench.config import Target
    from aerie.bench.targets import Server

    target = Target(name="own", command=f"{sys.executable} {script} {{port}} {tmp_path / 'pids'}")
    with Server(target, tmp_path / "logs") as server:
        assert server.endpoint(0.0).model == "m" and server.alive
        pids = (tmp_path / "pids").read_text().split()
    end_of(*map(int, pids))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"targets": []}, "targets"),
        ({"load": {}}, "load needs concurrency or rate"),
        ({"targets": [{"name": "a"}]}, "either url or command"),
        ({"targets": [{"name": "a", "command": "x"}]}, "must hold {port}"),
        ({"lod": {}}, "lod"),
        ({"workloads": ["chess"]}, "unknown workload 'chess'"),
    ],
)
def test_a_wrong_sweep_is_named(change: dict, said: str, tmp_path: Path) -> None:
    good = {"targets": [{"name": "a", "url": "http://127.0.0.1:9"}], "load": {"concurrency": [1]}}
    (tmp_path / "sweep.yaml").write_text(json.dumps(good | change))
    done = CliRunner().invoke(app, ["bench", "sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, AerieError) and said in str(done.exception)


def test_the_port_of_a_server_to_start_is_none_that_the_kernel_gives_to_connections() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 32_768
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40 and all(10_000 <= port < max(first, 10_100) for port in ports)


def test_shipped_sweeps_load() -> None:
    for path in sorted((HOME / "configs/sweep").glob("*.yaml")):
        assert load_sweep(path).targets
