"""Targets and heads without weights: tables of next-token logits, so that laws are known exactly and thousands of rows
run at once.

`TableTarget` predicts from the token alone; `TableHead` from the token it is given; `Prophet` drafts a text that it
knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.sampling import MAX_STOP_IDS, SamplingParams, columns_of, noise_key
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import (
    Capacity,
    DecodeWork,
    PageUpdates,
    PrefillWork,
    RowStarts,
    StepKind,
    StepOutput,
    StepPlan,
)
from aerie.engine.bindings import REFERENCES
from aerie.engine.model.target import TargetOutput
from aerie.engine.state.kv_pool import KVPool
from aerie.engine.step.plain_worker import PlainWorker
from aerie.engine.step.state import DeviceState, make_state
from aerie.spec.drafters.eagle3 import Eagle3
from aerie.spec.drafters.head_drafter import HeadDrafter
from aerie.spec.heads.head import Reading
from aerie.spec.round.round import Round
from aerie.spec.worker import SpecWorker
from tests.engine.rounds import answer_of

_PAGE = 64


class TableTarget:
    """logits of what follows token t: table[t % states]. Its KV holds the tokens themselves."""

    boundaries = (0,)

    def __init__(self, table: Tensor, pages: int) -> None:
        self.table = table
        self.config = cast(Any, SimpleNamespace(vocabulary=table.shape[1]))
        self.pool = KVPool(layers=1, pages=pages, page_size=_PAGE, kv_heads=1, head_dim=1, dtype=torch.float32)

    def embed(self, ids: Tensor) -> Tensor:
        return ids[:, None].float()

    def forward(
        self, ids: Tensor, positions: Tensor, slots: Tensor, inputs: object, wanted: Tensor | None, *, taps: bool
    ) -> TargetOutput:
        values = ids.float().view(-1, 1, 1)
        self.pool.write(0, slots, values.expand(-1, 2, 1))
        last = ids if wanted is None else ids[wanted]
        return TargetOutput(self.table[last % len(self.table)], ids[:, None].float() if taps else None)


class _ToyHead:
    """Attends to nothing; `rotations` passes positions through, so that a head may know where it is."""

    def __init__(self, vocabulary: int) -> None:
        sizes = {"hidden": 1, "layers": 1, "kv_heads": 1, "head_dim": 1}
        self.config = SimpleNamespace(draft_vocabulary=vocabulary, taps=(0,), **sizes)
        self.kernels = REFERENCES
        self.weights = SimpleNamespace(draft_to_target=None)
        self.attention = SimpleNamespace(plan=lambda inputs: None, see=lambda planned, words: None)

    def fuse(self, taps: Tensor) -> Tensor:
        return taps

    def rotations(self, positions: Tensor) -> Tensor:
        return positions

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids


class TableHead(_ToyHead):
    """log q of what follows token t: table[t % states]."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table.shape[1])
        self.table = table

    def forward(self, tokens: Tensor, hidden: Tensor, rotations: Tensor, slots: Tensor, planned: object) -> Tensor:
        return tokens[:, None].float()

    def read(self, output: Tensor) -> Reading:
        return Reading(self.table[output[:, 0].long() % len(self.table)], output)


class Prophet(_ToyHead):
    """Knows x_0, x_1, ..: pair j drafts x_(j + 2)."""

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        super().__init__(vocabulary)
        self.text = torch.tensor([*text, *[0] * 64])

    def forward(self, tokens: Tensor, hidden: Tensor, rotations: Tensor, slots: Tensor, planned: object) -> Tensor:
        return rotations[:, None].float()

    def read(self, output: Tensor) -> Reading:
        following = self.text[output[:, 0].long() + 2]
        logits = torch.zeros(len(output), self.config.draft_vocabulary)
        return Reading(logits.scatter_(1, following[:, None], 9.0), output)


def toy_state(table: Tensor, rows: int, seed_width: int = 1) -> DeviceState:
    capacity = Capacity(
        rows=rows,
        pages=4 * rows + 1,
        page_size=_PAGE,
        max_length=256,
        vocabulary=table.shape[1],
        end_ids=(),
        drafts=True,
        reserve=32,
        edit_slots=rows,
    )
    return make_state(TableTarget(table, 4 * rows + 1), capacity, seed_width=seed_width)


def toy_worker(
    table: Tensor, head: _ToyHead | None, rows: int, drafter: Callable[[Any], HeadDrafter] = Eagle3, **spec: Any
) -> SpecWorker | PlainWorker:
    state = toy_state(table, rows)
    return PlainWorker(state) if head is None else SpecWorker(Round(state, drafter(head), SpecConfig(**spec)))


@dataclass
class Crowd:
    """Many rows of one prompt token, each with its own seed and one page, stepped together."""

    worker: SpecWorker | PlainWorker
    rows: int
    temperature: float
    first_seed: int = 0
    limit: int = 30
    prompts: int = 1
    """Row r begins with token 1 + r % prompts."""

    def start(self) -> list[list[int]]:
        """Prefills every row -> the tokens of each."""
        rows = np.arange(self.rows, dtype=np.int32)
        ones = np.ones(self.rows, np.int32)
        tokens = (1 + rows % self.prompts).astype(np.int32)
        self.generations = np.zeros(self.rows, np.int32)
        self.lengths = ones.copy()
        starts = RowStarts(
            rows=rows,
            noise_keys=np.array([noise_key(self.first_seed + row, [], 0) for row in range(self.rows)], np.int64),
            sampling=columns_of([SamplingParams(temperature=self.temperature)] * self.rows),
            prompt_lengths=ones,
            limits=np.full(self.rows, self.limit, np.int32),
            min_lengths=np.zeros(self.rows, np.int32),
            stop_ids=np.full((self.rows, MAX_STOP_IDS), -1, np.int32),
        )
        work = PrefillWork(tokens, ones * 0, ones, np.ones(self.rows, np.bool_), -ones)
        output = self._step(StepKind.PREFILL, work, None, starts, PageUpdates(rows, ones * 0, rows + 1))
        return output.token_ids[:, :1].tolist()

    def decode(self, *, depth: int = 0, topk: int = 1, nodes: int = 1) -> StepOutput:
        work = DecodeWork(self.lengths, np.full(self.rows, nodes, np.int32), depth, topk)
        output = self._step(StepKind.DECODE, None, work)
        self.lengths = output.lengths
        return output

    def tokens(self, count: int, **shape: int) -> np.ndarray:
        """[rows, count]: at least that many tokens of every row, cut to them."""
        texts = self.start()
        while min(map(len, texts)) < count:
            output = self.decode(**shape)
            for row, text in enumerate(texts):
                text += output.token_ids[row, : output.counts[row]].tolist()
        return np.array([text[:count] for text in texts])

    def _step(
        self,
        kind: StepKind,
        prefill: PrefillWork | None,
        decode: DecodeWork | None,
        starts: RowStarts | None = None,
        pages: PageUpdates | None = None,
    ) -> StepOutput:
        output = answer_of(
            self.worker,
            StepPlan(
                number=0,
                kind=kind,
                rows=np.arange(self.rows, dtype=np.int32),
                generations=self.generations,
                drafting=np.full(self.rows, isinstance(self.worker, SpecWorker)),
                prefill=prefill,
                decode=decode,
                starts=starts,
                page_updates=pages,
            ),
        )
        self.generations = 1 - self.generations
        return output
