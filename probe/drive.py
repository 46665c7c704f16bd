"""Runs requests through a real scheduler over a lane, in this process: the basis of every probe of a model.

A closed loop: `concurrency` requests are open until none is left. A lane may serve any number of runs, one after the
other; each has a new scheduler, so that no run finds another's cached prefixes.
"""

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.grammar import Masking
from aerie.contracts.messages import Abort, Failed, Finished, Generate, Tokens, Usage
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.step import Lane
from aerie.probe.paired import Work, work
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.goodput import Goodput

MakeLane = Callable[[Config], Lane]
"""Supplied by the composition root: probes do not choose where steps run."""
Prompts = Sequence[Sequence[int]]


@dataclass(slots=True)
class Answer:
    """The result of one request; times are seconds since it was sent."""

    request: Generate
    asked: float
    tokens: list[int] = field(default_factory=list)
    replies: list[int] = field(default_factory=list)
    """Tokens of each reply: first that of the prompt, then one per step."""
    ttft: float = 0.0
    seconds: float = 0.0
    finish: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All answers, in the order of the requests."""

    answers: list[Answer]
    seconds: float
    """From the first request to the end of the last answer."""
    open_seconds: float
    """Time in which any request was open."""
    busy_seconds: float
    """Time in which the lane worked."""
    phase_seconds: dict[str, float]
    beside: int = 0
    """Companion requests that were answered beside the measured ones."""
    masking: Masking = field(default_factory=Masking)

    @property
    def tokens(self) -> list[list[int]]:
        return [answer.tokens for answer in self.answers]

    @property
    def tokens_per_s(self) -> float:
        return sum(len(answer.tokens) for answer in self.answers) / self.seconds

    @property
    def idle_share(self) -> float:
        """Share of the time with open requests in which the lane had no work."""
        return max(0.0, 1 - self.busy_seconds / self.open_seconds)

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per decode step of a row, bonus included; truncated where a request ended."""
        return sum(self.decoded) / max(sum(self.steps), 1)

    @property
    def decoded(self) -> list[int]:
        """Tokens of each answer that decode steps committed."""
        return [usage.completion_tokens - 1 - usage.preemptions for usage in self._usages()]

    @property
    def steps(self) -> list[int]:
        """Decode steps of each answer."""
        return [usage.steps for usage in self._usages()]

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of the decode steps that accepted a node at depth 1, 2, ..."""
        usages = self._usages()
        deepest = max((len(usage.accepted_per_position) for usage in usages), default=0)
        steps = max(sum(self.steps), 1)
        return [sum(_at(usage.accepted_per_position, depth) for usage in usages) / steps for depth in range(deepest)]

    @property
    def ttft(self) -> float:
        """The median."""
        return statistics.median(answer.ttft for answer in self.answers)

    def _usages(self) -> list[Usage]:
        return [answer.usage for answer in self.answers if answer.usage is not None]


def joined(runs: Sequence[Run]) -> Run:
    """Concatenates runs into one."""
    phases: Counter[str] = Counter()
    for run in runs:
        phases.update(run.phase_seconds)
    return Run(
        answers=[answer for run in runs for answer in run.answers],
        seconds=sum(run.seconds for run in runs),
        open_seconds=sum(run.open_seconds for run in runs),
        busy_seconds=sum(run.busy_seconds for run in runs),
        phase_seconds=dict(phases),
        beside=sum(run.beside for run in runs),
    )


def work_of(runs: Sequence[Run]) -> Work:
    return work([sum(map(len, run.tokens)) for run in runs], [run.seconds for run in runs])


def ask(
    prompts: Prompts,
    temperatures: Sequence[float],
    *,
    max_tokens: int,
    speculation: bool = True,
    ignore_eos: bool = False,
) -> list[Generate]:
    """One request per prompt, each with a different seed; temperatures alternate."""
    return [
        Generate(
            id=f"request-{index}",
            prompt=list(prompt),
            sampling=SamplingParams(
                temperature=temperatures[index % len(temperatures)],
                max_tokens=max_tokens,
                seed=index,
                ignore_eos=ignore_eos,
            ),
            speculation=SpeculationParams(enabled=speculation),
        )
        for index, prompt in enumerate(prompts)
    ]


def planner_of(lane: Lane, config: Config) -> Goodput | None:
    """The planner of a deployment, for runs one after the other that it learns from; None where it has none."""
    return Scheduler(lane, config).planner


def drive(
    lane: Lane,
    config: Config,
    requests: Sequence[Generate],
    *,
    concurrency: int,
    beside: Iterable[Generate] = (),
    planner: Goodput | None = None,
) -> Run:
    """Answers `requests`; one of `beside` is open all the while and is not measured. `planner` may know the lane from
    earlier runs.

    Raises AerieError when a request fails, since figures up to then are meaningless.
    """
    scheduler = Scheduler(lane, config, planner=planner)
    began = time.monotonic()
    progress = _Progress(scheduler, deque(requests), iter(beside), began)
    progress.open_beside()
    for _ in range(min(concurrency, len(requests))):
        progress.open_next()
    while not scheduler.idle:
        for reply in scheduler.iterate():
            if isinstance(reply, Failed):
                raise AerieError(f"{reply.id} failed: {reply.message}", code=reply.code)
            if isinstance(reply, Tokens | Finished):
                progress.take(reply)
    stats = scheduler.stats
    return Run(
        answers=[progress.answers[request.id] for request in requests],
        seconds=progress.ended - began,
        open_seconds=stats.open_seconds,
        busy_seconds=stats.busy_seconds,
        phase_seconds=dict(stats.phase_seconds),
        beside=progress.beside,
        masking=stats.masking,
    )


@dataclass(slots=True)
class _Progress:
    """State of a run. `beside` counts answered companions; `companion` is the open one."""

    scheduler: Scheduler
    waiting: deque[Generate]
    others: Iterator[Generate]
    ended: float
    answers: dict[str, Answer] = field(default_factory=dict)
    unfinished: int = 0
    beside: int = 0
    companion: str | None = None

    def open_next(self) -> None:
        request = self.waiting.popleft()
        self.answers[request.id] = Answer(request, time.monotonic())
        self.unfinished += 1
        self.scheduler.submit(request)

    def open_beside(self) -> None:
        request = next(self.others, None)
        self.companion = None if request is None else request.id
        if request is not None:
            self.scheduler.submit(request)

    def take(self, reply: Tokens | Finished) -> None:
        if reply.id in self.answers:
            self.ended = time.monotonic()
            _note(self.answers[reply.id], reply, self.ended)
            if isinstance(reply, Finished):
                self._close()
        elif isinstance(reply, Finished) and reply.reason != "abort" and self.unfinished:
            self.beside += 1
            self.open_beside()

    def _close(self) -> None:
        self.unfinished -= 1
        if self.waiting:
            self.open_next()
        elif not self.unfinished and self.companion is not None:
            self.scheduler.submit(Abort(id=self.companion))


def _note(answer: Answer, reply: Tokens | Finished, now: float) -> None:
    if isinstance(reply, Tokens):
        if not answer.tokens:
            answer.ttft = now - answer.asked
        answer.tokens += reply.ids
        answer.replies.append(len(reply.ids))
    else:
        answer.finish, answer.usage, answer.seconds = reply.reason, reply.usage, now - answer.asked


def _at(values: list[int], index: int) -> int:
    return values[index] if index < len(values) else 0
