"""Applies a finished step: lengths, messages, endings. The only reader of a StepOutput.

Called by the loop with the oldest flight, after the only wait. Drops results of rows whose owner has left since the
launch, and the surplus of ended rows. Everything but the messages is arithmetic on whole columns.
"""

from dataclasses import replace

import msgspec
import numpy as np

from aerie.contracts.messages import DraftTree, Finished, TokenLogprobs, Tokens
from aerie.contracts.step import Bools, DecodeWork, DraftedTrees, Ending, Ints, Logprobs, Longs, PrefillWork, StepOutput
from aerie.scheduler.request import Phase, Request
from aerie.scheduler.rows import Rows
from aerie.scheduler.staging import Flight
from aerie.scheduler.stats import Stats


class Settler:
    def __init__(self, rows: Rows, stats: Stats) -> None:
        self._rows = rows
        self._stats = stats

    def settle(
        self, flight: Flight, live: Bools, output: StepOutput, now: float
    ) -> tuple[list[Tokens], list[Finished]]:
        """The step's messages; `live` [rows of the step] still have the owner that they were launched for. The rows of
        requests that finished are free when it returns.
        """
        plan, rows = flight.plan, flight.rows
        assert output.number == plan.number, f"step {output.number} came back where {plan.number} was due"
        self._stats.count(output)
        before = self._stats.tokens
        if plan.prefill is not None:
            self._settle_prefill(rows, live, plan.prefill, now)
        if np.count_nonzero(live) < len(rows):
            rows, output = rows[live], _only(output, live)
        counts = output.counts.tolist()
        if plan.decode is not None:
            self._settle_decode(rows, plan.decode, output, committed=sum(counts))
            if plan.behind is not None:
                self._catch_up(rows, plan.behind[live], output)
            if plan.resting is not None and 0 in counts:
                self._rows.stall(rows[plan.resting[live] & (output.counts == 0)])
        tokens = self._emit(rows, output, counts)
        self._stats.end_step(self._stats.tokens - before)
        if output.trees is not None:
            tokens = self._with_trees(tokens, rows, output, output.trees)
        ended = output.endings.nonzero()[0].tolist()
        return tokens, [self._finish(int(rows[index]), Ending(output.endings[index]), now) for index in ended]

    def _settle_decode(self, rows: Longs, work: DecodeWork, output: StepOutput, *, committed: int) -> None:
        """Replaces the bounds set for these rows at launch by the results, of so many tokens."""
        columns = self._rows
        columns.gained = committed / max(len(rows), 1)
        columns.settled[rows] = output.lengths
        if not work.depth and committed == len(rows):  # one token each, as the launch foresaw
            columns.accepted_steps[rows, 0] += 1
        else:
            columns.bounds[rows] += output.counts - (work.depth + 1)
            columns.pledged[rows] += output.counts - 1
            stepped = output.counts > 0  # a row whose grammar's mask came too late has had no step
            columns.accepted_steps[rows[stepped], output.accepted[stepped]] += 1
        if work.depth:
            columns.drafted[rows] += output.drafted
        if output.forbidden is not None:
            columns.forbidden[rows] += output.forbidden

    def _catch_up(self, rows: Longs, behind: Ints, output: StepOutput) -> None:
        """The heads of rows that were behind have seen all of them, also where a late mask let nothing be committed."""
        late = behind > 0
        self._rows.caught_up(rows[late], output.lengths[late])

    def _settle_prefill(self, rows: Longs, live: Bools, work: PrefillWork, now: float) -> None:
        """Settles prompt chunks; from now on other requests can find their pages."""
        columns = self._rows
        self._stats.prefill_tokens += len(work.token_ids)
        ends = (work.starts + work.counts).tolist()
        for row, alive, end, is_last in zip(rows.tolist(), live.tolist(), ends, work.is_last.tolist(), strict=True):
            if not alive:
                continue
            request = self._owner(row)
            columns.settled[row] = end
            columns.publish(request)
            if is_last and request.tally.first_token_at is None:
                request.tally.first_token_at = now

    def _emit(self, rows: Longs, output: StepOutput, counts: list[int]) -> list[Tokens]:
        """Makes one Tokens for each row that committed something, and appends the tokens to its request."""
        self._stats.committed += sum(counts)
        columns = self._rows
        # Whole-list passes: at 256 rows this is the largest part of the host's step.
        committed = [ids[:count] for ids, count in zip(output.token_ids.tolist(), counts, strict=True)]
        names = []
        for row, ids in zip(rows.tolist(), committed, strict=True):
            columns.texts[row].extend(ids)
            names.append(columns.ids[row])
        accepted = output.accepted.tolist()
        if output.logprobs is None:
            rowwise = zip(names, committed, accepted, strict=True)
            return [Tokens(id=id, ids=ids, accepted=n) for id, ids, n in rowwise if ids]
        scores = self._logprobs(rows, counts, output.logprobs)
        return [
            Tokens(id=id, ids=ids, accepted=n, logprobs=scored)
            for id, ids, n, scored in zip(names, committed, accepted, scores, strict=True)
            if ids
        ]

    def _logprobs(self, rows: Longs, counts: list[int], scores: Logprobs) -> list[list[TokenLogprobs] | None]:
        """For each row what its request asked for, or None; the device returns for all rows the most that any wants."""
        listed: list[list[TokenLogprobs] | None] = []
        for index, (row, count) in enumerate(zip(rows.tolist(), counts, strict=True)):
            wanted = int(self._rows.logprobs[row])
            if wanted < 0:
                listed.append(None)
                continue
            chosen = scores.chosen[index, :count].tolist()
            ids = scores.rank_ids[index, :count, :wanted].tolist()
            ranks = scores.rank_logprobs[index, :count, :wanted].tolist()
            listed.append(
                [
                    TokenLogprobs(logprob=own, rank_ids=best, rank_logprobs=values)
                    for own, best, values in zip(chosen, ids, ranks, strict=True)
                ]
            )
        return listed

    def _with_trees(self, tokens: list[Tokens], rows: Longs, output: StepOutput, trees: DraftedTrees) -> list[Tokens]:
        """Adds the drafted trees to the messages of requests that asked for them."""
        places = {self._rows.ids[row]: index for index, row in enumerate(rows.tolist())}

        def drafted(message: Tokens) -> DraftTree | None:
            index = places[message.id]
            count = int(output.drafted[index]) + 1
            if count == 1 or not self._owner(int(rows[index])).message.speculation.trees:
                return None
            return DraftTree(
                token_ids=trees.token_ids[index, :count].tolist(), parents=trees.parents[index, :count].tolist()
            )

        return [msgspec.structs.replace(message, tree=drafted(message)) for message in tokens]

    def _finish(self, row: int, ending: Ending, now: float) -> Finished:
        request = self._owner(row)
        assert len(request.tokens) <= request.limit, f"{request.id} grew to {len(request.tokens)}, past its limit"
        self._rows.vacate(request, Phase.ENDED)
        if ending is Ending.STOP_ID:
            return request.finished("stop", now, stop_id=request.tokens[-1])
        return request.finished("length", now)

    def _owner(self, row: int) -> Request:
        request = self._rows.owners[row]
        assert request is not None, f"row {row} has results and no owner"
        return request


def _only(output: StepOutput, live: Bools) -> StepOutput:
    """The output without the rows whose owner has left."""
    scores, trees = output.logprobs, output.trees
    return replace(
        output,
        token_ids=output.token_ids[live],
        counts=output.counts[live],
        accepted=output.accepted[live],
        drafted=output.drafted[live],
        lengths=output.lengths[live],
        endings=output.endings[live],
        forbidden=None if output.forbidden is None else output.forbidden[live],
        logprobs=scores and Logprobs(scores.chosen[live], scores.rank_ids[live], scores.rank_logprobs[live]),
        trees=trees and DraftedTrees(trees.token_ids[live], trees.parents[live]),
    )
