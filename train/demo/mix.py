"""What a run reads at each step: fresh exercises of all tasks by share, short ones first.

A step's batch depends on the seed, the step and the shares alone, so a run that was killed goes on with the same
batches.
"""

import random
from collections.abc import Callable, Iterator, Mapping

from aerie.train.demo.batches import Batch, Sample, padded
from aerie.train.demo.chat import Chat
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise

GROUP = 32
"""Batches that are drawn and sorted by length together, so that a batch pads little."""
_SEVERAL = 0.08
"""Share of the exercises that are a conversation about different things."""
_UNTHINKING = 0.15
"""Share of the exercises that are asked with the thoughts turned off."""
_FEWEST_SIZES = 0.1


def draw(shares: Mapping[str, float], dice: Dice) -> Exercise:
    """An exercise of a task drawn by its share; some are a conversation of two."""
    names, weights = zip(*shares.items(), strict=True)
    first = TASKS[dice.rng.choices(names, weights)[0]].draw(dice)
    if dice.chance(_SEVERAL) and _plain(first):
        return joined([first, TASKS[dice.rng.choices(names, weights)[0]].draw(dice)])
    if dice.chance(_UNTHINKING) and _plain(first):
        return Exercise(first.tasks, first.messages, thinking=False)
    return first


def joined(parts: list[Exercise]) -> Exercise:
    """One conversation about each part in turn; tools and thoughts can only come last."""
    messages = [message for part in parts for message in part.messages]
    tasks = tuple(task for part in parts for task in part.tasks)
    return Exercise(tasks, messages, parts[-1].tools)


def _plain(exercise: Exercise) -> bool:
    """Whether it has neither tools nor thoughts."""
    return not {"tools", "stories"} & set(exercise.tasks)


class Mix:
    """Batches of about `tokens` tokens.

    `shares(step)` gives the share of each task's exercises from a step on; `grown` says over how many steps the sizes
    of exercises grow to 1, and at the same pace on to `size`.
    """

    def __init__(
        self,
        chat: Chat,
        shares: Callable[[int], Mapping[str, float]],
        *,
        tokens: int,
        longest: int,
        grown: int,
        seed: int,
        size: float = 1.0,
    ) -> None:
        if tokens < longest:
            raise ValueError(f"tokens_per_batch is {tokens}; it must be at least longest, {longest}")
        self._chat = chat
        self._shares = shares
        self._tokens = tokens
        self._longest = longest
        self._grown = grown
        self._size = size
        self._seed = seed

    def ahead(self, step: int) -> Iterator[Batch]:
        """The batches from `step` on, without end."""
        while True:
            yield from self._group(step // GROUP)[step % GROUP :]
            step += GROUP - step % GROUP

    def _group(self, number: int) -> list[Batch]:
        rng = random.Random(f"{self._seed} {number}")
        largest = min(self._size, _FEWEST_SIZES + number * GROUP / self._grown)
        shares = self._shares(number * GROUP)
        samples: list[Sample] = []
        left = GROUP * self._tokens
        while left > 0:
            sample = self._chat.sample(draw(shares, Dice(rng, size=rng.uniform(0, largest))))
            if len(sample.ids) <= self._longest:
                samples.append(sample)
                left -= len(sample.ids)
        batches = [padded(rows, self._longest) for rows in _cut(samples, self._tokens)]
        rng.shuffle(batches)
        return batches


def _cut(samples: list[Sample], tokens: int) -> list[list[Sample]]:
    """The samples by length, in as many batches as a group has."""
    batches: list[list[Sample]] = [[] for _ in range(GROUP)]
    total = 0
    for sample in sorted(samples, key=lambda sample: len(sample.ids)):
        batches[min(GROUP - 1, total // tokens)].append(sample)
        total += len(sample.ids)
    return batches
