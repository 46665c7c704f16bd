"""Choices among what a grammar allows, in C++: those of `choose` with the same mask, from the same logits."""

import ctypes
from typing import Any

import hypothesis.strategies as some
import numpy as np
import torch
from hypothesis import given, settings

from aerie.contracts.sampling import GREEDY_BELOW, MAX_STOP_IDS, SamplingParams, columns_of, noise_key
from aerie.contracts.step import Ending, Longs, RowStarts, StepKind, StepPlan
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.sampling.choose import Needs, choose
from aerie.engine.state.edit_tables import EditTables
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import HostTransfer
from aerie.engine.step.batch import RowNeeds
from aerie.native.layers import Matrix
from aerie.native.library import library, missing
from aerie.native.structs.model import Model, native_tables
from aerie.native.structs.plan import Step
from tests.native.cpp_here import CPP, needs_cpp
from tests.recount import starts_of

pytestmark = needs_cpp
PROMPT, ANSWER = [3, 1, 4], [1, 2, 2]
STOPS = (2, 4)
ROWS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, seed=1),
    SamplingParams(temperature=1.4, seed=2, top_p=0.7),
    SamplingParams(temperature=0.6, seed=3, top_k=3, min_p=0.05),
    SamplingParams(temperature=0.0, top_k=2, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
    SamplingParams(temperature=1.1, seed=5, repetition_penalty=0.8, logit_bias={3: 4.0, 0: -7.5}, top_k=4),
    SamplingParams(temperature=0.8, seed=6, allowed_token_ids=(1, 2, 4)),
    SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=STOPS),
    SamplingParams(temperature=1.0, seed=8, min_tokens=9, stop_token_ids=STOPS, top_p=0.9, presence_penalty=1.0),
]
"""One of each kind; the last two cannot end yet."""


class Held:
    """The rows of a step over a vocabulary, in the tables of both sides."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, count = vocabulary, len(ROWS)
        places, size = np.arange(count, dtype=np.int32), len(PROMPT)
        stops = [[*row.stop_token_ids, *[-1] * (MAX_STOP_IDS - len(row.stop_token_ids))] for row in ROWS]
        starts = RowStarts(
            rows=places,
            noise_keys=np.array([noise_key(row.seed, PROMPT, 0) for row in ROWS], np.int64),
            sampling=columns_of(ROWS),
            prompt_lengths=np.full(count, size, np.int32),
            limits=np.full(count, 99, np.int32),
            min_lengths=np.array([size + row.min_tokens for row in ROWS], np.int32),
            stop_ids=np.array(stops, np.int32),
            edits=starts_of([(row, PROMPT, ANSWER) for row in ROWS], range(count), vocabulary),
        )
        self.tables = RowTables(count, 1, 16, edits=EditTables(count, count, vocabulary))
        self.tables.staged_start(starts, HostTransfer())()
        self.needs = RowNeeds(count)
        self.needs.note(StepPlan(0, StepKind.DECODE, places, places, places > 0, None, None, starts=starts))
        self.rows = places[::-1].copy()
        """A step has them in an order of its own."""
        step = self.needs.of(self.rows)
        self._kept = Model(output=Matrix(outputs=vocabulary)), native_tables(self.tables), self.rows.tobytes()
        model, tables, rows = self._kept
        self.step = Step(ctypes.addressof(model), ctypes.addressof(tables), None, None, None, rows, None, count)
        self.step.open, self.step.stop, self.step.full = Ending.OPEN, Ending.STOP_ID, Ending.LENGTH
        self.step.greedy_below = GREEDY_BELOW
        self.step.samples, self.step.filters, self.step.bans, self.step.edits = (
            step.noise,
            step.filters,
            step.bans,
            step.edits,
        )

    def found(self, place: int, node: int, mask: Any, tree: tuple[Longs, Longs], logits: Any, after: Longs) -> int:
        words = np.packbits(mask, bitorder="little").tobytes().ljust(-(-self.vocabulary // 32) * 4, b"\0")
        tokens, parents = (None, None) if len(after) == 1 else (part.ctypes.data for part in tree)
        given = ctypes.byref(self.step), place, node, words, tokens, parents, logits.ctypes.data, after.ctypes.data
        return int(library().chosen_among(*given))

    def expected(
        self, kernels: Kernels, place: int, node: int, mask: Any, tree: tuple[Longs, Longs], logits: Any, after: Longs
    ) -> int:
        """By one call of `choose` for the node alone, with the needs of its row alone."""
        needs: Needs = self.needs.of(self.rows[place : place + 1])
        own = torch.from_numpy(logits[node : node + 1].copy()), torch.tensor([int(self.rows[place])])
        held = torch.from_numpy(mask)[None]
        at = torch.from_numpy(after[node : node + 1])
        return int(kernels[choose](*own, at, self.tables, needs, path=path_to(node, *tree), allowed=held))


def path_to(node: int, tokens: Longs, parents: Longs) -> torch.Tensor:
    """[1, nodes] the drafted ids above and at a node, -1 elsewhere."""
    path = torch.full((1, tokens.size), -1)
    while node:
        path[0, node] = int(tokens[node])
        node = int(parents[node])
    return path


HELD = {} if missing() else {vocabulary: Held(vocabulary) for vocabulary in (5, 32, 77, 2051)}


@settings(max_examples=200, deadline=None)
@given(seed=some.integers(0, 2**32 - 1), vocabulary=some.sampled_from((5, 32, 77, 2051)), ties=some.booleans())
def test_the_choice_is_that_of_a_mask_for_the_node_alone(seed: int, vocabulary: int, ties: bool) -> None:
    held, draw = HELD[vocabulary], np.random.default_rng(seed)
    count = int(draw.integers(1, 12))
    tokens = draw.integers(0, min(vocabulary, 6), count)
    parents = np.array([0, *(int(draw.integers(0, node)) for node in range(1, count))])
    depths = np.zeros(count, np.int64)
    for node in range(1, count):
        depths[node] = depths[parents[node]] + 1
    after = len(PROMPT) + len(ANSWER) + 1 + depths
    logits = draw.normal(0, 3, (count, vocabulary)).astype(np.float32)
    if ties:
        logits = np.round(logits)
    given = (tokens, parents), logits, after
    for place in range(len(ROWS)):
        node, mask = int(draw.integers(0, count)), draw.random(vocabulary) < draw.choice([0.02, 0.5, 0.98])
        if draw.random() < 0.3:  # the end alone: where that is banned, bans leave nothing
            mask[:] = False
            mask[list(STOPS)] = True
        if not mask.any():
            mask[int(draw.integers(0, vocabulary))] = True
        before = logits.copy()
        found = held.found(place, node, mask, *given)
        assert mask[found] and np.array_equal(before, logits)
        assert found == held.expected(CPP, place, node, mask, *given)
        if not ties and ROWS[held.rows[place]].temperature == 0:  # torch's noise differs in its last bits
            assert found == held.expected(REFERENCES, place, node, mask, *given)
