"""Where a step is cut if it has rows with grammars on a device that runs beside the host: between the target's logits
and the choice. The lane settles the step before, then lets this one proceed; the masks are made meanwhile.
"""

from collections.abc import Callable

import numpy as np
import torch

from aerie.contracts.step import Ints, StepOutput
from aerie.engine.grammars.masked import Places, StepMasks, Trees
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import Layout
from aerie.engine.step.results import Pending
from aerie.engine.step.state import DeviceState

Sent = Callable[[Pending], None]
"""Takes a step's answer as soon as the answer is on its way."""
Rest = Callable[[Sent, Masks | None], None]
"""Runs a step from its choice on."""


def choose_then(
    state: DeviceState,
    sent: Sent,
    rest: Rest,
    places: Callable[[], Places],
    trees: Trees | None = None,
    *,
    late: bool = True,
) -> None:
    """Runs the rest of a step whose logits have been launched: at once, or when its masks are there. `late`: its rows
    may commit nothing where a mask is missing.
    """
    if state.masked is None or not state.masked.wanted:
        rest(sent, None)
        return
    state.clock.cut()
    sent(Cut(state, state.masked.of_step(places(), trees, late=late), rest))


def ragged_places(lay: Layout) -> Places:
    """Of a pass that has every node of its rows, and no others."""
    return Places(lay.counts, np.cumsum(lay.counts) - lay.counts, int(lay.counts.sum()))


def equal_places(counts: Ints, width: int, rows: int) -> Places:
    """Of a recorded pass with `width` nodes in each of `rows` rows, of which the first have counts [n]."""
    return Places(counts, np.arange(counts.size, dtype=np.int32) * width, rows * width)


class Cut:
    """A step that has been launched up to its logits. Implements Pending."""

    def __init__(self, state: DeviceState, masks: StepMasks, rest: Rest) -> None:
        self._state = state
        self._masks = masks
        self._rest: Rest | None = rest
        self._sent: list[Pending] = []

    @torch.inference_mode()
    def proceed(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            self._masks.make()
            self._state.clock.begin()
            rest(self._sent.append, self._masks.send())

    def output(self) -> StepOutput:
        self.proceed()
        return self._masks.filling.settled(self._sent[0].output())
