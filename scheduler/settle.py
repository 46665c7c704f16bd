"""What a finished step means: lengths, messages, ends. The only reader of a StepOutput.

Called by the loop with the oldest flight, after the only wait. Results of a row whose owner has left since the launch
are dropped; so is the surplus of a row that was done. Everything but the messages is arithmetic on whole columns.
"""

from itertools import repeat

import numpy as np

from contracts.messages import Finished, TokenLogprobs, Tokens
from contracts.step import Ending, Ints, Logprobs, Longs, StepKind, StepOutput
from scheduler.request import Phase, Request
from scheduler.rows import Rows
from scheduler.staging import Flight
from scheduler.stats import Stats


class Settler:
    def __init__(self, rows: Rows, stats: Stats) -> None:
        self._rows = rows
        self._stats = stats

    def settle(self, flight: Flight, output: StepOutput, now: float) -> list[Tokens | Finished]:
        """The step's messages in order; a request's Finished follows its last Tokens, and its row is free by then."""
        plan = flight.plan
        assert output.number == plan.number, f"step {output.number} came back where {plan.number} was due"
        self._count(output)
        live = self._rows.future.current(plan.rows, flight.stamps)
        if live.all():
            live_at = np.arange(len(plan.rows))
        else:
            live_at = np.flatnonzero(live)
        if plan.kind is StepKind.PREFILL:
            committing = self._settle_prefill(flight, live_at, now)
        else:
            committing = self._settle_decode(flight, live_at, output)
        rows, endings = plan.rows[committing], output.endings[committing]
        messages: list[Tokens | Finished] = list(self._emit(rows, committing, output))
        for index in np.flatnonzero(endings).tolist():
            messages.append(self._finish(int(rows[index]), Ending(endings[index]), now))
        return messages

    def _settle_decode(self, flight: Flight, live_at: Longs, output: StepOutput) -> Longs:
        columns, decode = self._rows, flight.plan.decode
        assert decode is not None
        rows = flight.plan.rows[live_at]
        lengths = output.lengths[live_at]
        assert (lengths < columns.limits[rows]).all(), "a row grew past its limit"
        columns.lengths[rows] = columns.settled[rows] = lengths
        columns.known[rows] = lengths + 1
        columns.ahead[rows] -= decode.depth + 1
        columns.flying[rows] -= 1
        columns.steps[rows] += 1
        if decode.depth:
            drafted, accepted = output.drafted[live_at], output.accepted[live_at]
            columns.drafted[rows] += drafted
            columns.accepted[rows] += accepted
            columns.accepted_steps[rows, accepted] += drafted > 0
        return live_at

    def _settle_prefill(self, flight: Flight, live_at: Longs, now: float) -> Longs:
        """Chunks of prompts: their pages can be found by others from now on. Returns where a token was sampled."""
        columns, work = self._rows, flight.plan.prefill
        assert work is not None
        columns.settled[flight.plan.rows[live_at]] = (work.starts + work.counts)[live_at]
        last_at = live_at[work.is_last[live_at]]
        last = flight.plan.rows[last_at]
        columns.known[last] += 1
        columns.flying[last] -= 1
        for row in flight.plan.rows[live_at].tolist():
            columns.publish(self._owner(row))
        for row in last.tolist():
            tally = self._owner(row).tally
            tally.first_token_at = now if tally.first_token_at is None else tally.first_token_at
        return last_at

    def _emit(self, rows: Ints, at: Longs, output: StepOutput) -> list[Tokens]:
        """One Tokens for each row at `at` that committed something; their requests learn the tokens."""
        columns = self._rows
        counts = output.counts[at].tolist()
        tokens = output.token_ids[at].tolist()
        accepted = output.accepted[at].tolist()
        logprobs = self._logprobs(rows, at, counts, output.logprobs) if output.logprobs is not None else repeat(None)
        messages = []
        for row, count, ids, drafted, scores in zip(rows.tolist(), counts, tokens, accepted, logprobs):  # noqa: B905
            if count:
                request = columns.owners[row]
                assert request is not None
                committed = ids[:count]
                request.tokens += committed
                messages.append(Tokens(id=request.message.id, ids=committed, accepted=drafted, logprobs=scores))
        return messages

    def _logprobs(self, rows: Ints, at: Longs, counts: list[int], scores: Logprobs) -> list[list[TokenLogprobs] | None]:
        """For each row what its request asked for, or None; the device answers all with the most that any wants."""
        listed: list[list[TokenLogprobs] | None] = []
        for row, index, count in zip(rows.tolist(), at.tolist(), counts, strict=True):
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

    def _finish(self, row: int, ending: Ending, now: float) -> Finished:
        request = self._owner(row)
        self._rows.vacate(request, Phase.ENDED)
        if ending is Ending.STOP_ID:
            return request.finished("stop", now, stop_id=request.tokens[-1])
        return request.finished("length", now)

    def _owner(self, row: int) -> Request:
        request = self._rows.owners[row]
        assert request is not None, f"row {row} has results and no owner"
        return request

    def _count(self, output: StepOutput) -> None:
        """What the step did, whoever owns its rows by now."""
        stats = self._stats
        stats.steps += 1
        stats.busy_seconds += output.busy_seconds
        for phase, seconds in output.phase_seconds.items():
            stats.phase_seconds[phase] = stats.phase_seconds.get(phase, 0.0) + seconds
        stats.committed += int(output.counts.sum())
        drafted_rows = output.drafted > 0
        drafts = int(np.count_nonzero(drafted_rows))
        if drafts:
            stats.drafts += drafts
            stats.drafted += int(output.drafted.sum())
            stats.accepted += int(output.accepted.sum())
            stats.accepted_steps += np.bincount(output.accepted[drafted_rows], minlength=len(stats.accepted_steps))
