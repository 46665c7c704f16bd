"""A device without a model, for tests of the scheduler and of what stands above it.

`FakeWorker` keeps real state (page pools, page tables, two generations of every row) and a deterministic "model" whose
context is *read back through the page table*, so a wrong page, a lost generation or a shared write changes the text. It
also refuses plans that break the contract. `tests.fake_lanes` carry its steps with delay, at a given speed, or into
death.
"""

import random
from collections.abc import Callable, Iterable

import numpy as np

from aerie.contracts.sampling import MAX_STOP_IDS
from aerie.contracts.step import (
    DUMMY_PAGE,
    Capacity,
    DecodeWork,
    Ending,
    Logprobs,
    PrefillWork,
    StepKind,
    StepOutput,
    StepPlan,
)
from tests.fake_lanes import DelayedLane, DyingLane, QueueLane, TimedLane
from tests.fake_model import MASK, answer, capacity, pick, state_of
from tests.fake_pools import Broken, FakePools, expect

__all__ = [
    "Broken",
    "DelayedLane",
    "DyingLane",
    "FakeWorker",
    "QueueLane",
    "TimedLane",
    "answer",
    "capacity",
]


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
        stalls: float = 0.0,
    ) -> None:
        """`stalls`: the share of rows that commit nothing in a step, as if the mask of a grammar were late."""
        self._capacity = capacity
        self._random = random.Random(seed)
        self._poison = poison
        self._stalls = stalls
        self._acceptance = acceptance or (lambda depth, generator: generator.randint(0, depth))
        self.cached_pages: Callable[[], Iterable[int]] = tuple
        rows = capacity.rows
        self.pools = FakePools(capacity)
        self._future = [[None] * rows, [None] * rows]
        """By generation and row: (root token, length, ending), or None if nothing is published there."""
        self._constants: list[dict[str, object]] = [{} for _ in range(rows)]
        self._plain = np.zeros(rows, dtype=bool)
        self._tails: list[list[int]] = [[] for _ in range(rows)]
        """Tokens that each resting row's head has not seen."""
        self._next = 0
        self.closed = False
        self.plans: list[StepPlan] = []

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def close(self) -> None:
        self.closed = True

    def step(self, plan: StepPlan, answer: Callable[[StepOutput], None]) -> None:
        expect(plan.number == self._next, f"step {plan.number} where {self._next} was due")
        self._next += 1
        self.plans.append(plan)
        expect(len(set(plan.rows.tolist())) == len(plan.rows) > 0, "a row is twice in a step, or there is none")
        self._apply(plan)
        writes: dict[int, int] = {}
        if plan.kind is StepKind.PREFILL:
            assert plan.prefill is not None and plan.decode is None
            results = self._prefill(plan, plan.prefill, writes)
        else:
            assert plan.decode is not None and plan.prefill is None
            results = self._decode(plan, plan.decode, writes)
        touched = set(writes) & set(self.cached_pages())
        expect(not touched, f"the cached pages {touched} are written")
        answer(self._output(plan, results))

    def _apply(self, plan: StepPlan) -> None:
        if plan.starts is not None:
            starts = plan.starts
            for index, row in enumerate(starts.rows.tolist()):
                self.pools.table[row] = DUMMY_PAGE
                self._plain[row] = False
                self._tails[row] = []
                self._future[0][row] = self._future[1][row] = None
                expect(starts.stop_ids.shape[1] == MAX_STOP_IDS, "stop ids have the wrong width")
                self._constants[row] = {
                    "key": int(starts.noise_keys[index]),
                    "limit": int(starts.limits[index]),
                    "min_length": int(starts.min_lengths[index]),
                    "stops": {stop for stop in starts.stop_ids[index].tolist() if stop >= 0},
                }
        if plan.page_updates is not None:
            updates = plan.page_updates
            places = list(zip(updates.rows.tolist(), updates.slots.tolist(), strict=True))
            expect(len(set(places)) == len(places), "one page-table entry is set twice")
            self.pools.table[updates.rows, updates.slots] = updates.pages

    def _prefill(self, plan: StepPlan, work: PrefillWork, writes: dict[int, int]) -> list[dict[str, object]]:
        results = []
        offset = 0
        for index, row in enumerate(plan.rows.tolist()):
            start, count = int(work.starts[index]), int(work.counts[index])
            chunk = work.token_ids[offset : offset + count]
            offset += count
            expect(count > 0, "an empty chunk")
            self.pools.write(row, start, chunk, writes)
            end, next_id, drafting = start + count, int(work.next_ids[index]), bool(plan.drafting[index])
            self._extend(row, drafting)
            if drafting and start > 0:
                self.pools.check_pairs(row, start, int(chunk[0]))
            if not work.is_last[index]:
                expect(next_id >= 0, "a middle chunk without the token after it")
                if drafting:
                    self.pools.write_pairs(row, start, [*chunk[1:].tolist(), next_id])
                results.append({"ids": [], "length": end, "ending": Ending.OPEN})
                continue
            expect(next_id == -1, "a last chunk with a token after it")
            committed, ending = self._choose(row, end, [], 1)
            if drafting:
                self.pools.write_pairs(row, start, [*chunk[1:].tolist(), committed[0]])
            self._publish(plan, index, committed[-1], end, ending)
            results.append({"ids": committed, "length": end, "ending": ending})
        expect(offset == len(work.token_ids), "chunk lengths do not add up")
        return results

    def _decode(self, plan: StepPlan, work: DecodeWork, writes: dict[int, int]) -> list[dict[str, object]]:
        results = []
        for index, row in enumerate(plan.rows.tolist()):
            root, length, ending = self._read(plan, index)
            nodes, drafting = int(work.nodes[index]), bool(plan.drafting[index])
            resting = plan.resting is not None and bool(plan.resting[index])
            expect(not (drafting and resting), f"row {row} rests and extends its head")
            self._extend(row, drafting or resting)
            expect(nodes >= 1 and (drafting or nodes == 1), "a plain row with a tree")
            if ending is not Ending.OPEN:
                self._publish(plan, index, root, length, ending)
                results.append({"ids": [], "length": length, "ending": ending})
                continue
            bound = int(work.bounds[index])
            expect(length <= bound, f"row {row} has {length} tokens, over its bound {bound}")
            self.pools.cover(row, bound + self._capacity.reserve)
            if drafting:
                self._catch_up(row, length, 0 if plan.behind is None else int(plan.behind[index]))
                self.pools.check_pairs(row, length, root)
            if resting:
                assert plan.fresh is not None
                expect(not (plan.fresh[index] and self._tails[row]), f"row {row} begins to rest with a tail")
            if self._stalls and self._random.random() < self._stalls:
                self._publish(plan, index, root, length, ending)
                results.append({"ids": [], "length": length, "ending": ending})
                continue
            # What verification leaves behind: the root, then tree nodes that may all be wrong.
            junk = [self._random.randrange(self._capacity.vocabulary) for _ in range(nodes - 1)]
            self.pools.write(row, length, np.array([root, *junk]), writes)
            depth = min(work.depth, nodes - 1)
            accepted = self._acceptance(depth, self._random) if depth else 0
            committed, ending = self._choose(row, length, [root], accepted + 1)
            self.pools.write(row, length, np.array([root, *committed[:-1]]), {})
            if drafting:
                scratch = [self._random.randrange(10**6) for _ in range(self._capacity.reserve if depth else 0)]
                self.pools.write_pairs(row, length, scratch)
                self.pools.write_pairs(row, length, committed)
            if resting:
                self._tails[row] += committed
                expect(len(self._tails[row]) <= self._capacity.tail, f"row {row} rests with a full tail")
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
        written = self.pools.read(row, length)
        state = state_of(written) + state_of(np.array(known), length)
        total = length + len(known)
        committed: list[int] = []
        while len(committed) < count:
            banned = stops if total < constants["min_length"] else ()
            token = pick(state & MASK, constants["key"], self._capacity.vocabulary, banned)
            state += state_of(np.array([token]), total)
            total += 1
            committed.append(token)
            if token in stops:
                return committed, Ending.STOP_ID
            if total >= limit:
                return committed, Ending.LENGTH
        return committed, Ending.OPEN

    def _read(self, plan: StepPlan, index: int) -> tuple[int, int, Ending]:
        row, generation = int(plan.rows[index]), int(plan.generations[index])
        value = self._future[generation][row]
        expect(value is not None, f"row {row} reads generation {generation}, which nothing published")
        if self._poison:
            self._future[generation][row] = None
        return value

    def _publish(self, plan: StepPlan, index: int, root: int, length: int, ending: Ending) -> None:
        self._future[1 - int(plan.generations[index])][int(plan.rows[index])] = (root, length, ending)

    def _catch_up(self, row: int, length: int, behind: int) -> None:
        tail, self._tails[row] = self._tails[row], []
        late = 1 if self._stalls else 0  # the host does not know yet how the step before went
        expect(0 <= behind - len(tail) <= late, f"row {row} has {len(tail)} tokens in its tail, not {behind}")
        if tail:
            self.pools.write_pairs(row, length - len(tail), tail)

    def _extend(self, row: int, drafting: bool) -> None:
        expect(not (drafting and self._plain[row]), f"row {row} was plain and drafts again")
        self._plain[row] |= not drafting

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
