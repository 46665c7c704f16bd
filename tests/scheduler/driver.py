"""Runs a scheduler on a fake device in place and keeps what every request was told."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from aerie.contracts.config import Config, SchedulerConfig
from aerie.contracts.messages import Abort, Failed, Finished, Generate, Snapshot, TokenLogprobs, Tokens
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Capacity
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.goodput import Goodput
from tests import fakes

CHAIN = SpecConfig(planner="fixed", depth=3, topk=1, nodes=4)
PLAIN = SpecConfig(planner="fixed", depth=0, nodes=1)


@dataclass
class Told:
    """What one id was told."""

    ids: list[int] = field(default_factory=list)
    steps: list[Tokens] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: Finished | Failed | None = None


class Driver:
    """One scheduler on one fake device; checks after every message that an ended id stays silent."""

    def __init__(
        self,
        capacity: Capacity | None = None,
        *,
        lane: fakes.QueueLane | None = None,
        spec: SpecConfig | None = None,
        seed: int = 0,
        turn_seconds: float = 0.01,
        planner: Goodput | None = None,
        **scheduler: object,
    ) -> None:
        self.capacity = capacity or (lane.capacity if lane else fakes.capacity())
        self.lane = lane or fakes.DelayedLane(fakes.FakeWorker(self.capacity, seed=seed), seed)
        self.worker = self.lane.worker
        config = Config(
            scheduler=SchedulerConfig(**{"prefill_chunk": 16, **scheduler}),
            spec=spec or CHAIN,
        )
        self.now = 0.0
        self._turn_seconds = turn_seconds
        self.scheduler = Scheduler(self.lane, config, clock=lambda: self.now, planner=planner)
        self.worker.cached_pages = self.scheduler.memory.cached_pages
        self.reported: dict[str, Told] = {}
        self.snapshots: list[Snapshot] = []
        self.generations = 0

    def submit(self, *messages: Generate | Abort) -> None:
        for message in messages:
            self.scheduler.submit(message)

    def iterate(self) -> None:
        self.generations += 1
        self.now += self._turn_seconds
        replies = self.scheduler.iterate()
        if self.scheduler.dead is None:
            self.scheduler.check_rows()
        for message in replies:
            if isinstance(message, Snapshot):
                self.snapshots.append(message)
                continue
            reported = self.reported.setdefault(message.id, Told())
            assert reported.end is None, f"{message.id} was told {message} after its end"
            if isinstance(message, Tokens):
                reported.ids += message.ids
                reported.steps.append(message)
                reported.logprobs += message.logprobs or []
            else:
                reported.end = message

    def run(self, *messages: Generate | Abort, most_turns: int = 20_000) -> dict[str, Told]:
        """Submits, then turns until everything has ended; the pages must all be accounted for then."""
        self.submit(*messages)
        while not self.scheduler.idle:
            self.iterate()
            assert self.generations < most_turns, "the scheduler makes no progress"
        self.scheduler.check()
        return self.reported

    def trickle(self, requests: Sequence[Generate], source: random.Random) -> None:
        """Submits the requests at random times and aborts a few of them, until all have ended."""
        waiting = list(requests)
        while waiting or not self.scheduler.idle:
            if waiting and source.random() < 0.4:
                self.submit(waiting.pop())
            if source.random() < 0.02:
                self.submit(Abort(id=source.choice(requests).id))
            self.iterate()
        self.scheduler.check()

    def expect(self, request: Generate) -> tuple[list[int], str]:
        """What the oracle says that a request is answered."""
        return fakes.answer(
            request.prompt,
            request.sampling,
            self.capacity,
            max_length=self.scheduler.memory.max_length,
            choice=request.choice,
        )

    def assert_answered(self, requests: Iterable[Generate]) -> None:
        for request in requests:
            reported = self.reported[request.id]
            assert isinstance(reported.end, Finished), f"{request.id}: {reported.end}"
            assert (reported.ids, reported.end.reason) == self.expect(request), request.id
            assert reported.end.usage.completion_tokens == len(reported.ids)


_SAMPLING = {one.name for one in fields(SamplingParams)}


def generate(id: str, prompt: list[int], **fields: object) -> Generate:
    """A request; SamplingParams' fields are recognized by name, the others are Generate's own."""
    sampling = {name: fields.pop(name) for name in list(fields) if name in _SAMPLING}
    return Generate(id=id, prompt=prompt, sampling=SamplingParams(**{"ignore_eos": True, **sampling}), **fields)


def random_requests(count: int, seed: int, *, longest: int = 30, answer: int = 30) -> list[Generate]:
    """Prompts over four tokens, so that many share prefixes; some plain, some without seeds of their own."""
    source = random.Random(seed)
    requests = []
    for number in range(count):
        limit = source.choice([None, None, 0, 1, 2])
        requests.append(
            generate(
                f"r{number}",
                [source.randrange(2) for _ in range(source.randint(1, longest))],
                max_tokens=source.randint(1, answer),
                min_tokens=source.choice([0, 0, 1]),
                seed=source.randrange(3),
                ignore_eos=source.random() < 0.3,
                stop_token_ids=tuple(source.sample(range(50), source.choice([0, 0, 2]))),
                cache_salt=source.choice(["", "", "tenant"]),
                speculation=SpeculationParams(enabled=source.random() < 0.8, max_draft_tokens=limit),
            )
        )
    return requests
