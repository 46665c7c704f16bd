"""A lane that answers with recorded texts, on a clock of its own: `aerie probe replay` and its simulations.

The real scheduler and the real planner drive it. Steps commit what they would have committed, and take the seconds that
a price says. Nothing waits.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aerie.contracts.sampling import noise_key
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Capacity, DecodeWork, Ending, Ints, Longs, PrefillWork, StepOutput, StepPlan
from aerie.engine.lanes.preparing import NoGrammars
from aerie.probe.clocks import Clock
from aerie.probe.recording import Recording
from aerie.scheduler.planner.work import StepWork

Price = Callable[[StepWork], Mapping[str, float]]
"""Seconds of a step's phases: verify, and draft and extend if it drafts."""
Host = Callable[[StepWork], float]
"""Seconds of the host's work for a step."""


@dataclass(slots=True)
class _Row:
    recording: Recording
    accepted: list[int]
    """By place, of the deepest chain."""
    place: int = -1
    """Index of the last committed token of the answer; -1 before its first."""
    length: int = 0
    ending: Ending = Ending.OPEN


@dataclass(slots=True)
class ReplayLane(NoGrammars):
    """Implements contracts.step.Lane. The host works between two steps, beside the device, or after it if the lane is
    `inline`. Each chain ends where the recorded confidence ends it, if `confident`. Before decode step `swapped_at` the
    head is never right, as if the recorded one took the place of a useless one then.
    """

    capacity: Capacity
    price: Price
    clock: Clock
    host: Host = lambda work: 0.0
    confident: bool = False
    swapped_at: int = 0
    inline: bool = False
    committed: int = 0
    decoded: int = 0
    """Decode steps launched."""
    _known: dict[int, tuple[Recording, list[int]]] = field(default_factory=dict)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _unknown: dict[int, int] = field(default_factory=dict)
    """Lengths of rows without a recording: those of the planner's calibration."""
    _flying: deque[StepOutput] = field(default_factory=deque)
    _free_at: float = 0.0
    _late: float = 0.0

    def know(self, recordings: Sequence[Recording]) -> None:
        """Makes these requests answerable. A row's request is recognized by the key of its noise."""
        for one in recordings:
            request = one.request
            key = noise_key(request.sampling.seed or 0, list(request.prompt), request.choice)
            self._known[key] = one, one.accepted()

    def acceptance(self, rows: Longs, tree: DraftShape | None = None) -> list[int]:
        """What the next draft of each row would have accepted, of the deepest chain or of this tree."""
        return [_next(self._rows[row], tree) for row in rows.tolist()]

    def launch(self, plan: StepPlan) -> None:
        if plan.starts is not None:
            for row, key in zip(plan.starts.rows.tolist(), plan.starts.noise_keys.tolist(), strict=True):
                found = self._known.get(key)
                if found is not None:
                    self._rows[row] = _Row(*found)
        output, work = self._prefilled(plan, plan.prefill) if plan.prefill is not None else self._decoded(plan)
        phases = dict(self.price(work))
        late, self._late = self._late, phases.pop("extend", 0.0)
        if plan.behind is not None and plan.behind.any():
            phases["catch_up"] = self.price(StepWork(0, 0, 0, pairs=int(plan.behind.sum())))["extend"]
        self.clock.now += self.host(work)
        began = max(self.clock.now, self._free_at)
        ended = began + sum(phases.values())
        self._free_at = ended + self._late
        if late:
            phases = {"extend": late} | phases
        busy = sum(phases.values())
        self._flying.append(replace(output, phase_seconds=phases, busy_seconds=busy, began=began - late, ended=ended))
        self.committed += int(output.counts.sum())
        if self.inline:
            self.clock.now = self._free_at

    def settle(self) -> StepOutput:
        output = self._flying.popleft()
        self.clock.now = max(self.clock.now, output.ended)
        return output

    def close(self) -> None:
        self._flying.clear()

    def _prefilled(self, plan: StepPlan, work: PrefillWork) -> tuple[StepOutput, StepWork]:
        size = len(plan.rows)
        ids, counts, endings = (np.zeros(size, dtype=np.int32) for _ in range(3))
        for index, row in enumerate(plan.rows.tolist()):
            length, own = int(work.starts[index] + work.counts[index]), self._rows.get(row)
            if own is None:
                self._unknown[row], counts[index] = length, 1
                continue
            own.length = length
            if work.is_last[index]:
                own.place = length - len(own.recording.request.prompt)  # the answer's, if it computes them again
                ids[index], counts[index] = own.recording.tokens[own.place], 1
                endings[index] = own.ending = _ending(own)
        output = _output(plan, ids[:, None], counts, 0 * counts, 0 * counts, self._lengths(plan.rows), endings)
        return output, prefill_work(plan)

    def _decoded(self, plan: StepPlan) -> tuple[StepOutput, StepWork]:
        work = plan.decode
        assert work is not None
        size, levels = len(plan.rows), self._levels(plan, work)  # of each row
        right = self.decoded >= self.swapped_at
        self.decoded += 1
        tree = DraftShape(work.depth, work.topk, int(work.nodes.max())) if work.topk > 1 else None
        ids = np.full((size, work.depth + 1), -1, dtype=np.int32)
        counts, accepted, endings = (np.zeros(size, dtype=np.int32) for _ in range(3))
        for index, row in enumerate(plan.rows.tolist()):
            own = self._rows.get(row)
            if own is None:
                counts[index] = 1
            elif own.ending is Ending.OPEN:
                most = int(levels[index]) if right and plan.drafting[index] else 0
                ids_, accepted[index] = self._commit(own, min(_next(own, tree), most))
                ids[index, : len(ids_)], counts[index] = ids_, len(ids_)
            endings[index] = Ending.OPEN if own is None else own.ending
        drafted = work.nodes - 1 if tree is not None else levels
        drafted = np.where(plan.drafting & (work.depth > 0), drafted, 0).astype(np.int32)
        output = _output(plan, ids, counts, accepted, drafted, self._lengths(plan.rows), endings)
        return output, decode_work(plan, output)

    def _levels(self, plan: StepPlan, work: DecodeWork) -> Ints:
        """[rows] the most levels of each row: a chain grows until the head is unsure of it. A row that has ended since
        the plan counts as unsure, though the device may go on for what it drafts there.
        """
        most: Ints = np.minimum(work.nodes - 1, work.depth) if work.topk == 1 else work.nodes - 1
        if work.topk > 1 or not self.confident:
            return most
        sure = [_sure(self._rows[row]) if row in self._rows else work.depth for row in plan.rows.tolist()]
        return np.minimum(most, np.array(sure, dtype=np.int32))

    def _commit(self, own: _Row, accepted: int) -> tuple[list[int], int]:
        ids = own.recording.tokens[own.place + 1 : own.place + 2 + accepted]
        own.place += len(ids)
        own.length += len(ids)
        own.ending = _ending(own)
        return ids, min(accepted, len(ids))

    def _lengths(self, rows: Ints) -> Ints:
        lengths = [self._rows[row].length if row in self._rows else self._unknown[row] for row in rows.tolist()]
        return np.array(lengths, dtype=np.int32)


