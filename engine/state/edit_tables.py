"""The device's edit slots: what rows with penalties or biases need beside their columns.

A row that edits logits has a slot; the others share the dummy slot, whose values are never used. Filled from
`EditStarts`; `count` adds what each step commits, in stream order.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.edit_starts import EditStarts
from aerie.engine.state.transfer import Transfer

IN_PROMPT = -(2**31)
"""Bit 31 of a count: the token is in the prompt. The other bits count how often it is in the answer."""
COUNT = 2**31 - 1
"""Those other bits."""


def edit_bytes(slots: int, vocabulary: int) -> int:
    """Of the tables, the dummy slot included."""
    return 8 * (slots + 1) * vocabulary if slots else 0


class EditTables:
    """Tables of `slots` slots and the dummy slot, the last, for rows [rows + 1]."""

    def __init__(self, rows: int, slots: int, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.dummy = slots
        self.vocabulary = vocabulary = vocabulary if slots else 0
        self.slots = torch.full((rows + 1,), slots, dtype=torch.int64, device=device)
        """[rows + 1] the slot of each row."""
        self.counts = torch.zeros(slots + 1, vocabulary, dtype=torch.int32, device=device)
        """[slots + 1, V] IN_PROMPT | how often each token is in the answer."""
        self.biases = torch.zeros(slots + 1, vocabulary, dtype=torch.float32, device=device)
        """[slots + 1, V] what is added to each logit; -inf bans a token."""

    def staged_start(self, starts: EditStarts | None, rows: Tensor, transfer: Transfer) -> Callable[[], None]:
        """Stages the slots of rows [starts] with new owners. The returned function writes them."""
        if starts is None:

            def leave() -> None:
                self.slots.index_fill_(0, rows, self.dummy)

            return leave
        slots = np.where(starts.slots < 0, self.dummy, starts.slots)
        owned = transfer.put(slots)  # [starts], as fills
        fills = transfer.put(starts.fills, np.float32)
        biased, biases = transfer.put(starts.bias_places), transfer.put(starts.biases, np.float32)  # [biases]
        prompt, answer = transfer.put(starts.prompt_places), transfer.put(starts.answer_places)

        def write() -> None:
            counts = self.counts.view(-1)
            self.slots.index_copy_(0, rows, owned)
            self.counts.index_fill_(0, owned, 0)
            counts.index_fill_(0, prompt, IN_PROMPT)
            counts.index_add_(0, answer, torch.ones_like(answer, dtype=torch.int32))
            self.biases[owned] = fills[:, None]
            self.biases.view(-1).index_copy_(0, biased, biases)

        return write

    def count(self, rows: Tensor, tokens: Tensor, kept: Tensor) -> None:
        """Counts the first `kept` [n] of the tokens [n, width] that rows [n] committed."""
        places = torch.arange(tokens.shape[1], device=tokens.device)  # [width]
        flat = self.slots.index_select(0, rows)[:, None] * self.vocabulary + tokens  # [n, width]
        self.counts.view(-1).index_add_(0, flat.view(-1), (places < kept[:, None]).int().view(-1))
