"""Whether `aerie bench run` and an independent load generator, aiperf, measure the same on the same server.

Called by `make agreement`. Both send the same bodies in the same order at the same concurrency, in turn (A B, B A);
each figure is what the tool itself reports. A server does not run equally fast twice, least beside a tool that takes
cores from it, so each figure is first divided by what the server's own log says of the very same requests. Prints all
four and the ratio over the pairs of runs, and ends with code 1 where a ratio is further than `LIMIT` from 1; TTFT has a
slack of a millisecond besides. A server met at --url shows no log: its tools are compared as they are.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from aerie.bench.config import SweepError, Target  # noqa: E402  the repository is not always installed where this runs
from aerie.bench.loads.workloads import find  # noqa: E402
from aerie.bench.targets import Server  # noqa: E402

LIMIT = 0.05
AIPERF = HOME / "build/aiperf/bin/aiperf"
ROUNDS = 25
"""Requests per slot. aiperf's throughput includes the ragged end of a run, ours does not; this many leave a few per
cent of it.

Odd, so that a single slot has a middle request: ours takes it, aiperf would take the mean of two.
"""
TTFT_SLACK = 1.0
"""Milliseconds by which TTFT may differ, whatever the ratio: two event loops see it that far apart."""
FIGURES = ("TPOT p50 (ms)", "TTFT p50 (ms)", "E2E p50 (ms)", "tokens/s")
LOG_SECONDS = 10.0
"""The last log line of a run may come this much later than its answer."""
Figures = dict[str, float]
Run = tuple[Figures, Figures]
"""A tool's figures, and the server's figures for the same requests."""


class NoAgreement(Exception):
    """Why the two could not be compared, and what to do."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; by default one is started")
    parser.add_argument("--command", default="aerie serve configs/serve/demo.yaml server.port={port}")
    parser.add_argument(
        "--tokenizer", default="models/demo/target", help="a folder; aiperf asks for one and counts by usage"
    )
    parser.add_argument("--concurrency", default="1,4", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="requests for each place")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each tool at each concurrency")
    parser.add_argument("--max-tokens", type=int, default=400, help="of an answer; short ones arrive at once")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def bodies(model: str, count: int, max_tokens: int) -> list[dict[str, Any]]:
    """As `aerie bench run` sends them; answers run to `max_tokens`, so that both runs have the same work."""
    talks = [talk for talk in find("demo").conversations(2 * count, max_tokens=max_tokens) if not talk.fields][:count]
    fixed = {"model": model, "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return [
        {"messages": [{"role": "user", "content": talk.turns[0]}], "seed": number, **fixed, **stream}
        for number, talk in enumerate(talks)
    ]


def ours(url: str, sent: list[dict[str, Any]], places: int, folder: Path) -> Figures:
    """Figures by `aerie bench run`. Its warm-up takes the first `places` of the bodies."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"messages": body["messages"]}) + "\n" for body in sent))
    words = [sys.executable, "-m", "aerie", "bench", "run", "--url", url, "--workload", str(prompts)]
    words += ["--concurrency", str(places), "--requests", str(len(sent) - places), "--out", str(folder / "run")]
    words += ["--max-tokens", str(sent[0]["max_tokens"]), "--model", sent[0]["model"]]
    _run([*words, "--fields", json.dumps({"ignore_eos": True})], "aerie bench run")
    cell = json.loads((folder / "run/cells.jsonl").read_text().splitlines()[-1])
    return figures_of_cell(cell)


def theirs(url: str, sent: list[dict[str, Any]], places: int, folder: Path, tokenizer: str) -> Figures:
    payload = folder / "bodies.jsonl"
    payload.write_text("".join(json.dumps(body) + "\n" for body in sent))
    words = [str(AIPERF), "profile", "-m", sent[0]["model"], "--url", url, "--endpoint-type", "chat", "--streaming"]
    words += ["--custom-dataset-type", "raw-payload", "--input-file", str(payload)]
    words += ["--dataset-sampling-strategy", "sequential", "--concurrency", str(places)]
    words += ["--warmup-request-count", str(places), "--request-count", str(len(sent) - places)]
    words += ["--use-server-token-count", "--tokenizer", tokenizer, "--ui", "none", "--workers-max", "1"]
    words += ["--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(folder / "aiperf")]
    _run(words, "aiperf")
    return figures_of_export(json.loads((folder / "aiperf/profile_export_aiperf.json").read_text()))


def figures_of_cell(cell: dict[str, Any]) -> Figures:
    if cell["status"] != "ok" or cell["failed"]:
        raise NoAgreement(f"aerie bench run had failures: {cell.get('reason') or cell['errors']}")
    times = [cell[name]["p50"] * 1e3 for name in ("tpot", "ttft", "e2e")]
    return dict(zip(FIGURES, [*times, cell["output_tokens_per_s"]], strict=True))


def figures_of_export(figures_read: dict[str, Any]) -> Figures:
    """aiperf's inter token latency is (latency - TTFT) / (tokens - 1) of a request: our TPOT."""
    if figures_read.get("error_summary"):
        raise NoAgreement(f"aiperf had failures: {figures_read['error_summary']}")
    times = [figures_read[name]["p50"] for name in ("inter_token_latency", "time_to_first_token", "request_latency")]
    return dict(zip(FIGURES, [*times, figures_read["output_token_throughput"]["avg"]], strict=True))


