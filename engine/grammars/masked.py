"""Steps with grammars on a device that runs beside the host: where the masks of their places lie.

Built with the worker, since graphs read the masks at fixed addresses. The host writes a step's masks into one of two
page-locked copies; at most two steps are in flight, and the device has read a copy before its turn comes again.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from aerie.contracts.step import Ints, StepPlan
from aerie.engine.cuda import Event, Runtime
from aerie.engine.grammars.filling import Filling
from aerie.engine.grammars.follower import Follower
from aerie.engine.grammars.guided import Guided
from aerie.engine.grammars.guides import Guides
from aerie.engine.sampling.masks import FREE, Masks, mask_words

MOST_MASKS = 1024
"""Distinct masks of a step, if it has no more rows; nodes that find no room count as not drafted."""

Trees = Callable[[], tuple[Ints, Ints]]
"""Waits for what a step drafted: tokens, parents [rows, most]."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the nodes of a step's rows lie in its pass."""

    counts: Ints
    """[rows] nodes of each row."""
    firsts: Ints
    """[rows] the root of each row."""
    total: int
    """With places that belong to no row."""


def passed(event: Event) -> bool:
    """Whether the device has passed an event, and waits."""
    return event.query()


class MaskedSteps:
    def __init__(
        self, guides: Guides, runtime: Runtime, vocabulary: int, *, rows: int, places: int, threads: int
    ) -> None:
        """Steps have at most `rows` rows and `places` nodes."""
        wide, most = mask_words(vocabulary), min(places, max(MOST_MASKS, rows))
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="masks")
        self.passed = passed
        self._guides = guides
        self._runtime = runtime
        self._device = Masks(
            torch.zeros(most, wide, dtype=torch.int32, device=runtime.device),
            torch.full((places,), FREE, dtype=torch.int64, device=runtime.device),
        )
        self._copies = [
            (
                runtime.pinned(4 * most * wide).view(torch.int32).view(most, wide),
                runtime.pinned(8 * places).view(torch.int64),
            )
            for _ in range(2)
        ]
        self._followers: WeakKeyDictionary[Guided, Follower] = WeakKeyDictionary()
        self._rows: dict[int, Follower] = {}
        """Those of the step in progress, by their place in it."""

    def begin(self, plan: StepPlan) -> bool:
        """Takes in a plan; says whether its step has to wait for masks."""
        found = self._guides.step if self._guides.begin(plan) else {}
        self._rows = {place: self._follower(guided) for place, guided in found.items()}
        return bool(self._rows)

    @property
    def wanted(self) -> bool:
        """Whether the step in progress has to wait for masks."""
        return bool(self._rows)

    def at(self, count: int) -> Masks:
        """The masks of the first `count` places, at their fixed addresses."""
        return self._device.first(count)

    def of_step(self, places: Places, trees: Trees | None, *, late: bool) -> "StepMasks":
        """Of the step in progress, whose pass has been launched. `late`: its rows may go on without a mask."""
        self._copies.reverse()
        words, of = self._copies[0]
        of = of[: places.total]
        event = None
        if late:
            event = self._runtime.event()
            event.record()
        filling = Filling(self._rows, words.numpy(), of.numpy(), places.counts, places.firsts)
        return StepMasks(self, filling, words, of, trees, event)

    def send(self, words: Tensor, of: Tensor) -> Masks:
        """words [used, words of one], of [places], page-locked."""
        self._device.words[: words.shape[0]].copy_(words, non_blocking=True)
        self._device.of[: of.shape[0]].copy_(of, non_blocking=True)
        return self.at(of.shape[0])

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _follower(self, guided: Guided) -> Follower:
        if guided not in self._followers:
            self._followers[guided] = Follower(guided)
        return self._followers[guided]


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The masks that a step waits for."""

    steps: MaskedSteps
    filling: Filling
    words: Tensor
    of: Tensor
    trees: Trees | None
    """None if nothing was drafted."""
    event: Event | None
    """Passed once the target's pass has ended; None if the step waits for all masks."""

    def make(self) -> None:
        """Makes them, as far as the device need not wait. Call it once the step before has been settled."""
        steps, filling = self.steps, self.filling
        filling.begin(steps.pool)
        if self.trees is not None:
            filling.grow(steps.pool, *self.trees())
        filling.finish(lambda: self.event is not None and steps.passed(self.event))

    def send(self) -> Masks:
        """The masks on the device."""
        return self.steps.send(self.words[: self.filling.used], self.of)
