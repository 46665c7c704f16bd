"""The device's edit slots: who holds one, and what each begins with.

A slot holds the biases of a row and counts the tokens of its prompt and answer. Used by `rows` (who holds one) and
`staging` (what it begins with). Invariant: a running request holds a slot iff its sampling has `edits`.
"""

import math

import numpy as np

from aerie.contracts.edit_starts import EditStarts
from aerie.contracts.step import Capacity
from aerie.scheduler.request import Request


class EditSlots:
    def __init__(self, capacity: Capacity) -> None:
        self._free = list(range(capacity.edit_slots - 1, -1, -1))

    def lacks(self, request: Request) -> bool:
        """Whether the request needs a slot and none is free."""
        return request.edits and not self._free

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, request: Request) -> None:
        if request.edits:
            request.edit_slot = self._free.pop()

    def give_back(self, request: Request) -> None:
        if request.edit_slot >= 0:
            self._free.append(request.edit_slot)
            request.edit_slot = -1


def edit_starts(requests: list[Request], vocabulary: int) -> EditStarts | None:
    """What the device is told of new owners; None if none of them has a slot."""
    if all(request.edit_slot < 0 for request in requests):
        return None
    prompts, answers, places = [], [], []
    fills: list[float] = []
    biases: list[float] = []
    for request in requests:
        sampling, first = request.message.sampling, request.edit_slot * vocabulary
        fills.append(0.0 if sampling.allowed_token_ids is None else -math.inf)
        if request.edit_slot < 0:
            continue
        tokens = np.array(request.tokens, dtype=np.int64) + first
        prompts.append(tokens[: request.prompt_length])
        answers.append(tokens[request.prompt_length :])
        own = dict(sampling.logit_bias)
        if sampling.allowed_token_ids is not None:
            own = {token: own.get(token, 0.0) for token in sampling.allowed_token_ids}
        own |= dict.fromkeys(sampling.banned_token_ids, -math.inf)
        places.append(np.array(list(own), dtype=np.int64) + first)
        biases += own.values()
    return EditStarts(
        slots=np.array([request.edit_slot for request in requests], dtype=np.int32),
        fills=np.array(fills, dtype=np.float32),
        bias_places=np.concatenate(places),
        biases=np.array(biases, dtype=np.float32),
        prompt_places=np.concatenate(prompts),
        answer_places=np.concatenate(answers),
    )