class Witness:
    """The log of an Aerie server, which times every request itself."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0

    def figures(self, count: int, warm_up: int) -> Figures:
        """Figures of the next `count` requests without the first `warm_up`. Their seeds are their numbers; a request
        with another seed is a tool's own look at the server.
        """
        deadline = time.monotonic() + LOG_SECONDS
        while len(lines := [line for line in self._lines()[self._read :] if line["seed"] < count]) < count:
            if time.monotonic() > deadline:
                raise NoAgreement(f"the server's log has {len(lines)} requests of {count}: is it Aerie's?")
            time.sleep(0.1)
        self._read = len(self._lines())
        return figures_of_log([line for line in lines if line["seed"] >= warm_up])

    def _lines(self) -> list[dict[str, Any]]:
        logged = self._log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in logged if line.startswith('{"event": "request"')]


def figures_of_log(lines: Sequence[dict[str, Any]]) -> Figures:
    """Figures by the definitions of the tools, on the server's clock."""
    tokens = [sum(line["completion_tokens"]) for line in lines]
    ends = [datetime.fromisoformat(line["time"]).timestamp() for line in lines]
    span = max(ends) - min(end - line["seconds"] for end, line in zip(ends, lines, strict=True))
    tpot = median(line["decode_seconds"] / (count - 1) for line, count in zip(lines, tokens, strict=True))
    times = [tpot, median(line["first_seconds"] for line in lines), median(line["seconds"] for line in lines)]
    return dict(zip(FIGURES, [*(one * 1e3 for one in times), sum(tokens) / span], strict=True))


def compared(pairs: Sequence[tuple[Run, Run]]) -> dict[str, Figures]:
    """For each figure: the means of both tools, the server's means under each, and the median of the pairs' ratios,
    both as reported by the tools and corrected by the server's figures. Raises NoAgreement if a figure is 0.
    """
    for (a, _), (b, _) in pairs:
        if nothing := [name for name in FIGURES if not a[name] or not b[name]]:
            raise NoAgreement(f"{nothing[0]} is 0: whole answers arrived at once, so raise --max-tokens")
    return {
        name: {
            "aerie": fmean(a[name] for (a, _), _ in pairs),
            "server_under_aerie": fmean(own[name] for (_, own), _ in pairs),
            "aiperf": fmean(b[name] for _, (b, _) in pairs),
            "server_under_aiperf": fmean(own[name] for _, (_, own) in pairs),
            "ratio_as_told": median(a[name] / b[name] for (a, _), (b, _) in pairs),
            "ratio": median((a[name] / x[name]) / (b[name] / y[name]) for (a, x), (b, y) in pairs),
        }
        for name in FIGURES
    }


def agrees(found: dict[str, Figures]) -> bool:
    first = found["TTFT p50 (ms)"]
    late = (first["aerie"] - first["server_under_aerie"]) - (first["aiperf"] - first["server_under_aiperf"])
    close = abs(late) <= TTFT_SLACK
    return all(abs(figure["ratio"] - 1) <= LIMIT or (figure is first and close) for figure in found.values())


def measure(chosen: argparse.Namespace, server: Server, witness: Witness | None) -> dict[int, dict[str, Figures]]:
    """What was found by requests at once."""
    model = server.endpoint(0.0).model
    found = {}
    for places in map(int, chosen.concurrency.split(",")):
        sent = bodies(model, places * (chosen.rounds + 1), chosen.max_tokens)
        pairs = []
        for repeat in range(-1, chosen.repeats):  # the first pair fills the server's prefix cache and does not count
            with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
                tools = (ours, lambda *given: theirs(*given, chosen.tokenizer))
                given = (server.url, sent, places, Path(folder))
                first = repeat % 2
                results = {}
                for tool in (first, 1 - first):
                    figures_read = tools[tool](*given)
                    results[tool] = (
                        figures_read,
                        witness.figures(len(sent), places) if witness else dict.fromkeys(figures_read, 1.0),
                    )
            if repeat >= 0:
                pairs.append((results[0], results[1]))
        found[places] = compared(pairs)
        show(places, found[places])
    return found


def cells(found: dict[int, dict[str, Figures]]) -> list[dict[str, str | float]]:
    return [
        {"concurrency": places, "figure": name, **figures}
        for places, by_name in found.items()
        for name, figures in by_name.items()
    ]


def show(places: int, found: dict[str, Figures]) -> None:
    print(f"{f'concurrency {places}':<18}{'aerie':>10}{'(server)':>10}{'aiperf':>10}{'(server)':>10}{'ratio':>8}")
    for name, figure in found.items():
        figures_read = (figure[key] for key in ("aerie", "server_under_aerie", "aiperf", "server_under_aiperf"))
        print(f"{name:<18}{''.join(f'{value:>10.2f}' for value in figures_read)}{figure['ratio']:>8.3f}", flush=True)


def _run(words: list[str], name: str) -> None:
    done = subprocess.run(words, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise NoAgreement(f"{name} ended with code {done.returncode}:\n{done.stdout[-2000:]}")


def main() -> int:
    chosen = options()
    try:
        if not AIPERF.exists():
            raise NoAgreement(f"no {AIPERF.relative_to(HOME)}; `make agreement` installs it")
        target = Target(name="server", url=chosen.url, command=None if chosen.url else chosen.command)
        with tempfile.TemporaryDirectory(prefix="agreement-") as logs, Server(target, Path(logs)) as server:
            witness = None if chosen.url else Witness(Path(logs) / "server.log")
            found = measure(chosen, server, witness)
            origin, described = server.provenance(), server.describe()
    except (NoAgreement, SweepError) as error:
        print(f"agreement: {error}", file=sys.stderr)
        return 2
    good = all(map(agrees, found.values()))
    if chosen.json:
        version = subprocess.run([AIPERF, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        about = {"limit": LIMIT, "agrees": good, "aiperf": version, "rounds": chosen.rounds, "repeats": chosen.repeats}
        about |= {"max_tokens": chosen.max_tokens, "server": described, "cells": cells(found), "provenance": origin}
        chosen.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"{'agree' if good else 'do NOT agree'} within {LIMIT:.0%}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
