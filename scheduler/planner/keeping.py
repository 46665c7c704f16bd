"""Whether the head's KV of a prompt is worth what it costs: without it a request cannot draft.

Used by `goodput` when a request is admitted. What drafts promise fresh rows holds for as many steps as have been
learned from, and no longer than a choice may: the first steps teach the most.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aerie.scheduler.planner.answers import Answers
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.held import HELD
from aerie.scheduler.planner.predictions import MARGIN, Predictions
from aerie.scheduler.planner.survival import Survival, temperature_class
from aerie.scheduler.planner.trials import LUCK, LUCKY, Trials


@dataclass(frozen=True, slots=True)
class _Promise:
    """What drafts promise fresh rows of one temperature, beside plain steps."""

    gain: float
    tokens: float
    """Of a step of each row."""
    lucky: float
    """The gain if only one of the rows drafts, and is lucky."""
    plain: float
    """Seconds of a plain step."""
    slower: float
    """Steps take so many times what the costs say."""
    until: int
    """The step until which it holds."""


class Keeping:
    def __init__(
        self,
        costs: StepCosts,
        chains: Chains,
        survival: Survival,
        predicted: Predictions,
        trials: Trials,
        learn: Callable[[], None],
    ) -> None:
        """`learn` takes in what steps have shown since the last time."""
        self._costs = costs
        self._chains = chains
        self._survival = survival
        self._predicted = predicted
        self._guard = predicted.guard
        self._trials = trials
        self._learn = learn
        self.answers = Answers()
        self._promises: dict[tuple[int, int], _Promise] = {}
        """By the number of rows and the temperature class."""

    def pays(self, rows: int, temperature: float, context: int, *, prompt: int, answer: int, headed: int) -> bool:
        """Whether a request of `prompt` tokens keeps head KV, beside others of `context` tokens, of which `headed` do:
        if drafting for `rows` fresh rows of its kind gains more over an answer, of at most `answer` tokens, than the
        head's KV of the prompt costs; or may for this one alone, since it may be better than the mean; or if no other
        row does and trials can pay for it: else nobody notices that a head has become better.
        """
        if not self._costs.ready:
            return True
        guard, tokens = self._guard, self.answers.expected(answer)
        context += prompt + round(tokens / 2)  # half of its answer, on average
        promise = self._promise(rows, temperature, context)
        plain, seconds = promise.plain, promise.slower * self._costs.catch_up(prompt)
        if guard.allows(rows) and guard.keeps():
            gain = promise.gain * tokens / (tokens + (promise.tokens - 1.0) / 2.0)  # the last step commits half
            pays = tokens * plain / rows * (1.0 - 1.0 / max(gain, 1.0) - MARGIN) > seconds
            if pays or (promise.lucky - 1.0 - MARGIN) * plain * tokens * LUCKY > seconds:
                guard.keep(seconds / plain)
                return True
        return not headed and self._trials.keep(seconds / plain)

    def _promise(self, rows: int, temperature: float, context: int) -> _Promise:
        kind, now = (rows, temperature_class(temperature)), self._survival.offsets.now
        known = self._promises.get(kind)
        if known is not None and now < known.until:
            return known
        self._learn()
        plain, deepest = self._predicted.plain(rows, context), self._chains.depths[-1]
        best = self._chains.best(self._survival.fresh(temperature, rows, deepest), rows, context, 0)
        lucky = self._chains.best(self._survival.fresh(temperature, 1, deepest, luck=LUCK), rows, context, 0)
        self._promises[kind] = promise = _Promise(
            self._predicted.gain(best, rows, plain),
            best.tokens / rows,
            self._predicted.gain(lucky, rows, plain),
            plain,
            self._guard.corrected(1.0, rows, drafts=False),
            now + min(max(now, 1), HELD),
        )
        return promise
