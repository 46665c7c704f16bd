"""Plans by hand: what a scheduler would do for a few rows, written out so that a worker can be tested alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aerie.contracts.sampling import MAX_STOP_IDS, SamplingParams, columns_of, noise_key
from aerie.contracts.step import DecodeWork, PageUpdates, PrefillWork, RowStarts, StepKind, StepOutput, StepPlan
from aerie.contracts.worker import Worker
from tests.recount import starts_of

_INT = np.int32


def answer_of(worker: Worker, plan: StepPlan) -> StepOutput:
    """What a step commits, once all of it has run."""
    answers: list[StepOutput] = []
    worker.step(plan, answers.append)
    return answers[0]


@dataclass
class Row:
    """One request of the driver."""

    index: int
    prompt: list[int]
    sampling: SamplingParams
    drafting: bool = False
    generation: int = 0
    length: int = 0
    done: bool = False
    rested: int = 0
    """Steps since its head was extended last."""
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


class Rounds:
    """Owns pages and turns. Rows take the pages after the dummy in order, enough for their longest."""

    def __init__(self, worker: Worker, *, end_ids: Sequence[int] = ()) -> None:
        self.worker = worker
        self._end_ids = tuple(end_ids)
        self._next_page = 1
        self._number = 0

    def add(
        self, index: int, prompt: list[int], sampling: SamplingParams, *, chunk: int = 256, drafting: bool = False
    ) -> Row:
        """Prefills a row in chunks and takes its first token."""
        row = Row(index, prompt, sampling, drafting)
        starts = self._starts(row)
        pages = self._pages(row)
        for begin in range(0, len(prompt), chunk):
            end = min(begin + chunk, len(prompt))
            last = end == len(prompt)
            work = PrefillWork(
                token_ids=np.array(prompt[begin:end], _INT),
                starts=np.array([begin], _INT),
                counts=np.array([end - begin], _INT),
                is_last=np.array([last]),
                next_ids=np.array([-1 if last else prompt[end]], _INT),
            )
            first = begin == 0
            output = self._step(
                [row], StepKind.PREFILL, work, None, starts if first else None, pages if first else None
            )
        row.generation, row.length = 1 - row.generation, len(prompt)
        self._take([row], output)
        return row

    def decode(
        self,
        rows: list[Row],
        *,
        depth: int = 0,
        topk: int = 1,
        nodes: int = 1,
        slack: int = 0,
        resting: bool = False,
        behind: int = 0,
    ) -> StepOutput:
        """One step for rows that are not done; `slack` loosens the host's bounds as a step in flight would. Rows that
        keep a head rest if `resting`, or first catch up with `behind` tokens.
        """
        work = DecodeWork(
            bounds=np.array([row.length + slack for row in rows], _INT),
            nodes=np.array([nodes if row.drafting else 1 for row in rows], _INT),
            depth=depth,
            topk=topk,
        )
        output = self._step(rows, StepKind.DECODE, None, work, resting=resting, behind=behind)
        for row in rows:
            row.generation = 1 - row.generation
            row.rested = row.rested + 1 if resting and row.drafting else 0
        self._take(rows, output)
        return output

    def finish(self, rows: list[Row], *, depth: int = 0, topk: int = 1, nodes: int = 1, slack: int = 0) -> None:
        """Decodes until all rows are done."""
        while open_rows := [row for row in rows if not row.done]:
            self.decode(open_rows, depth=depth, topk=topk, nodes=nodes, slack=slack)

    def _take(self, rows: list[Row], output: StepOutput) -> None:
        for place, row in enumerate(rows):
            count = int(output.counts[place])
            row.out += output.token_ids[place, :count].tolist()
            if output.logprobs is not None:
                row.logprobs += output.logprobs.chosen[place, :count].tolist()
            row.accepted.append(int(output.accepted[place]))
            row.length = int(output.lengths[place])
            row.done = bool(output.endings[place])

    def _step(
        self,
        rows: list[Row],
        kind: StepKind,
        prefill: PrefillWork | None,
        decode: DecodeWork | None,
        starts: RowStarts | None = None,
        pages: PageUpdates | None = None,
        *,
        resting: bool = False,
        behind: int = 0,
    ) -> StepOutput:
        self._number += 1
        headed = np.array([row.drafting for row in rows])
        return answer_of(
            self.worker,
            StepPlan(
                number=self._number,
                kind=kind,
                rows=np.array([row.index for row in rows], _INT),
                generations=np.array([row.generation for row in rows], _INT),
                drafting=headed & (not resting),
                resting=headed if resting else None,
                fresh=headed & np.array([row.rested == 0 for row in rows]) if resting else None,
                behind=np.where(headed, behind, 0).astype(_INT) if behind else None,
                prefill=prefill,
                decode=decode,
                starts=starts,
                page_updates=pages,
                logprobs=max(row.sampling.logprobs for row in rows),
            ),
        )

    def _starts(self, row: Row) -> RowStarts:
        s = row.sampling
        ids = [*s.stop_token_ids, *(() if s.ignore_eos else self._end_ids)]
        size = len(row.prompt)
        return RowStarts(
            rows=np.array([row.index], _INT),
            noise_keys=np.array([noise_key(s.seed, row.prompt, 0)], np.int64),
            sampling=columns_of([s]),
            prompt_lengths=np.array([size], _INT),
            limits=np.array([size + s.max_tokens], _INT),
            min_lengths=np.array([size + s.min_tokens], _INT),
            stop_ids=np.array([ids + [-1] * (MAX_STOP_IDS - len(ids))], _INT),
            edits=starts_of([(s, row.prompt, [])], [row.index], self.worker.capacity.vocabulary),
        )

    def _pages(self, row: Row) -> PageUpdates:
        capacity = self.worker.capacity
        longest = len(row.prompt) + row.sampling.max_tokens + capacity.reserve + 16
        count = -(-longest // capacity.page_size)
        pages = np.arange(self._next_page, self._next_page + count, dtype=_INT)
        self._next_page += count
        assert self._next_page <= capacity.pages, "the test's pool is too small"
        return PageUpdates(np.full(count, row.index, _INT), np.arange(count, dtype=_INT), pages)
