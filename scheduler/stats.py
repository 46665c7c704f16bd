"""Counters since the start, for the Snapshot that the server turns into metrics.

Written by the loop and settle, once a step. Time has three parts: the lane's work, as the lane reports it; the wait in
settle; and the rest of the time in which requests were open, which is the scheduler's work.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from aerie.contracts.grammar import Masking
from aerie.contracts.messages import STEP_TOKENS, GrammarSnapshot, Snapshot
from aerie.contracts.step import Longs, StepOutput
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.policy import Policy
from aerie.scheduler.queue import Queue
from aerie.scheduler.request import per_position
from aerie.scheduler.rows import Rows


@dataclass(slots=True)
class Stats:
    accepted_steps: Longs
    """[depth + 1]: row-steps that accepted exactly 0, 1, ... nodes."""
    steps: int = 0
    step_tokens: list[int] = field(default_factory=lambda: [0] * (len(STEP_TOKENS) + 1))
    prefill_tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    committed: int = 0
    head_off: bool = False
    guided_steps: int = 0
    """Steps in which a row chose under a grammar."""
    masking: Masking = field(default_factory=Masking)
    builds: int = 0
    build_seconds: float = 0.0
    reused: int = 0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    busy_seconds: float = 0.0
    open_seconds: float = 0.0
    """Time in which a request was open or a step in flight."""
    wait_seconds: float = 0.0
    """Time that settle waited for the lane."""

    @property
    def host_seconds(self) -> float:
        return self.open_seconds - self.wait_seconds

    @property
    def idle_seconds(self) -> float:
        return max(self.open_seconds - self.busy_seconds, 0.0)

    @property
    def tokens(self) -> int:
        """Prompt tokens computed and tokens committed, over all steps."""
        return self.prefill_tokens + self.committed

    def count(self, output: StepOutput) -> None:
        """Counts a step, whoever owns its rows by now."""
        self.steps += 1
        self.busy_seconds += output.busy_seconds
        for phase, seconds in output.phase_seconds.items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds
        if output.masking is not None:
            self.guided_steps += 1
            self.masking.add(output.masking)
        drafts = int(np.count_nonzero(output.drafted))
        if drafts:
            self.drafts += drafts
            self.drafted += int(output.drafted.sum())
            self.accepted_steps += np.bincount(output.accepted, minlength=len(self.accepted_steps))

    def end_step(self, tokens: int) -> None:
        """`tokens`: the prompt tokens that the step computed plus the tokens that it committed."""
        self.step_tokens[bisect_left(STEP_TOKENS, tokens)] += 1

    def _grammars(self) -> GrammarSnapshot:
        masking = self.masking
        return GrammarSnapshot(
            steps=self.guided_steps,
            choices=masking.choices,
            masks=masking.masks,
            distinct_masks=masking.distinct,
            mask_seconds=masking.seconds,
            drafted=masking.drafted,
            forbidden=masking.forbidden,
            forced=masking.forced,
            late=masking.late,
            builds=self.builds,
            build_seconds=self.build_seconds,
            reused=self.reused,
        )

    def snapshot(self, queue: Queue, rows: Rows, policy: Policy, goodput: Goodput | None) -> Snapshot:
        allocator = rows.memory.allocator
        per_depth = per_position(self.accepted_steps)
        return Snapshot(
            running=rows.running,
            waiting=len(queue),
            pages_used=allocator.held - rows.memory.prefix.evictable,
            pages_total=allocator.total,
            prefix_queries=policy.lookups,
            prefix_hits=policy.hits,
            preemptions=policy.preemptions,
            steps=self.steps,
            step_tokens=list(self.step_tokens),
            prefill_tokens=self.prefill_tokens,
            drafts=self.drafts,
            drafted=self.drafted,
            accepted=sum(per_depth),
            accepted_per_position=per_depth,
            head_off=self.head_off,
            planner=None if goodput is None else goodput.outcome.snapshot(),
            grammars=self._grammars(),
            committed=self.committed,
            phase_seconds=dict(self.phase_seconds),
            idle_seconds=self.idle_seconds,
            busy_seconds=self.busy_seconds,
            host_seconds=self.host_seconds,
        )


def fresh_stats(max_depth: int) -> Stats:
    return Stats(accepted_steps=np.zeros(max_depth + 1, dtype=np.int64))
