"""Whether the head's KV of a prompt is worth what it costs: without it a request cannot draft.

Used by `goodput` when a request is admitted. Head KV costs a pass of the head over the prompt, and one of the target
over what only rows without a head have cached. The second is for all requests that share a prefix, once, where drafting
begins. So it does not decide about one of them, but the accounts pay it, which bound what a beginning may lose. What
drafts promise fresh rows holds for half as many steps as have been learned from, and at most twice as long as a choice:
the first steps teach the most.

Requests are not judged one by one, as if others did not matter. Beside rows that draft, one without a head takes all
their long steps for a token each, so it holds its row several times as long: if only prompts for whose own answer a
head pays had one, most rows would soon be the others'. And given that others draft, a head may pay for each of many
short answers, though all would be done sooner if none had one. So a head must pay in two ways: for the usual request,
if all have one beside none; and for its own, in the time for which it frees its row.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aerie.scheduler.planner.answers import Answers
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.exploring import Exploring
from aerie.scheduler.planner.guard import MOST_KEPT
from aerie.scheduler.planner.held import HELD
from aerie.scheduler.planner.predictions import MARGIN, Predictions
from aerie.scheduler.planner.sizes import size_of
from aerie.scheduler.planner.survival import Survival, temperature_class
from aerie.scheduler.planner.trials import LUCK, LUCKY, Trials

_RATE = 1 / 32
"""What one more prompt counts for in their mean."""
_LEAST = 1e-3
"""A gain below is as bad: drafting steps then take longer than any that could be worth it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request is that may keep head KV, as one of `rows` rows. The others hold `context` tokens."""

    rows: int
    temperature: float
    context: int
    prompt: int
    """Tokens that it reads."""
    answer: int
    """The most that it answers after them."""
    answered: int = 0
    """Of those that it reads, so many are its answer's: it decodes already, without head KV."""
    again: int = 0
    """Of those that it reads, only pages without head KV have cached so many: the target computes them again."""


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
    token: float
    """Seconds of one more token of a prompt."""
    reading: float
    """Seconds of a pass that reads prompts, beside its tokens."""
    slower: float
    """Steps take so many times what the costs say."""
    late: float
    """Steps that a row takes part in once its answer has ended, since that is known one step late: as a share of one,
    since a device that skips rows which have ended needs the time of the others alone.
    """
    until: int
    """The step until which it holds."""

    def saved(self, tokens: float, drafting: float) -> float:
        """Seconds, times rows, that head KV saves over an answer of so many tokens, beside rows of which this share
        drafts; 0 is the share before all begin to.
        """
        slower = self.tokens * self.plain / max(self.gain, _LEAST) - self.plain  # a drafting step than a plain one
        steps = self.steps(tokens)
        plain = self.late + tokens
        return plain * (self.plain + drafting * slower) - steps * (self.plain + slower + drafting * slower)

    def steps(self, tokens: float) -> float:
        """Drafting steps of an answer of so many tokens: the last one commits half."""
        return self.late + (tokens + (self.tokens - 1.0) / 2.0) / self.tokens

    def saved_by_all(self, tokens: float, rows: int) -> float:
        """The same, and what is saved by reading more prompts in a pass, if all of so many rows draft beside none that
        does. Between two decode steps lies one pass over prompts.
        """
        plain, drafting = _share_of_a_pass(rows, self.late + tokens), _share_of_a_pass(rows, self.steps(tokens))
        return self.saved(tokens, 0.0) + rows * self.reading * (plain - drafting)


def _share_of_a_pass(rows: int, steps: float) -> float:
    """Of the passes over prompts, for one of them, if rows are free again after so many steps."""
    return 1.0 / max(rows / steps, 1.0)