def _next(own: _Row, tree: DraftShape | None) -> int:
    """Nodes of the row's next draft that equal the text. A tree is known by its depth and children: near a row's limit
    it has fewer nodes than the recorded one, which are counted as if they were the accepted ones.
    """
    accepted = own.accepted
    if tree is not None:
        shapes = own.recording.trees
        accepted = next(shapes[one] for one in shapes if one.topk == tree.topk and one.depth >= tree.depth)
    return accepted[own.place] if 0 <= own.place < len(accepted) else 0


def _sure(own: _Row) -> int:
    sure = own.recording.sure
    return sure[own.place] if own.ending is Ending.OPEN and 0 <= own.place < len(sure) else 0


def _ending(own: _Row) -> Ending:
    if own.place + 1 < len(own.recording.tokens):
        return Ending.OPEN
    return Ending.STOP_ID if own.recording.reason == "stop" else Ending.LENGTH


def decode_work(plan: StepPlan, output: StepOutput) -> StepWork:
    """What a decode step did."""
    work = plan.decode
    assert work is not None
    rows, drafts = len(plan.rows), bool(output.drafted.any())
    drafting = plan.drafting & (work.nodes > 1)
    # The head is extended by all nodes of chains, and by one path of each tree.
    extending = output.drafted if work.topk == 1 else np.full(rows, work.depth)
    return StepWork(
        rows=rows,
        tokens=rows + int(output.drafted.sum()),
        context=float(output.lengths.sum()),
        levels=work.depth if work.topk > 1 and drafts else int(output.drafted.max(initial=0)),
        frontier=int(np.count_nonzero(drafting)) * work.topk if drafts else 0,
        pairs=int((1 + extending[plan.drafting]).sum()),
    )


def prefill_work(plan: StepPlan) -> StepWork:
    """What a prefill step does."""
    work = plan.prefill
    assert work is not None
    extended = int(work.counts[plan.drafting].sum())
    return StepWork(len(plan.rows), len(work.token_ids), float(work.starts.sum()), pairs=extended)


def _output(
    plan: StepPlan, ids: Ints, counts: Ints, accepted: Ints, drafted: Ints, lengths: Ints, endings: Ints
) -> StepOutput:
    return StepOutput(plan.number, ids, counts, accepted, drafted, lengths, endings)
