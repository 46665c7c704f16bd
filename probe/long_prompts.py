"""`aerie probe long-prompts`: whether a short request waits during the prefill of a long prompt.

Runs the same short requests once alone and once beside long prompts, of which one is always in prefill. They share only
the lane: chunked prefill decides how long a short request waits for it.
"""

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from aerie.bench.measured import percentiles
from aerie.contracts.config import Config
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import SamplingParams
from aerie.probe.drive import MakeLane, Prompts, Run, ask, drive, planner_of

CONCURRENCY = 4
_LOWEST_ID = 8
"""Lower ids may be special; a random prompt avoids them."""


def measure_long_prompts(
    config: Config,
    prompts: Prompts,
    make_lane: MakeLane,
    *,
    rounds: int = 3,
    requests: int = 200,
    max_tokens: int = 8,
    length: int | None = None,
) -> list[dict[str, Any]]:
    """Cells `quiet` and `beside a long prompt`, each over `rounds` interleaved runs of `requests` short requests.

    `length` is a long prompt's tokens: by default all that the model takes. Times are seconds.
    """
    asked = [prompts[index % len(prompts)] for index in range(requests)]
    runs: dict[str, list[Run]] = {"quiet": [], "beside a long prompt": []}
    with closing(make_lane(config)) as lane:
        capacity = lane.capacity
        tokens = min(length or capacity.max_length, capacity.max_length) - 1
        planner, first = planner_of(lane, config), ask(asked[:CONCURRENCY], [0.0], max_tokens=max_tokens)
        drive(lane, config, first, concurrency=CONCURRENCY, planner=planner)
        for number in range(rounds):
            for name, kept in runs.items():
                beside = () if name == "quiet" else _long(tokens, capacity.vocabulary, seed=number)
                short = ask(asked, [0.0], max_tokens=max_tokens)
                kept.append(drive(lane, config, short, concurrency=CONCURRENCY, beside=beside, planner=planner))
    cells = [_cell(name, kept, tokens) for name, kept in runs.items()]
    for cell in cells:
        cell["over_quiet"] = cell["ttft_p99"] / cells[0]["ttft_p99"] if cell["ttft_p99"] else None
    return cells


def _long(tokens: int, vocabulary: int, *, seed: int) -> Iterator[Generate]:
    """Endless requests without common prefixes; each has a long prompt and is answered with one token."""
    chosen = random.Random(seed)
    for number in itertools.count():
        prompt = [chosen.randrange(_LOWEST_ID, vocabulary) for _ in range(tokens)]
        yield Generate(id=f"long-{number}", prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=1))


def _cell(name: str, runs: Sequence[Run], tokens: int) -> dict[str, Any]:
    waits = [[answer.ttft for answer in run.answers] for run in runs]
    tails = [tail for wait in waits if (tail := (percentiles(wait) or {}).get("p99"))]
    return {
        "load": name,
        "long_prompt_tokens": 0 if name == "quiet" else tokens,
        "long_prompts_read": sum(run.beside for run in runs),
        "requests": sum(len(wait) for wait in waits),
        "ttft_p50": statistics.median(itertools.chain.from_iterable(waits)),
        "ttft_p99": statistics.median(tails) if tails else None,
        "ttft_p99_of_runs": tails,
        "tokens_per_s": statistics.median(run.tokens_per_s for run in runs),
    }
