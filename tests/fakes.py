"""A device without a model, for tests of the scheduler and of what stands above it.

`FakeWorker` keeps real state (page pools, page tables, two generations of every row) and a deterministic "model": the
next token is a hash of the noise key and all tokens before it, *read back through the page table*, so a wrong page, a
lost generation or a shared write changes the text. It also refuses plans that break the contract. The lanes carry its
steps with delay, at a given speed, or into death.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from contracts.errors import EngineDead
from contracts.sampling import MAX_STOP_IDS, SamplingParams, noise_key
from contracts.step import (
    DUMMY_PAGE,
    Capacity,
    DecodeWork,
    Ending,
    Logprobs,
    PrefillWork,
    StepKind,
    StepOutput,
    StepPlan,
    Worker,
)

_MASK = (1 << 64) - 1
_LIMIT = 1 << 16
_WEIGHTS = np.random.default_rng(7).integers(1, 2**63, _LIMIT, dtype=np.uint64) | np.uint64(1)


class Broken(AssertionError):
    """A plan that breaks the contract."""


def capacity(
    *,
    rows: int = 8,
    pages: int = 65,
    page_size: int = 4,
    max_length: int = 64,
    vocabulary: int = 50,
    end_ids: tuple[int, ...] = (1,),
    drafts: bool = True,
    reserve: int = 8,
) -> Capacity:
    return Capacity(
        rows=rows,
        pages=pages,
        page_size=page_size,
        max_length=max_length,
        vocabulary=vocabulary,
        end_ids=end_ids,
        drafts=drafts,
        reserve=reserve,
    )


def _state(tokens: np.ndarray, first: int = 0) -> int:
    """The hash of a sequence; sums of states of consecutive pieces are the state of the whole."""
    weights = _WEIGHTS[first : first + len(tokens)]
    return int(((tokens.astype(np.uint64) + np.uint64(1)) * weights).sum(dtype=np.uint64))


def _pick(state: int, key: int, vocabulary: int, banned: Iterable[int]) -> int:
    mixed = ((state ^ key) * 0x9E3779B97F4A7C15) & _MASK
    token = (mixed >> 29) % vocabulary
    while token in banned:
        token = (token + 1) % vocabulary
    return token


def answer(
    prompt: list[int], sampling: SamplingParams, capacity: Capacity, *, max_length: int, choice: int = 0
) -> tuple[list[int], str]:
    """The oracle: what the fake model answers to a request alone on a calm device, and why it ends."""
    key = noise_key(sampling.seed, prompt, choice)
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(capacity.end_ids))
    limit = min(len(prompt) + sampling.max_tokens, max_length)
    tokens = list(prompt)
    while True:
        banned = stops if len(tokens) < len(prompt) + sampling.min_tokens else ()
        token = _pick(_state(np.array(tokens)), key, capacity.vocabulary, banned)
        tokens.append(token)
        if token in stops:
            return tokens[len(prompt) :], "stop"
        if len(tokens) >= limit:
            return tokens[len(prompt) :], "length"


class FakeWorker:
    """`acceptance` of (depth, generator) says how many drafted nodes a row accepts; random by default.

    `cached_pages`, set by a test, tells which pages the prefix cache holds: none of them may be written.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        seed: int = 0,
        poison: bool = True,
        acceptance: Callable[[int, random.Random], int] | None = None,
    ) -> None:
        self._capacity = capacity
        self._random = random.Random(seed)
        self._poison = poison
        self._acceptance = acceptance or (lambda depth, generator: generator.randint(0, depth))
        self.cached_pages: Callable[[], Iterable[int]] = tuple
        rows, slots = capacity.rows, capacity.pages * capacity.page_size
        self._width = -(-(capacity.max_length + capacity.reserve) // capacity.page_size) + 1
        self._table = np.full((rows, self._width), DUMMY_PAGE, dtype=np.int32)
        self._tokens = np.full(slots, -1, dtype=np.int64)
        """The target's pool: the token at each slot."""
        self._pairs = np.full(slots, -1, dtype=np.int64)
        """The head's pool: of pair j, the token x_(j+1)."""
        self._future = [[None] * rows, [None] * rows]
        """By generation and row: (root token, length, ending), or None if nothing is published there."""
        self._constants: list[dict[str, object]] = [{} for _ in range(rows)]
        self._plain = np.zeros(rows, dtype=bool)
        self._next = 0
        self.closed = False
        self.plans: list[StepPlan] = []

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def close(self) -> None:
        self.closed = True

    def step(self, plan: StepPlan) -> StepOutput:
        self._expect(plan.number == self._next, f"step {plan.number} where {self._next} was due")
        self._next += 1
        self.plans.append(plan)
        self._expect(len(set(plan.rows.tolist())) == len(plan.rows) > 0, "a row is twice in a step, or there is none")
        self._apply(plan)
        writes: dict[int, int] = {}
        if plan.kind is StepKind.PREFILL:
            assert plan.prefill is not None and plan.decode is None
            results = self._prefill(plan, plan.prefill, writes)
        else:
            assert plan.decode is not None and plan.prefill is None
            results = self._decode(plan, plan.decode, writes)
        touched = set(writes) & set(self.cached_pages())
        self._expect(not touched, f"the cached pages {touched} are written")
        return self._output(plan, results)

    def _apply(self, plan: StepPlan) -> None:
        if plan.starts is not None:
            starts = plan.starts
            for index, row in enumerate(starts.rows.tolist()):
                self._table[row] = DUMMY_PAGE
                self._plain[row] = False
                self._future[0][row] = self._future[1][row] = None
                self._expect(starts.stop_ids.shape[1] == MAX_STOP_IDS, "stop ids have the wrong width")
                self._constants[row] = {
                    "key": int(starts.noise_keys[index]),
                    "limit": int(starts.limits[index]),
                    "min_length": int(starts.min_lengths[index]),
                    "stops": {stop for stop in starts.stop_ids[index].tolist() if stop >= 0},
                }
        if plan.page_updates is not None:
            updates = plan.page_updates
            places = list(zip(updates.rows.tolist(), updates.slots.tolist(), strict=True))
            self._expect(len(set(places)) == len(places), "one page-table entry is set twice")
            self._table[updates.rows, updates.slots] = updates.pages

    def _prefill(self, plan: StepPlan, work: PrefillWork, writes: dict[int, int]) -> list[dict[str, object]]:
        results = []
        offset = 0
        for index, row in enumerate(plan.rows.tolist()):
            start, count = int(work.starts[index]), int(work.counts[index])
            chunk = work.token_ids[offset : offset + count]
            offset += count
            self._expect(count > 0, "an empty chunk")
            self._write(row, start, chunk, writes)
            end, next_id, drafting = start + count, int(work.next_ids[index]), bool(plan.drafting[index])
            self._follow(row, drafting)
            if drafting and start > 0:
                self._check_pairs(row, start, int(chunk[0]))
            if not work.is_last[index]:
                self._expect(next_id >= 0, "a middle chunk without the token after it")
                if drafting:
                    self._write_pairs(row, start, [*chunk[1:].tolist(), next_id])
                results.append({"ids": [], "length": end, "ending": Ending.OPEN})
                continue
            self._expect(next_id == -1, "a last chunk with a token after it")
            committed, ending = self._choose(row, end, [], 1)
            if drafting:
                self._write_pairs(row, start, [*chunk[1:].tolist(), committed[0]])
            self._publish(plan, index, committed[-1], end, ending)
            results.append({"ids": committed, "length": end, "ending": ending})
        self._expect(offset == len(work.token_ids), "chunk lengths do not add up")
        return results

    def _decode(self, plan: StepPlan, work: DecodeWork, writes: dict[int, int]) -> list[dict[str, object]]:
        results = []
        for index, row in enumerate(plan.rows.tolist()):
            root, length, ending = self._read(plan, index)
            nodes, drafting = int(work.nodes[index]), bool(plan.drafting[index])
            self._follow(row, drafting)
            self._expect(nodes >= 1 and (drafting or nodes == 1), "a plain row with a tree")
            if ending is not Ending.OPEN:
                self._publish(plan, index, root, length, ending)
                results.append({"ids": [], "length": length, "ending": ending})
                continue
            bound = int(work.bounds[index])
            self._expect(length <= bound, f"row {row} has {length} tokens, over its bound {bound}")
            self._cover(row, bound + self._capacity.reserve)
            if drafting:
                self._check_pairs(row, length, root)
            # What verification leaves behind: the root, then tree nodes that may all be wrong.
            junk = [self._random.randrange(self._capacity.vocabulary) for _ in range(nodes - 1)]
            self._write(row, length, np.array([root, *junk]), writes)
            depth = min(work.depth, nodes - 1)
            accepted = self._acceptance(depth, self._random) if depth else 0
            committed, ending = self._choose(row, length, [root], accepted + 1)
            self._write(row, length, np.array([root, *committed[:-1]]), {})
            if drafting:
                scratch = [self._random.randrange(10**6) for _ in range(self._capacity.reserve if depth else 0)]
                self._write_pairs(row, length, scratch)
                self._write_pairs(row, length, committed)
            after = length + len(committed)
            self._publish(plan, index, committed[-1], after, ending)
            results.append(
                {
                    "ids": committed,
                    "length": after,
                    "ending": ending,
                    "accepted": min(accepted, len(committed)),
                    "drafted": nodes - 1,
                }
            )
        return results

    def _choose(self, row: int, length: int, known: list[int], count: int) -> tuple[list[int], Ending]:
        """`count` tokens after the row's `length` written ones and the `known`, cut at the one that ends the row."""
        constants = self._constants[row]
        stops, limit = constants["stops"], constants["limit"]
        slots = self._slots(row, np.arange(length))
        written = self._tokens[slots]
        self._expect(bool((written >= 0).all()), f"row {row} reads slots that were never written")
        state = _state(written) + _state(np.array(known), length)
        total = length + len(known)
        committed: list[int] = []
        while len(committed) < count:
            banned = stops if total < constants["min_length"] else ()
            token = _pick(state & _MASK, constants["key"], self._capacity.vocabulary, banned)
            state += _state(np.array([token]), total)
            total += 1
            committed.append(token)
            if token in stops:
                return committed, Ending.STOP_ID
            if total >= limit:
                return committed, Ending.LENGTH
        return committed, Ending.OPEN

    def _read(self, plan: StepPlan, index: int) -> tuple[int, int, Ending]:
        row, turn = int(plan.rows[index]), int(plan.turns[index])
        value = self._future[turn][row]
        self._expect(value is not None, f"row {row} reads generation {turn}, which nothing published")
        if self._poison:
            self._future[turn][row] = None
        return value

    def _publish(self, plan: StepPlan, index: int, root: int, length: int, ending: Ending) -> None:
        self._future[1 - int(plan.turns[index])][int(plan.rows[index])] = (root, length, ending)

    def _follow(self, row: int, drafting: bool) -> None:
        self._expect(not (drafting and self._plain[row]), f"row {row} was plain and drafts again")
        self._plain[row] |= not drafting

    def _slots(self, row: int, positions: np.ndarray) -> np.ndarray:
        page = self._capacity.page_size
        return self._table[row, positions // page] * page + positions % page

    def _cover(self, row: int, tokens: int) -> None:
        pages = self._table[row, : -(-tokens // self._capacity.page_size)]
        self._expect(DUMMY_PAGE not in pages, f"the pages of row {row} do not cover {tokens} tokens")

    def _write(self, row: int, start: int, tokens: np.ndarray, writes: dict[int, int]) -> None:
        """Writes and notes the pages written; two rows of a step must not write one page."""
        self._cover(row, start + len(tokens))
        slots = self._slots(row, np.arange(start, start + len(tokens)))
        self._tokens[slots] = tokens
        for page in set((slots // self._capacity.page_size).tolist()):
            self._expect(writes.setdefault(page, row) == row, f"rows {row} and {writes[page]} both write page {page}")

    def _write_pairs(self, row: int, start: int, following: list[int]) -> None:
        self._pairs[self._slots(row, np.arange(start, start + len(following)))] = following

    def _check_pairs(self, row: int, length: int, root: int) -> None:
        """A drafting row needs every pair (a_j, x_(j+1)) below its length in the head's pool."""
        following = np.append(self._tokens[self._slots(row, np.arange(1, length))], root)
        pairs = self._pairs[self._slots(row, np.arange(length))]
        holes = np.flatnonzero(pairs != following)
        self._expect(holes.size == 0, f"row {row} drafts with holes in its head KV at {holes[:8]} of {length}")

    def _output(self, plan: StepPlan, results: list[dict[str, object]]) -> StepOutput:
        width = 1 if plan.decode is None else plan.decode.depth + 1
        ids = np.full((len(results), width), -1, dtype=np.int32)
        for index, result in enumerate(results):
            ids[index, : len(result["ids"])] = result["ids"]

        def column(values: Iterable[object]) -> np.ndarray:
            return np.array(list(values), dtype=np.int32)

        logprobs = None
        if plan.logprobs >= 0:
            ranks = np.broadcast_to(np.arange(plan.logprobs, dtype=np.int32), (*ids.shape, plan.logprobs))
            logprobs = Logprobs(-ids.astype(np.float32), ranks, -ranks.astype(np.float32))
        return StepOutput(
            number=plan.number,
            token_ids=ids,
            counts=column(len(result["ids"]) for result in results),
            accepted=column(result.get("accepted", 0) for result in results),
            drafted=column(result.get("drafted", 0) for result in results),
            lengths=column(result["length"] for result in results),
            endings=column(result["ending"] for result in results),
            logprobs=logprobs,
            phase_seconds={"verify": 0.001},
            busy_seconds=0.001,
        )

    @staticmethod
    def _expect(holds: bool, complaint: str) -> None:
        if not holds:
            raise Broken(complaint)


class QueueLane:
    """At most two steps in flight, settled in order; subclasses say when a step runs."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._plans: deque[StepPlan] = deque()
        self._outputs: deque[StepOutput] = deque()
        self.most_in_flight = 0

    @property
    def capacity(self) -> Capacity:
        return self.worker.capacity

    @property
    def in_flight(self) -> int:
        return len(self._plans) + len(self._outputs)

    def launch(self, plan: StepPlan) -> None:
        assert self.in_flight < 2, "three steps in flight"
        self._plans.append(plan)
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def settle(self) -> StepOutput:
        if not self._outputs:
            self._run_one()
        return self._outputs.popleft()

    def close(self) -> None:
        self.worker.close()

    def _run_one(self) -> None:
        self._outputs.append(self.worker.step(self._plans.popleft()))


class DelayedLane(QueueLane):
    """Runs a step at its launch, or as late as its settling, at random: the results come late either way."""

    def __init__(self, worker: Worker, seed: int = 0) -> None:
        super().__init__(worker)
        self._random = random.Random(seed)

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        while self._plans and self._random.random() < 0.5:
            self._run_one()


class TimedLane(QueueLane):
    """A device that works `seconds` on a step, one after the other, whatever the host does meanwhile."""

    def __init__(
        self,
        worker: Worker,
        seconds: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(worker)
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._ready: deque[float] = deque()
        self._free_at = 0.0

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self._free_at = max(self._clock(), self._free_at) + self._seconds
        self._ready.append(self._free_at)

    def settle(self) -> StepOutput:
        output = super().settle()  # inside the wait: what the fake computes is not the host's work
        wait = self._ready.popleft() - self._clock()
        if wait > 0:
            self._sleep(wait)
        return output


class DyingLane(QueueLane):
    """A lane whose worker is gone after `steps` settled steps, noticed at a launch or in settle."""

    def __init__(self, worker: Worker, steps: int, *, at_launch: bool = False) -> None:
        super().__init__(worker)
        self._left = steps
        self._at_launch = at_launch

    def launch(self, plan: StepPlan) -> None:
        if self._at_launch and self._left <= 0:
            raise EngineDead("the lane has died; restart the server")
        super().launch(plan)

    def settle(self) -> StepOutput:
        if self._left <= 0:
            raise EngineDead("the lane has died; restart the server")
        self._left -= 1
        return super().settle()
