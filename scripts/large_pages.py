"""What large pages bring a CPU's lane: plain decoding with and without them, at several numbers of requests.

    python scripts/large_pages.py configs/serve/demo.yaml --json build/large-pages.json

Each lane is a process with memory of its own, and how fast pages of 4 KB are depends on which memory that is. So every
kind has several lanes, all answer the same requests, and in each round they take turns in another order.
"""

import argparse
import os
import random
import statistics
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from aerie.bench.origin import FIXED
from aerie.commands.probe_options import config_of, prompts_of
from aerie.contracts.config import Config
from aerie.contracts.step import Lane
from aerie.lane import make_lane
from aerie.large_pages import LARGE, TUNABLES
from aerie.probe.drive import Run, ask, drive, work_of
from aerie.probe.report import show, write_report

SMALL, BIG = "small", "large"
_LANES = 3
"""Of each kind."""
_REQUESTS = 3
"""Of a round, for each that is open at a time."""
_TEMPERATURE, _TOKENS = 0.8, 128
Lanes = dict[tuple[str, int], Lane]
"""By the kind of their pages and a number."""
Cell = dict[str, Any]


def config_for(target: str, rows: int) -> Config:
    return config_of(target, ["spec.head=none", f"scheduler.max_running={rows}"])


def lanes(config: Config, stack: ExitStack) -> Lanes:
    """The kinds in turn, so that neither gets the memory that was left for the last."""
    made: Lanes = {}
    for number in range(_LANES):
        for kind in (SMALL, BIG):
            os.environ[TUNABLES] = f"{LARGE}={int(kind == BIG)}"
            made[kind, number] = stack.enter_context(closing(make_lane(config)))
    del os.environ[TUNABLES]
    return made


def measure(config: Config, rows: int, rounds: int) -> list[Cell]:
    """A cell for each lane. The first round warms up."""
    prompts, count = prompts_of(config, 200), max(_REQUESTS * rows, 8)
    runs: dict[tuple[str, int], list[Run]] = {}
    with ExitStack() as stack:
        made = lanes(config, stack)
        for turn in range(rounds + 1):
            first = turn * count
            asked = [prompts[index % len(prompts)] for index in range(first, first + count)]
            requests = ask(asked, [_TEMPERATURE], max_tokens=_TOKENS)
            for key in random.Random(turn).sample(list(made), len(made)):
                run = drive(made[key], config, requests, concurrency=rows)
                if turn:
                    runs.setdefault(key, []).append(run)
    slow = [run for (kind, _), own in runs.items() if kind == SMALL for run in own]
    return [_cell(rows, *key, runs[key], slow) for key in made]


def _cell(rows: int, kind: str, number: int, runs: list[Run], slow: list[Run]) -> Cell:
    return {
        "rows": rows,
        "pages": kind,
        "lane": number,
        "tokens_per_s": statistics.median(run.tokens_per_s for run in runs),
        "over_small": work_of(runs).speed / work_of(slow).speed,
        "rounds": len(runs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--rows", default="1,8,64", help="requests at a time, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cells = []
    for rows in map(int, given.rows.split(",")):
        cells += measure(config_for(given.target, rows), rows, given.rounds)
    columns = {"rows": "d", "pages": "s", "lane": "d", "tokens_per_s": ".0f", "over_small": ".2f"}
    show("Plain decoding by pages", cells, columns)
    if given.json is not None:
        write_report(given.json, cells, config_for(given.target, 1), ("aerie", *FIXED))
    return 0


if __name__ == "__main__":
    sys.exit(main())
