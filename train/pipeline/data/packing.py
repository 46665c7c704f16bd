"""Packs conversations into rows: which conversations share a row, and the row itself with their bounds.

The order of an epoch depends only on the seed and the epoch's number: shards in random order, documents of a shard in
random order, each in the first of the next few rows that has room. So a resumed run, and each process of several, knows
every row without reading any.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.train.pipeline.data.served import States
from aerie.train.pipeline.data.shards import Shards

Place = tuple[int, int]
"""A document: its shard, and its number there."""

_ROOMS = 8
"""Rows that are filled at once; more leave less room unused and mix shards more."""


@dataclass(frozen=True, slots=True)
class Row:
    """One packed row. `documents` [1, columns] numbers the conversations, so that none sees another."""

    ids: Tensor
    answer: Tensor
    documents: Tensor
    taps: Tensor
    """[1, columns, taps * hidden] bf16."""
    final: Tensor
    """[1, columns, hidden] bf16, before the target's final norm."""


def rows_of_epoch(
    lengths: list[list[int]], *, tokens: int, seed: int, epoch: int, documents: range | None = None
) -> list[list[Place]]:
    """Rows of at most `tokens`; a longer document gets its own row and is cut when it is read. `documents` are those
    that rows are made of, counted over all shards.
    """
    rng = random.Random(f"{seed} epoch {epoch}")
    before = list(itertools.accumulate(map(len, lengths), initial=0))
    rows: list[list[Place]] = []
    open_rows: list[tuple[list[Place], int]] = []
    for shard in rng.sample(range(len(lengths)), len(lengths)):
        for place in rng.sample(range(len(lengths[shard])), len(lengths[shard])):
            if documents is not None and before[shard] + place not in documents:
                continue
            size = min(lengths[shard][place], tokens)
            fitting = next((at for at, (_, used) in enumerate(open_rows) if used + size <= tokens), None)
            if fitting is None:
                if len(open_rows) == _ROOMS:
                    rows.append(open_rows.pop(0)[0])
                open_rows.append(([(shard, place)], size))
            else:
                row, used = open_rows[fitting]
                row.append((shard, place))
                open_rows[fitting] = row, used + size
    return rows + [row for row, _ in open_rows]


class Rows:
    """Every packed row of a run by its number, epoch after epoch."""

    def __init__(
        self,
        shards: Shards,
        *,
        tokens: int,
        seed: int,
        compute: Callable[[list[int]], States] | None,
        documents: tuple[int, int] | None = None,
    ) -> None:
        """`compute` gives the states of documents that were stored without them; `documents` is the range of those to
        read. Raises ConfigError if the shards hold fewer.
        """
        stored = sum(map(len, shards.lengths))
        if documents is not None and documents[1] > stored:
            raise ConfigError(
                f"train.documents ends at {documents[1]}; the features hold {stored} conversations",
                param="train.documents",
            )
        self._shards = shards
        self._tokens = tokens
        self._seed = seed
        self._compute = compute
        self._documents = None if documents is None else range(*documents)
        self._planned: list[list[list[Place]]] = []

    def of_epochs(self, epochs: int) -> int:
        """The number of rows in this many epochs."""
        self._plan(epochs)
        return sum(map(len, self._planned[:epochs]))

    def row(self, number: int) -> Row:
        """The row of any number: epochs go on without end."""
        epoch = 0
        while True:
            self._plan(epoch + 1)
            if number < len(self._planned[epoch]):
                return self._read(self._planned[epoch][number])
            number -= len(self._planned[epoch])
            epoch += 1

    def _plan(self, epochs: int) -> None:
        for epoch in range(len(self._planned), epochs):
            planned = rows_of_epoch(
                self._shards.lengths, tokens=self._tokens, seed=self._seed, epoch=epoch, documents=self._documents
            )
            self._planned.append(planned)

    def _read(self, places: list[Place]) -> Row:
        ids, answer, documents, taps, final = [], [], [], [], []
        for number, (shard, place) in enumerate(places):
            stored = self._shards.document(shard, place)
            states = stored.states
            if states is None:
                assert self._compute is not None
                states = self._compute(stored.ids.tolist())
            size = min(len(stored.ids), self._tokens)
            ids.append(stored.ids[:size])
            answer.append(stored.answer[:size])
            documents.append(torch.full((size,), number))
            taps.append(states.taps[:size])
            final.append(states.final[:size])
        return Row(*(torch.cat(parts)[None] for parts in (ids, answer, documents, taps, final)))
