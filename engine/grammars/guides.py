"""The rows of a lane whose answers must match a grammar, and how their choices are held to it.

Masks are lazy and exact: if the likeliest of all tokens is allowed, it is the likeliest of those allowed. So a row
walks along the path that the unmasked choices take, and makes a mask only where a choice is not allowed. A row with
filters needs one at each node of its path, since its support depends on the mask. Nodes off the path are never
accepted. Kernels that can hold a choice to a mask find that of the root made ahead, and ask for a walk below it.

A matcher belongs to a row until the row's next owner. It moves with the walk, and back over what the end of the row has
cut off, or takes what was committed while the next pass runs: it follows exactly the tokens of the answer.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from aerie.contracts.grammar import Grammar, Prepared
from aerie.contracts.sampling import GREEDY_BELOW
from aerie.contracts.step import DecodeWork, Longs, RowStarts, StepPlan
from aerie.contracts.worker import Reading, Telling
from aerie.engine.grammars.ahead import Ahead, Board
from aerie.engine.grammars.building import Building
from aerie.engine.grammars.guided import Guided
from aerie.engine.grammars.guided_step import GuidedStep
from aerie.engine.grammars.kept import KeptMatchers
from aerie.engine.grammars.matcher import GrammarFailed, Vocabulary

Chosen = Callable[[int, bytes], int]
"""What the target chooses at a node of the row among the tokens that are allowed, a bit for each in words of 32."""


class Guides:
    def __init__(self, vocabulary: Callable[[], Vocabulary], kept: KeptMatchers | None = None) -> None:
        """`vocabulary` is made when the first grammar arrives. `kept` may bound what is kept for later requests."""
        self._building = Building(vocabulary, kept)
        self._rows: dict[int, Guided] = {}
        self._step = GuidedStep()
        self._ahead: Ahead | None = None

    def look_ahead(self, board: Board) -> None:
        """Answers steps and makes the masks of roots while passes run, for kernels that read `board`."""
        self._ahead = Ahead(board)

    def prepare(self, request: int, grammar: Grammar, done: Callable[[Prepared], None]) -> None:
        """Builds a request's matcher on a thread, then calls `done` there."""
        self._building.prepare(request, grammar, done)

    def forget(self, request: int) -> None:
        """The request has ended."""
        self._building.forget(request)

    def begin(self, plan: StepPlan) -> bool:
        """Takes in a plan; says whether a row of its step chooses under a grammar. Harmless if called twice."""
        if plan.starts is not None and (self._rows or plan.starts.guides is not None):
            self._start(plan.starts)
        if self._step.rows:
            self._step = GuidedStep()
        if not self._rows:
            return False
        step, lasts = self._step, None if plan.prefill is None else plan.prefill.is_last
        for place, row in enumerate(map(int, plan.rows)):
            guided = self._rows.get(row)
            if guided is not None and not guided.over and (lasts is None or lasts[place]):
                step.rows[place] = guided
        return bool(step.rows)

    @property
    def step(self) -> dict[int, Guided]:
        """The rows that choose under a grammar in the step begun last, by their place in it."""
        return self._step.rows

    @property
    def places(self) -> list[int]:
        """Places of the step's rows that choose under a grammar."""
        return list(self._step.rows)

    def chooses(self, place: int) -> bool:
        return place in self._step.rows

    def forced(self, work: DecodeWork) -> Longs | None:
        """[rows, depth] of the step in progress: tokens that must come next, -1 elsewhere; None if none must."""
        found: Longs | None = None
        for place, guided in self._step.rows.items():
            room = min(work.depth, int(work.nodes[place]) - 1)
            tokens = _forced(guided)[:room] if room > 0 else []
            if tokens:
                found = np.full((len(work.nodes), work.depth), -1, dtype=np.int64) if found is None else found
                found[place, : len(tokens)] = tokens
                self._step.masking.forced += len(tokens)
        return found

    def walk(self, place: int, tokens: list[int], parents: list[int], chosen: list[int], among: Chosen) -> None:
        """Holds the choices of a row to its grammar: overwrites `chosen` [nodes] along the accepted path. `tokens` and
        `parents` [nodes] are those of the row's tree, its root first.
        """
        guided = self._step.rows[place]
        try:
            guided.wait()
            guided.walked = True
            node = 0
            while node >= 0 and not guided.over:
                chosen[node] = token = self._choose(guided, node, chosen[node], tokens, parents, among)
                if token in guided.end_ids:
                    return
                guided.matcher.take(token)
                guided.taken += 1
                node = _child(node, token, tokens, parents)
        except GrammarFailed as error:
            guided.over = True
            self._step.faults[place] = str(error)

    def answer(self, read: Reading, answer: Telling) -> None:
        """Moves the matchers to the end of what the step committed, and answers it with what the masks took. With
        `look_ahead` this may happen on another thread, beside the next step.
        """
        if not self._step.rows:
            self.await_answers()
            answer(read)
            return
        step, self._step = self._step, GuidedStep()
        if self._ahead is None:
            settled = step.settle(read())
            answer(lambda: settled)
        else:
            self._ahead.settle(step, read, answer)

    def await_answers(self) -> None:
        """Until all steps have been answered."""
        if self._ahead is not None:
            self._ahead.await_answers()

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._building.close()

    def _choose(
        self, guided: Guided, node: int, token: int, tokens: list[int], parents: list[int], among: Chosen
    ) -> int:
        self._step.masking.choices += 1
        if not guided.filtered and guided.matcher.allows(token):
            return token
        started = time.thread_time()
        words = guided.matcher.words()
        if node or not guided.masks:  # else it was made ahead, and counts already
            self._step.masking.seconds += time.thread_time() - started
            self._step.masking.masks += 1
        self._step.distinct.add(words)
        allowed = words[token >> 3] >> (token & 7) & 1
        if not allowed:
            guided.forbidden += _child(node, token, tokens, parents) >= 0
        return token if allowed and not guided.filtered else among(node, words)

    def _start(self, starts: RowStarts) -> None:
        """Rows with a new owner lose their matcher, and get its own."""
        for place, row in enumerate(map(int, starts.rows)):
            if row in self._rows:
                self._give_up(self._rows.pop(row))
            request = -1 if starts.guides is None else int(starts.guides[place])
            made = self._building.made.get(request)
            if made is None:  # free text, or a request that was aborted since
                continue
            matcher = made.copy()
            for token in starts.answers[place]:
                matcher.take(token)
            guided = Guided(row, matcher, self._building.vocabulary().end_ids, _filtered(starts, place))
            self._rows[row] = guided
            if self._ahead is not None:
                self._ahead.begin(guided)

    def _give_up(self, guided: Guided) -> None:
        """The row has another owner."""
        with suppress(GrammarFailed):
            guided.wait()
        if self._ahead is not None:
            self._ahead.board.free(guided.row)
        self._building.free([guided])


def _forced(guided: Guided) -> list[int]:
    guided.drafts = True
    try:
        guided.wait()
    except GrammarFailed:  # which the walk reports
        return []
    return guided.matcher.forced()


def _child(node: int, token: int, tokens: list[int], parents: list[int]) -> int:
    """The child of a node that is this token; -1 if none was drafted."""
    after = range(node + 1, len(tokens))
    return next((child for child in after if parents[child] == node and tokens[child] == token), -1)


def _filtered(starts: RowStarts, place: int) -> bool:
    sampling = starts.sampling
    return bool(sampling["temperature"][place] >= GREEDY_BELOW) and bool(
        sampling["top_k"][place] != 0 or sampling["top_p"][place] != 1 or sampling["min_p"][place] != 0
    )
