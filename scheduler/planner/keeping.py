"""Whether the head's KV of a prompt is worth what it costs: without it a request cannot draft.

Used by `goodput` when a request is admitted. What drafts promise fresh rows holds for as many steps as have been
learned from, and no longer than a choice may: the first steps teach the most.
"""

from aerie.contracts.step import Bools, Longs, StepOutput
from aerie.scheduler.planner.answers import Answers
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.held import HELD
from aerie.scheduler.planner.predictions import MARGIN, Predictions
from aerie.scheduler.planner.survival import Survival, temperature_class
from aerie.scheduler.planner.trials import LUCK, LUCKY, Trials

_Kind = tuple[int, int]
"""Number of rows, and temperature class."""


class Keeping:
    """For up to `rows` rows."""

    def __init__(
        self,
        costs: StepCosts,
        chains: Chains,
        survival: Survival,
        predicted: Predictions,
        trials: Trials,
        *,
        rows: int,
    ) -> None:
        self._costs = costs
        self._chains = chains
        self._survival = survival
        self._predicted = predicted
        self._guard = predicted.guard
        self._trials = trials
        self._answers = Answers(rows)
        self._fresh: dict[_Kind, tuple[float, float, int]] = {}
        """What drafts promise fresh rows, the tokens of a step of each, and until which step that holds."""
        self._lucky: dict[_Kind, tuple[float, int]] = {}
        """What they promise if only one of the rows drafts, and is lucky; and until which step that holds."""

    def begin(self, row: int, prompt: int) -> None:
        """A row gets a new owner with a prompt of so many tokens."""
        self._answers.begin(row, prompt)

    def settle(self, rows: Longs, live: Bools, output: StepOutput) -> None:
        """Takes in the answers that end with a settled step; `live` says which rows still have their owner."""
        self._answers.settle(rows, live, output)

    def pays(self, rows: int, temperature: float, context: int, *, prompt: int, answer: int, headed: int) -> bool:
        """Whether a request of `prompt` tokens keeps head KV, beside others of `context` tokens, of which `headed` do:
        if drafting for `rows` fresh rows of its kind gains more over an answer, of at most `answer` tokens, than the
        head's KV of the prompt costs; or may for this one alone, since it may be better than the mean; or if no other
        row does and trials can pay for it: else nobody notices that a head has become better.
        """
        costs, guard = self._costs, self._guard
        if not costs.ready:
            return True
        tokens = self._answers.expected(answer)
        context += prompt + round(tokens / 2)  # half of its answer, on average
        plain = self._predicted.plain(rows, context)
        seconds = guard.corrected(costs.extend_pass + prompt * costs.pair, rows, drafts=False)
        if guard.allows(rows) and guard.keeps():
            gain = self._fresh_gain(rows, temperature, context, plain, tokens)
            pays = tokens * plain / rows * (1.0 - 1.0 / max(gain, 1.0) - MARGIN) > seconds
            lucky = (self._lucky_gain(rows, temperature, context, plain) - 1.0 - MARGIN) * plain * tokens
            if pays or lucky * LUCKY > seconds:
                guard.keep(seconds / plain)
                return True
        return not headed and self._trials.keep(seconds / plain)

    def _fresh_gain(self, rows: int, temperature: float, context: int, plain: float, answer: float) -> float:
        """What the best draft for `rows` fresh rows of one temperature gains, over answers of so many tokens, whose
        last step commits half of what it could on average.
        """
        kind, now = (rows, temperature_class(temperature)), self._now
        gain, tokens, until = self._fresh.get(kind, (0.0, 1.0, 0))
        if now >= until:
            chances = self._survival.fresh(temperature, rows, self._chains.depths[-1])
            best = self._chains.best(chances, rows, context, 0)
            gain, tokens = self._predicted.gain(best, rows, plain), best.tokens / rows
            self._fresh[kind] = gain, tokens, _asked_again(now)
        return gain * answer / (answer + (tokens - 1.0) / 2.0)

    def _lucky_gain(self, rows: int, temperature: float, context: int, plain: float) -> float:
        """What the best draft gains if one fresh row is lucky and no other one drafts."""
        kind, now = (rows, temperature_class(temperature)), self._now
        gain, until = self._lucky.get(kind, (0.0, 0))
        if now >= until:
            chances = self._survival.fresh(temperature, 1, self._chains.depths[-1], luck=LUCK)
            gain = self._predicted.gain(self._chains.best(chances, rows, context, 0), rows, plain)
            self._lucky[kind] = gain, _asked_again(now)
        return gain

    @property
    def _now(self) -> int:
        """Steps planned so far."""
        return self._survival.offsets.now


def _asked_again(now: int) -> int:
    return now + min(max(now, 1), HELD)
