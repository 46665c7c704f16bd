"""`aerie probe gpu-check`: whether a GPU's answers are correct. Run it before any measurement.

attention    every available backend against `reference`, by rows, nodes and lengths
graphs       replayed steps commit the same tokens as eager ones
speculation  plain rows, chains and trees give the same tokens, or margins explain the difference
soak         random arrivals and aborts: every request ends once, and all pages are freed

Uses random weights of a small shape, in fp32 where tokens must be equal. Runs on a CPU too.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from aerie.contracts.config import Config
from aerie.contracts.messages import Abort, Failed, Finished, Generate
from aerie.contracts.sampling import SamplingParams
from aerie.engine.attention import planned_for
from aerie.engine.model.config import read_model_config
from aerie.probe.attention_cases import Backends
from aerie.probe.compare import Grid, compare
from aerie.probe.drive import MakeLane, ask, drive
from aerie.scheduler import Scheduler

Cell = dict[str, Any]
Say = Callable[[str], None]

LENGTHS = (0, 1, 127, 128, 1000, 8000, 32000)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_TEMPERATURES = (0.0, 0.8)


def check_attention(
    config: Config, *, rows: Sequence[int] = (1, 8, 32), nodes: Sequence[int] = (1, 8, 16, 32, 64),
    lengths: Sequence[int] = LENGTHS,
) -> Iterator[Cell]:  # fmt: skip
    """The largest difference of each backend, trees and causal rows, over all cases that fit."""
    backends = Backends(config)
    worst: dict[str, float] = dict.fromkeys((name for name in backends.made if name != "reference"), 0.0)
    cases = 0
    for count in rows:
        for width in nodes:
            for length in lengths:
                if backends.fits(count, length + width):
                    cases += 1
                    for name, difference in _differences(backends, count, width, length):
                        worst[name] = max(worst[name], difference)
    limit = _TOLERANCE[backends.shape.dtype]
    for name, difference in worst.items():
        detail = f"{cases} cases, largest difference {difference:.1e}, limit {limit:.0e}"
        yield _cell(
            "attention", f"{name}, {str(backends.shape.dtype).removeprefix('torch.')}", difference < limit, detail
        )
    for name, reason in backends.missing.items():
        yield _cell("attention", name, None, f"left out: {reason}")


def _differences(backends: Backends, rows: int, nodes: int, length: int) -> Iterator[tuple[str, float]]:
    inputs, pool, query = backends.case(rows, nodes, length)
    reference = backends.made["reference"]
    expected = reference.run(reference.plan(inputs), query, pool, 0).float()
    for name, backend in backends.made.items():
        if name != "reference":
            answer = backend.run(planned_for(backend, inputs), query, pool, 0).float()
            yield name, float((answer - expected).abs().max())


def check_graphs(config: Config, make_lane: MakeLane, *, requests: int = 16, max_tokens: int = 48) -> Iterator[Cell]:
    """Greedy and sampled rows, with graphs and without."""
    answers: dict[bool, list[list[int]]] = {}
    recorded: Any = 0
    for graphs in (True, False):
        own = config.model_copy(update={"engine": config.engine.model_copy(update={"graphs": graphs})})
        with closing(make_lane(own)) as lane:
            if graphs:
                recorded = lane.capacity.report.get("graphs", "a CPU records nothing")
            asked = ask(_prompts(requests, lane.capacity.vocabulary), _TEMPERATURES, max_tokens=max_tokens)
            answers[graphs] = drive(lane, own, asked, concurrency=config.scheduler.max_running).tokens
            if graphs and not isinstance(recorded, int):
                yield _cell("graphs", "tokens", None, f"nothing was recorded: {recorded}")
                return
    same = sum(one == other for one, other in zip(answers[True], answers[False], strict=True))
    yield _cell("graphs", "tokens", same == requests, f"{same} of {requests} requests equal, {recorded} graphs")


def check_speculation(
    config: Config, make_lane: MakeLane, *, dtypes: Sequence[str], requests: int = 8, max_tokens: int = 32
) -> Iterator[Cell]:
    """Compares with plain rows of the same dtype; the margin of the choice must explain any difference. In fp32 too:
    the order of a product's sums depends on how many rows it has.
    """
    prompts = _prompts(requests, read_model_config(Path(config.model.path)).vocabulary)
    loads = 1, min(8, config.scheduler.max_running)
    for dtype in dtypes:  # one after the other, so that what is known is kept where time runs out
        grid = Grid(
            temperatures=_TEMPERATURES, concurrencies=loads, dtypes=(dtype,), synchronous_at=(), max_tokens=max_tokens
        )
        for cell in compare(config, prompts, make_lane, grid):
            passed = cell["unexplained"] == 0
            detail = f"identical {cell['identical']:.3f}, unexplained {cell['unexplained']}"
            name = f"{cell['mode']}, {dtype}, T = {cell['temperature']:g}, {cell['concurrency']} at once"
            yield _cell("speculation", name, passed, detail)


def check_soak(config: Config, make_lane: MakeLane, *, requests: int = 200, seed: int = 0) -> Iterator[Cell]:
    """Requests arrive and are aborted at random times."""
    choose = random.Random(seed)
    ends: dict[str, int] = {}
    with closing(make_lane(config)) as lane:
        scheduler = Scheduler(lane, config)
        prompts = _prompts(requests, lane.capacity.vocabulary)
        waiting = [_request(index, prompt, choose) for index, prompt in enumerate(prompts)]
        failed = 0
        while waiting or not scheduler.idle:
            if waiting and choose.random() < 0.4:
                ends[waiting[-1].id] = 0
                scheduler.submit(waiting.pop())
            if ends and choose.random() < 0.1:
                scheduler.submit(Abort(id=choose.choice(list(ends))))
            for reply in scheduler.iterate():
                failed += isinstance(reply, Failed)
                if isinstance(reply, Failed | Finished):
                    ends[reply.id] += 1
        scheduler.check()
    once = sum(count == 1 for count in ends.values())
    detail = f"{once} of {requests} ended once, {failed} failed, all pages came back"
    yield _cell("soak", "arrivals and aborts", once == requests and not failed, detail)


def _request(index: int, prompt: list[int], choose: random.Random) -> Generate:
    sampling = SamplingParams(temperature=choose.choice((0.0, 0.9)), seed=index, max_tokens=choose.randint(1, 60))
    return Generate(id=f"request-{index}", prompt=prompt, sampling=sampling)


def _prompts(count: int, vocabulary: int) -> list[list[int]]:
    choose, most = random.Random(1), vocabulary - 1
    return [[choose.randint(2, most) for _ in range(choose.randint(1, 90))] for _ in range(count)]


def _cell(check: str, case: str, passed: bool | None, detail: str) -> Cell:
    """`passed` is None if the check could not run here."""
    return {"check": check, "case": case, "passed": passed, "detail": detail}
