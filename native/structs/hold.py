"""What kernels of whole steps call to hold a row's choices to its grammar (src/plans.h).

C++ cannot pass an error of Python on, so it is kept and raised when the step is answered.
"""

import ctypes
from ctypes import c_float, c_int64, c_long, c_void_p
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Bools, Longs, StepPlan
from aerie.engine.grammars.guides import Guides
from aerie.engine.sampling.choose import choose
from aerie.engine.step.state import DeviceState

_CALL = ctypes.CFUNCTYPE(None, c_long, c_long, *[c_void_p] * 5)
_ROOT: Longs = np.zeros(1, dtype=np.int64)


class Hold:
    """Of one worker; `plan` is that of the step in progress."""

    def __init__(self, state: DeviceState) -> None:
        self.plan: StepPlan | None = None
        self._state = state
        self._call = _CALL(self._held)
        self._error: Exception | None = None

    @property
    def address(self) -> int | None:
        return ctypes.cast(self._call, c_void_p).value

    def check(self) -> None:
        """Raises what the last step could not."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _held(self, place: int, *given: Any) -> None:
        guides, plan = self._state.guides, self.plan
        assert guides is not None and plan is not None
        if not guides.chooses(place):
            return
        try:
            self._walk(guides, plan, place, *given)
        except Exception as error:  # noqa: BLE001  raised by `check`
            self._error = error

    def _walk(
        self,
        guides: Guides,
        plan: StepPlan,
        place: int,
        nodes: int,
        tokens: int | None,
        parents: int | None,
        chosen: int,
        logits: int,
        positions: int,
    ) -> None:
        state, vocabulary = self._state, self._state.capacity.vocabulary

        def among(node: int, allowed: Bools) -> int:  # seldom called, if the model keeps to its grammar
            rows = torch.tensor([int(plan.rows[place])])
            needs, after = state.needs.of(plan.rows[place : place + 1]), _longs(positions, nodes)
            own = (c_float * vocabulary).from_address(logits + node * vocabulary * ctypes.sizeof(c_float))
            row: Tensor = torch.frombuffer(own, dtype=torch.float32)[None]
            at, held = torch.from_numpy(after[node : node + 1]), torch.from_numpy(allowed)[None]
            path = path_to(node, own_tokens, own_parents) if needs.edits else None
            return int(state.kernels[choose](row, rows, at, state.tables, needs, path=path, allowed=held))

        own_tokens = _ROOT if tokens is None else _longs(tokens, nodes)
        own_parents = _ROOT if parents is None else _longs(parents, nodes)
        guides.walk(place, own_tokens, own_parents, _longs(chosen, nodes), among)


def path_to(node: int, tokens: Longs, parents: Longs) -> Tensor:
    """[1, nodes] the drafted ids above and at a node, -1 elsewhere."""
    path = torch.full((1, tokens.size), -1)
    while node:
        path[0, node] = int(tokens[node])
        node = int(parents[node])
    return path


def _longs(address: int, count: int) -> Longs:
    """The int64 values there; writing to them writes there."""
    return np.frombuffer(memoryview((c_int64 * count).from_address(address)), dtype=np.int64)
