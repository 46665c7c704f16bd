"""Several schedulers share one lane in slices of a fraction of a second, each over its own rows and pages.

A machine's speed changes by the second. What alternates so quickly meets the same speed, so ratios hold where whole
runs, one after the other, would differ by chance. A slice is a number of tokens, not a time: all schedulers answer the
same requests, so the n-th slice is the same work for each of them. Used by `planner`.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.messages import Failed, Finished, Generate, Tokens
from aerie.contracts.step import DUMMY_PAGE, Capacity, Lane, StepOutput, StepPlan
from aerie.engine.lanes.preparing import NoGrammars
from aerie.scheduler import Scheduler


class Share(NoGrammars):
    """One of `count` equal parts of a lane's rows and pages, as a lane of its own. Implements contracts.step.Lane."""

    def __init__(self, lane: Lane, number: int, count: int) -> None:
        whole = lane.capacity
        rows, pages = whole.rows // count, (whole.pages - 1) // count
        self._lane = lane
        self._row, self._page = number * rows, number * pages
        self._capacity = replace(whole, rows=rows, pages=pages + 1, grammars=False)
        self.launched = self.alone = 0
        """Decode steps, and those of them that were launched while no other was in flight, but for the first step of a
        slice: the lane waited for the host.
        """
        self.read = 0
        """Prompt tokens."""
        self.busy = 0.0
        """Seconds that the lane worked, by its own clock."""
        self._first = True
        self._after_others = True
        """Whether the next answer is the first of a slice."""
        self._flying = 0
        self._outputs: deque[StepOutput] = deque()
        self._away = 0.0
        self._parked = time.monotonic()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, plan: StepPlan) -> None:
        if plan.decode is not None:
            self.launched += 1
            self.alone += not self._flying and not self._first
        if plan.prefill is not None:
            self.read += int(plan.prefill.counts.sum())
        self._first = False
        starts, updates = plan.starts, plan.page_updates
        if starts is not None:
            starts = replace(starts, rows=starts.rows + self._row)
        if updates is not None:
            pages = updates.pages + (updates.pages != DUMMY_PAGE) * self._page
            updates = replace(updates, rows=updates.rows + self._row, pages=pages.astype(updates.pages.dtype))
        self._lane.launch(replace(plan, rows=plan.rows + self._row, starts=starts, page_updates=updates))
        self._flying += 1

    def settle(self) -> StepOutput:
        return self._outputs.popleft() if self._outputs else self._fetched()

    def resume(self) -> None:
        """Begins a slice. The others' slices since the last one are no pause of this lane."""
        self._away += time.monotonic() - self._parked
        self._first = self._after_others = True

    def park(self) -> None:
        """Fetches what is in flight, so that another may use the lane."""
        while self._flying:
            self._outputs.append(self._fetched())
        self._parked = time.monotonic()

    def _fetched(self) -> StepOutput:
        self._flying -= 1
        output = self._lane.settle()
        phases = output.phase_seconds
        self.busy += sum(phases.values())
        if self._after_others:
            # A step answers before it extends the head: this extend is that of another's last step, and what the step
            # took says nothing, as the others have left nothing of its own in the caches.
            self.busy -= phases.get("extend", 0.0)
            self._after_others = False
            return replace(output, began=0.0, ended=0.0, phase_seconds={})
        began, ended = output.began - self._away, output.ended - self._away
        return replace(output, began=began, ended=ended, phase_seconds=phases)

    def close(self) -> None:
        """The whole lane is its owner's to close."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one scheduler did in its slice: nothing, if the one before went beyond this one's end."""

    tokens: int
    seconds: float
    cpu_seconds: float
    """CPU time of the loop and its inline lane; where the lane is another process, of the one that worked longer."""
    steps: int = 0
    """Decode steps."""
    waits: int = 0
    """Those of them before which the lane waited for the host."""
    read: int = 0
    """Prompt tokens."""

    def __add__(self, other: "Slice") -> "Slice":
        return Slice(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.steps + other.steps,
            self.waits + other.waits,
            self.read + other.read,
        )


@dataclass(slots=True)
class Contestant:
    """A scheduler that keeps `rows` requests open. `request` makes the n-th one."""

    share: Share
    scheduler: Scheduler
    request: Callable[[int], Generate]
    rows: int
    inline: bool
    answers: dict[str, list[int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    tokens: int = 0
    """Committed since the start."""
    steps: int = 0
    """Decode steps of rows, over the requests that ended."""
    decoded: int = 0
    """Tokens that those committed."""
    ttft: list[float] = field(default_factory=list)
    """Seconds to the first token of each request, the others' slices left out; CPU seconds where the lane is inline."""
    _asked: int = 0
    _open: int = 0
    _submitted: dict[str, float] = field(default_factory=dict)
    _away: float = 0.0
    _parked: float = 0.0

    def run(self, tokens: int) -> Slice:
        """Runs until it has committed `tokens` since the start; the last step may go beyond."""
        self.share.resume()
        self._away += self._clock() - self._parked
        began, cpu, busy = time.perf_counter(), time.thread_time(), self.share.busy
        before, launched, waited, read = self.tokens, self.share.launched, self.share.alone, self.share.read
        while self.tokens < tokens:
            while self._open < self.rows:
                self._submit(self.request(self._asked))
            for reply in self.scheduler.iterate():
                if isinstance(reply, Failed):
                    raise AerieError(f"{reply.id} failed: {reply.message}", code=reply.code)
                if isinstance(reply, Tokens):
                    self._take(reply)
                elif isinstance(reply, Finished):
                    self._finish(reply)
        self.share.park()
        self._parked = self._clock()
        return Slice(
            self.tokens - before,
            time.perf_counter() - began,
            self._worked(cpu, busy),
            self.share.launched - launched,
            self.share.alone - waited,
            self.share.read - read,
        )

    def _clock(self) -> float:
        return time.thread_time() if self.inline else time.perf_counter()

    def _submit(self, request: Generate) -> None:
        self.scheduler.submit(request)
        self._submitted[request.id] = self._clock() - self._away
        self._asked, self._open = self._asked + 1, self._open + 1

    def _take(self, reply: Tokens) -> None:
        if reply.id not in self.answers:
            self.ttft.append(self._clock() - self._away - self._submitted.pop(reply.id))
        self.tokens += len(reply.ids)
        self.answers.setdefault(reply.id, []).extend(reply.ids)

    def _worked(self, cpu: float, busy: float) -> float:
        worked = time.thread_time() - cpu
        return worked if self.inline else max(worked, self.share.busy - busy)

    def _finish(self, reply: Finished) -> None:
        self._open -= 1
        self.ended.add(reply.id)
        if reply.usage is not None:
            self.steps += reply.usage.steps
            self.decoded += reply.usage.completion_tokens - 1


def contestant(
    lane: Lane, number: int, count: int, config: Config, request: Callable[[int], Generate], rows: int
) -> Contestant:
    """The `number`-th of `count` that share the lane."""
    share = Share(lane, number, count)
    return Contestant(share, Scheduler(share, config), request, rows, config.engine.lane == "inline")
