"""A scheduler without a model: it speaks the wire, and says what a script tells it to.

In a thread beside the server of a test, or as a process of its own that can be killed, which goes on after the first
run of each answer once it has got SIGUSR1: `python -m tests.server.fake_scheduler ADDRESS`.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import zmq

from aerie.contracts import wire
from aerie.contracts.messages import (
    STEP_TOKENS,
    Abort,
    Batch,
    Failed,
    Finished,
    FinishReason,
    Generate,
    PlannerSnapshot,
    Ready,
    Snapshot,
    Stop,
    TokenLogprobs,
    Tokens,
    ToServer,
    Usage,
)

MAX_LENGTH = 512
VOCABULARY = 600
END_ID = 1

LAST = "the last that was sent"
"""An abort of this id is heard and not kept: who sent it knows that all that was sent before has been heard."""

Said = list[int] | Failed | None
"""A run of tokens committed together, a failure, or nothing in this turn."""
Script = Callable[[Generate], Iterator[Said]]


def saying(runs: list[list[int]]) -> Script:
    """The same runs for every request, over and over."""

    def script(request: Generate) -> Iterator[Said]:
        while True:
            yield from runs

    return script


def pausing(script: Script, go: threading.Event) -> Script:
    """The same with a pause after the first run, until `go`."""

    def paused(request: Generate) -> Iterator[Said]:
        said = script(request)
        yield next(said)
        while not go.is_set():
            yield None
        yield from said

    return paused


class _Request:
    def __init__(self, request: Generate, script: Script) -> None:
        self.request = request
        self.said = script(request)
        self.tokens = 0
        self.steps = 0
        self.accepted: list[int] = []

    @property
    def stop_ids(self) -> set[int]:
        sampling = self.request.sampling
        return set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {END_ID})

    def usage(self) -> Usage:
        deepest = max(self.accepted, default=0)
        return Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.tokens,
            cached_tokens=min(4, len(self.request.prompt) - 1),
            steps=self.steps,
            drafted=4 * self.steps,
            accepted=sum(self.accepted),
            accepted_per_position=[sum(depth > d for depth in self.accepted) for d in range(deepest)],
            queue_seconds=0.001,
            prefill_seconds=0.002,
        )


class FakeScheduler:
    def __init__(self, address: str, script: Script, *, ready: bool = True) -> None:
        self.script = script
        self.seen: list[Generate] = []
        self.aborted: list[str] = []
        self.heard_last = False
        self.stopped = False
        self.turn_seconds = 0.001
        self._announces_ready = ready
        self._address = address
        self._open: dict[str, _Request] = {}
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def kill(self) -> None:
        """Goes away without an error."""
        self._leave.set()
        self._thread.join()

    @property
    def running(self) -> int:
        return len(self._open)

    def run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = wire.connect(context, self._address)
        socket.linger = 0
        said: list[ToServer] = [self._ready()] if self._announces_ready else []
        while not self._leave.is_set():
            for message in said:
                socket.send(wire.encode(message))
            time.sleep(self.turn_seconds)
            with contextlib.suppress(zmq.Again):
                while True:
                    self._receive(wire.decode_to_scheduler(socket.recv(zmq.NOBLOCK)), socket)
            turn = [message for request in list(self._open.values()) for message in self._advance(request)]
            said = [Batch(messages=[*turn, self._snapshot()])] if turn else []
        socket.close()
        context.term()

    def _receive(self, message: Generate | Abort | Stop, socket: "zmq.Socket[bytes]") -> None:
        if isinstance(message, Generate):
            self.seen.append(message)
            self._open[message.id] = _Request(message, self.script)
        elif isinstance(message, Abort):
            if message.id == LAST:
                self.heard_last = True
                return
            self.aborted.append(message.id)
            request = self._open.pop(message.id, None)
            if request is not None:
                socket.send(wire.encode(Finished(id=message.id, reason="abort", usage=request.usage())))
        else:
            self.stopped = True
            self._leave.set()

    def _advance(self, state: _Request) -> Iterator[Tokens | Finished | Failed]:
        said = next(state.said)
        sampling, id = state.request.sampling, state.request.id
        if said is None:
            return
        if isinstance(said, Failed):
            del self._open[id]
            yield Failed(id=id, code=said.code, message=said.message, status=said.status)
            return
        run: list[int] = []
        reason: FinishReason | None = None
        for token in said:
            run.append(token)
            state.tokens += 1
            if token in state.stop_ids or state.tokens == sampling.max_tokens:
                reason = "stop" if token in state.stop_ids else "length"
                break
        state.steps += 1
        state.accepted.append(len(run) - 1)
        logprobs = [self._logprobs(token, sampling.logprobs) for token in run] if sampling.logprobs >= 0 else None
        yield Tokens(id=id, ids=run, accepted=len(run) - 1, logprobs=logprobs)
        if reason is not None:
            del self._open[id]
            stop_id = run[-1] if reason == "stop" else None
            yield Finished(id=id, reason=reason, usage=state.usage(), stop_id=stop_id)

    def _logprobs(self, token: int, ranks: int) -> TokenLogprobs:
        ids = [token, *(other for other in range(10, 10 + ranks) if other != token)][:ranks]
        values = [-0.5 * (rank + 1) for rank in range(len(ids))]
        return TokenLogprobs(logprob=-0.5, rank_ids=ids, rank_logprobs=[*values[:-1], float("-inf")] if ids else [])

    def _ready(self) -> Ready:
        report: dict[str, str | int | float | bool | None] = {"kv_tokens": 4096, "target_bytes": 1000}
        return Ready(max_length=MAX_LENGTH, vocabulary=VOCABULARY, end_ids=[END_ID], grammars=True, report=report)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            running=self.running,
            waiting=0,
            pages_used=5,
            pages_total=50,
            prefix_queries=100,
            prefix_hits=40,
            preemptions=1,
            steps=20,
            step_tokens=[12, 7, *[0] * (len(STEP_TOKENS) - 2), 1],
            prefill_tokens=60,
            drafts=10,
            drafted=40,
            accepted=25,
            accepted_per_position=[10, 9, 6],
            planner=PlannerSnapshot(
                depth=3,
                topk=1,
                nodes=4,
                steps_by_depth={0: 5, 3: 15},
                predicted_tokens=34.5,
                predicted_seconds=0.5,
                tokens=35,
                seconds=0.6,
                regret_tokens=0.25,
                resting_seconds=0.1,
                recomputed=2,
                calibration_error=0.05,
                reason="drafts promise more",
                gain=1.25,
            ),
            committed=35,
            phase_seconds={"draft": 0.25, "verify": 0.5},
            idle_seconds=0.125,
            busy_seconds=0.75,
            host_seconds=0.0625,
        )


if __name__ == "__main__":
    go_on = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: go_on.set())
    letters = saying([[ord("a") + 10, ord("b") + 10], [ord("c") + 10]])
    FakeScheduler(sys.argv[1], pausing(letters, go_on)).run()
