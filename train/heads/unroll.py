"""Training-time test: the head's drafting, all columns at once, with gradients through the recurrence.

Step k feeds the head its own output of step k - 1 and the true token, exactly as drafting k tokens deep does. Column t
of step k is at RoPE position t + k and attends to the keys of step 0 up to t and to its own keys of steps 1..k, in one
softmax.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from aerie.train.heads.head import Head


def unroll(
    head: Head, embedding: Tensor, ids: Tensor, taps: Tensor, steps: int, documents: Tensor | None = None
) -> Iterator[Tensor]:
    """Yields the head's pre-norm outputs [rows, columns, hidden] of steps 0 .. steps - 1.

    `embedding` [vocabulary, hidden] is the target's; `ids` [rows, columns]; `taps` [rows, columns, taps * hidden].
    `documents` [rows, columns] numbers the conversations of a packed row, which do not see each other; without it a row
    is one conversation. Column t of step k has read tokens up to t + 1 + k; mask outputs past the end of a
    conversation, and padding. Positions run on through a packed row: RoPE depends on distances only.
    """
    columns = ids.shape[1]
    embedded = embedding[ids]  # [rows, columns, hidden], as hidden and output
    cosines, sines = rope(columns + steps, head.shape.head_dim, head.shape.rope_theta, taps)
    hidden, memory = head.fuse(taps), _Memory(head, columns, taps, documents)
    for step in range(steps):
        shifted = torch.roll(embedded, -1 - step, dims=1)
        q, k, v = head.project(shifted, hidden)  # [rows, heads, columns, head_dim], k and v with kv_heads
        place = slice(step, step + columns)
        q, k = rotate(q, cosines[place], sines[place]), rotate(k, cosines[place], sines[place])
        memory.add(k, v)
        output = head.finish(hidden, memory.attend(q))
        yield output
        hidden = head.feedback(output)


class _Memory:
    """Keys and values so far: those of step 0 are visible causally, those of later steps to their own column only."""

    def __init__(self, head: Head, columns: int, like: Tensor, documents: Tensor | None) -> None:
        self._group = head.shape.heads // head.shape.kv_heads
        self._scale = head.shape.head_dim**-0.5
        self._hidden = like.new_ones(columns, columns, dtype=torch.bool).triu(1)  # [columns, columns]
        if documents is not None:
            # with documents, for each row: [rows, 1, columns, columns]
            self._hidden = (self._hidden | (documents[:, :, None] != documents[:, None, :]))[:, None]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, keys: Tensor, values: Tensor) -> None:
        """[rows, kv_heads, columns, head_dim] each."""
        self._keys.append(keys.repeat_interleave(self._group, 1))
        self._values.append(values.repeat_interleave(self._group, 1))

    def attend(self, q: Tensor) -> Tensor:
        """q [rows, heads, columns, head_dim] -> the attention output, same shape."""
        q, columns = q * self._scale, q.shape[2]
        causal = (q @ self._keys[0].mT).masked_fill(self._hidden, -torch.inf)  # [rows, heads, columns, columns]
        own = [(q * keys).sum(-1, keepdim=True) for keys in self._keys[1:]]  # [rows, heads, columns, 1] each
        shares = torch.cat([causal, *own], -1).softmax(-1)  # [rows, heads, columns, columns + later steps]
        mixed = shares[..., :columns] @ self._values[0]
        for index, values in enumerate(self._values[1:]):
            mixed = mixed + shares[..., columns + index, None] * values
        return mixed


def rope(positions: int, size: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, size], in the dtype of `like`."""
    steps = torch.arange(0, size, 2, dtype=torch.float64, device=like.device) / size
    angles = torch.arange(positions, dtype=torch.float64, device=like.device)[:, None] * theta**-steps
    angles = torch.cat([angles, angles], -1)  # [positions, size]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE in Llama's half-split form; x [..., columns, size]."""
    low, high = x.chunk(2, -1)
    return x * cosines + torch.cat([-high, low], -1) * sines