class Keeping:
    def __init__(
        self,
        costs: StepCosts,
        chains: Chains,
        survival: Survival,
        predicted: Predictions,
        trials: Trials,
        exploring: Exploring,
        learn: Callable[[], None],
    ) -> None:
        """`learn` takes in what steps have shown since the last time."""
        self._costs = costs
        self._chains = chains
        self._survival = survival
        self._predicted = predicted
        self._guard = predicted.guard
        self._trials = trials
        self._exploring = exploring
        self._learn = learn
        self.answers = Answers()
        self._promises: dict[tuple[int, int], _Promise] = {}
        """By the size of the batch and the temperature class."""
        self.promised = 0.0
        """The gain that drafts promised fresh rows when a request last came; 0 before the first."""
        self.cost = 0.0
        """Decayed mean of the plain steps that head KV of a prompt costs; 0 before the first."""
        self._prompt = self._answer = 0.0
        """Decayed means of the tokens of prompts, and of those that are expected of their answers; 0 before the first.
        """

    def pays(self, asked: Asked, *, headed: int, drafting: int = 0) -> bool:
        """Whether a request keeps head KV. `headed` of the other rows do, and `drafting` draft now.

        It does if drafting gains more over its answer than head KV costs; or may for this one alone, since it may be
        better than the mean; or if few rows do and trials can pay for it: else nobody notices that a head has become
        better.
        """
        if not self._costs.ready:
            return True
        rows, prompt = asked.rows, asked.prompt
        guard, tokens = self._guard, self.answers.expected(asked.answer)
        rate = _RATE if self._prompt else 1.0
        self._prompt += rate * (prompt - self._prompt)
        self._answer += rate * (tokens - self._answer)
        half = tokens / 2  # of its answer, on average, which the others' come to while it is written
        context = round(max(asked.context, (rows - 1) * (self._prompt + half)) + prompt + half)
        promise = self._promise(rows, asked.temperature, context)
        plain, seconds = promise.plain, promise.slower * self._costs.catch_up(prompt)
        cost = (seconds + promise.slower * asked.again * promise.token) / plain
        self.promised = promise.gain
        self.cost += (_RATE if self.cost else 1.0) * (min(cost, MOST_KEPT) - self.cost)
        if guard.allows(rows) and guard.keeps(rows):
            pays = self._pays(promise, tokens, seconds, rows - 1, drafting)
            if pays or (promise.lucky - 1.0 - MARGIN) * plain * tokens * LUCKY > seconds:
                guard.keep(rows, cost)
                return True
        if self._exploring.on(rows):
            guard.keep(rows, cost)
            return True
        return headed < self._trials.heads and self._trials.keep(cost)

    def recomputes(self, asked: Asked, *, drafting: int) -> bool:
        """Whether a row without head KV computes its tokens again to get it. `drafting` of the other rows draft now.

        It leaves no debt: that of one long row would keep all requests after it from drafting, until rests have paid.
        """
        guard, costs, rows = self._guard, self._costs, asked.rows
        if not costs.ready or not guard.allows(rows) or not guard.keeps(rows):
            return False
        promise, prompt = self._promise(rows, asked.temperature, asked.context + asked.prompt), asked.prompt
        seconds = promise.slower * (promise.reading + prompt * promise.token + costs.catch_up(prompt))
        cost, left = seconds / promise.plain, self.answers.left(asked.answered, asked.answer)
        if not guard.affords(rows, cost) or not self._pays(promise, left, seconds, rows - 1, drafting):
            return False
        guard.keep(rows, cost)
        return True

    def _pays(self, promise: _Promise, tokens: float, own: float, others: int, drafting: int) -> bool:
        """Whether head KV, of `own` seconds, saves time over an answer of so many tokens, beside so many others of
        which `drafting` draft.
        """
        least = MARGIN * tokens * promise.plain
        if not others:
            return promise.saved(tokens, 0.0) - least > own
        if not self._pays_for_all(promise, 1 + others, begun=drafting > 0):
            return False
        share = min(drafting / others, 1.0) if drafting else 1.0
        return promise.saved(tokens, share) - least > (1 + others) * own

    def _pays_for_all(self, promise: _Promise, rows: int, *, begun: bool) -> bool:
        """Whether the usual answer saves time if all of so many rows draft, beside none that does; by more where none
        has `begun` to, since a beginning costs what no formula has.
        """
        tokens, costs = self._answer, self._costs
        least = 0.0 if begun else MARGIN * tokens * promise.plain
        once = costs.catch_up(0)  # of a pass, however many prompts it extends the head with
        share = _share_of_a_pass(rows, promise.steps(tokens))
        head = promise.slower * (costs.catch_up(round(self._prompt)) - (1.0 - share) * once)
        return promise.saved_by_all(tokens, rows) - least > rows * head

    def _promise(self, rows: int, temperature: float, context: int) -> _Promise:
        kind, now = (size_of(rows), temperature_class(temperature)), self._survival.offsets.now
        known = self._promises.get(kind)
        if known is not None and now < known.until:
            return known
        self._learn()
        plain, deepest = self._predicted.plain(rows, context), self._chains.depths[-1]
        best = self._chains.of_like(self._survival.fresh(temperature, deepest), rows, rows, context)
        lucky = self._chains.of_like(self._survival.fresh(temperature, deepest, luck=LUCK), 1, rows, context)
        self._promises[kind] = promise = _Promise(
            self._predicted.gain(best, rows, plain),
            best.tokens / rows,
            self._predicted.gain(lucky, rows, plain),
            plain,
            self._costs.prompt_token(),
            self._costs.prompt_pass(),
            self._guard.corrected(1.0, rows, drafts=False),
            self._late(rows, context),
            now + min(max(now // 2, 1), 2 * HELD),
        )
        return promise

    def _late(self, rows: int, context: int) -> float:
        """What a step of so many rows takes whatever rows it has, as a share of all that it takes."""
        half, costs = max(rows // 2, 1), self._costs
        once, twice = (costs.plain(count, context * count / rows) for count in (half, 2 * half))
        return min(max((2.0 * once - twice) / costs.plain(rows, context), 0.0), 1.0)
