"""The overlapped loop, and the synchronous loop: the same iterations with one step in flight instead of two.

An iteration plans and launches step t + 1, then waits for step t alone. Results come one step late, so plans use upper
bounds, and the surplus of ended rows is dropped. Driven by `scheduler.process` over a socket, and in place by tests,
probes and the offline `LLM`. Invariant: every submitted id gets exactly one Finished or Failed, whatever happens.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError, ConfigError, EngineDead, Overloaded
from aerie.contracts.messages import Abort, Failed, Finished, Generate, Ready, Snapshot, Tokens
from aerie.contracts.step import Lane
from aerie.scheduler.drafting import Drafting
from aerie.scheduler.grammars import Grammars, faulted
from aerie.scheduler.memory import Memory, OutOfPages
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.start import calibrated_planner
from aerie.scheduler.policy import Policy
from aerie.scheduler.queue import Deadlines, Queue
from aerie.scheduler.request import Phase, Request, accept, failed
from aerie.scheduler.rows import Rows
from aerie.scheduler.settle import Settler
from aerie.scheduler.staging import Flight, Staging
from aerie.scheduler.stats import fresh_stats
from aerie.scheduler.steps import DecodeStep, PrefillStep

Reply = Tokens | Finished | Failed | Snapshot

SNAPSHOT_SECONDS = 1.0


class Scheduler:
    """One device's requests. `dead` is the lane's error once the lane is gone: later iterations do nothing."""

    def __init__(
        self,
        lane: Lane,
        config: Config,
        *,
        clock: Callable[[], float] = time.monotonic,
        planner: Goodput | None = None,
    ) -> None:
        """`planner` of this lane and config, if there is one that knows them already; otherwise `spec.planner: goodput`
        makes one, which times some steps first.
        """
        capacity = lane.capacity
        self._lane = lane
        self._clock = clock
        self._drafting = Drafting(config.spec, head=capacity.drafts)
        depth, nodes = self._drafting.max_depth, self._drafting.max_nodes
        assert nodes <= capacity.reserve, f"a step verifies {nodes} nodes, the device reserves {capacity.reserve} a row"
        self.memory = Memory(capacity, prefix_cache=config.scheduler.prefix_cache)
        if self.memory.max_length < 2:
            raise ConfigError(
                f"the KV pool has {capacity.pages} pages of {capacity.page_size} tokens and a step reserves "
                f"{capacity.reserve}: no request fits; raise engine.kv_tokens or lower spec.nodes"
            )
        self.rows = Rows(capacity, self.memory, limit=config.scheduler.max_running, max_depth=depth)
        self.queue = Queue()
        self.planner = planner
        if planner is None and config.spec.planner == "goodput" and self._drafting.shapes:
            self.planner = calibrated_planner(config, lane, self._drafting, self.rows.count)
        self.policy = Policy(config.scheduler, self.queue, self.rows, self.memory, self._drafting, self.planner)
        self.stats = fresh_stats(depth)
        self._grammars = Grammars(lane, self.policy.enqueue, self.stats)
        self.dead: EngineDead | None = None
        self._staging = Staging(self.rows, vocabulary=capacity.vocabulary)
        self._settler = Settler(self.rows, self.stats)
        self._deadlines = Deadlines()
        self._open: dict[str, Request] = {}
        self._places = self.rows.count + config.scheduler.max_waiting
        self._flights: deque[Flight] = deque()
        self._launched = False
        """Whether the last iteration launched a step."""
        self._ahead = 1 if config.scheduler.overlap else 0
        self._outbox: list[Reply] = []
        self._arrivals = 0
        self._busy_since: float | None = None
        self._snapshot_due = clock()

    @property
    def idle(self) -> bool:
        """No request is open, no step in flight and no reply pending: block for the next message."""
        return not (self._open or self._flights or self._outbox)

    def ready(self) -> Ready:
        capacity = self._lane.capacity
        return Ready(
            max_length=self.memory.max_length,
            vocabulary=capacity.vocabulary,
            end_ids=list(capacity.end_ids),
            grammars=capacity.grammars,
            report=capacity.report,
        )

    def submit(self, message: Generate | Abort) -> None:
        """Takes a message in; `iterate` returns the replies. An Abort of an id that is not open is ignored."""
        if self._busy_since is None:
            self._busy_since = self._clock()
        if isinstance(message, Generate):
            self._begin(message)
        elif (request := self._open.get(message.id)) is not None:
            self._leave(request)
            self._end(request, request.finished("abort", self._clock()))

    def iterate(self) -> list[Reply]:
        """One iteration of the loop; returns the pending replies."""
        if self.dead is None:
            now = self._clock()
            try:
                self._fail(self._deadlines.expired(now, lambda waiting: self._claim(waiting, now)))
                self._fail(self._grammars.collect(waits=not self._flights and self._grammars.held == len(self._open)))
                self._advance()
            except EngineDead as error:
                self.fail_all(error)
        self._account()
        return self.take_replies()

    def take_replies(self) -> list[Reply]:
        """Drains the pending replies without running a step."""
        replies, self._outbox = self._outbox, []
        return replies

    def fail_all(self, error: EngineDead) -> None:
        """Ends this scheduler: every open request fails with `error`, and later iterations do nothing. Leaves rows and
        pages as they are, so that it works in whatever state a bug has left them.
        """
        self.dead = error
        self._flights.clear()
        for request in list(self._open.values()):
            self._end(request, failed(request.id, error))

    def _claim(self, request: Request, now: float) -> bool:
        return not self._grammars.holds(request) and self.policy.claim(request, now)

    def _fail(self, requests: Sequence[tuple[Request, AerieError]]) -> None:
        for request, error in requests:
            self._leave(request)
            self._end(request, failed(request.id, error))

    def check(self) -> None:
        """Checks all pages and rows; raises AssertionError. Walks the whole cache: for tests."""
        self.memory.check()
        self.check_rows()

    def check_rows(self) -> None:
        """The cheap part of `check`: rows without a step in flight are as settled steps left them."""
        flying = [flight.rows[self.rows.future.current(flight.rows, flight.stamps)] for flight in self._flights]
        self.rows.check(np.concatenate(flying) if flying else np.zeros(0, dtype=np.int64))

    def _advance(self) -> None:
        step = self._next_step()
        steady, self._launched = self._launched, step is not None
        if step is not None:
            flight = self._staging.stage(step, steady=steady)
            self._lane.launch(flight.plan)
            self._flights.append(flight)
            if self.planner is not None:
                self.planner.prepare()
        if self._flights and (step is None or len(self._flights) > self._ahead):
            self._settle()

    def _next_step(self) -> PrefillStep | DecodeStep | None:
        while True:
            try:
                return self.policy.next_step(self._clock())
            except OutOfPages:
                # Steps in flight may end rows and so free pages; and a preempted row must not have a step in flight.
                if self._flights:
                    self._settle()
                else:
                    self.policy.preempt()

    def _settle(self) -> None:
        started = self._clock()
        output = self._lane.settle()
        now = self._clock()
        self.stats.wait_seconds += now - started
        flight = self._flights.popleft()
        live = self.rows.future.current(flight.rows, flight.stamps)
        self._fail(faulted(self.rows.owners, flight.rows, live, output.faults))
        tokens, finished = self._settler.settle(flight, live, output, now)
        if self.planner is not None:
            self.planner.settle(flight.plan, flight.rows, live, output, steady=flight.steady)
            self.planner.end([message.usage.completion_tokens for message in finished])
        elif output.drafted.any():
            self._drafting.judge(int(np.count_nonzero(output.drafted)), int(np.count_nonzero(output.accepted)))
            self.stats.head_off = self._drafting.switched_off
        self._outbox += tokens
        for message in finished:
            self._end(self._open[message.id], message)

    def _begin(self, message: Generate) -> None:
        try:
            if self.dead is not None:
                raise self.dead
            if len(self._open) >= self._places:
                raise Overloaded(
                    f"{len(self._open)} requests are open; at most {self._places} may run and wait; try again later"
                )
            request = accept(
                message,
                self._lane.capacity,
                number=self._arrivals,
                now=self._clock(),
                max_length=self.memory.max_length,
                max_depth=self._drafting.max_depth,
            )
        except AerieError as error:
            self._outbox.append(failed(message.id, error))
            return
        assert message.id not in self._open, f"id {message.id} is open already; ids are the server's to keep apart"
        self._arrivals += 1
        self._open[message.id] = request
        self._deadlines.add(request)
        self._grammars.enter(request)

    def _leave(self, request: Request) -> None:
        """Removes a request from the queue or its row; results in flight for it are void."""
        if request.phase is Phase.WAITING:
            if not self._grammars.drop(request):
                self.queue.remove(request)
            request.phase = Phase.ENDED
        else:
            self.rows.vacate(request, Phase.ENDED)

    def _end(self, request: Request, last: Finished | Failed) -> None:
        del self._open[request.id]
        self._deadlines.forget(request)
        self._grammars.forget(request)
        self._outbox.append(last)

    def _account(self) -> None:
        """Adds up the time that requests were open, and sends a Snapshot: once a second, and on becoming idle."""
        now = self._clock()
        if self._busy_since is not None:
            self.stats.open_seconds += now - self._busy_since
        resting = not (self._open or self._flights)
        became_idle = resting and self._busy_since is not None
        self._busy_since = None if resting else now
        if became_idle and self.dead is None:
            self.memory.check_idle()
        if became_idle or now >= self._snapshot_due:
            self._snapshot_due = now + SNAPSHOT_SECONDS
            self._outbox.append(self.stats.snapshot(self.queue, self.rows, self.policy, self.planner))
