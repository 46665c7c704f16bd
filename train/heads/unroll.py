"""Training-time test: the head's drafting, all columns at once, with gradients through the recurrence.

Step k feeds the head its own output of step k - 1 and the true token, exactly as drafting k tokens deep does. Column t
of step k is at RoPE position t + k and attends to the keys of step 0 up to t and to its own keys of steps 1..k, in one
softmax.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from aerie.engine.model.config import Rope
from aerie.engine.model.rope import frequencies
from aerie.train.heads.blocks import Memory, arranged, numbered, product_dtype, rounded
from aerie.train.heads.head import Head


def unroll(
    head: Head,
    embedding: Tensor,
    ids: Tensor,
    taps: Tensor,
    steps: int,
    documents: Tensor | None = None,
    drafting: Tensor | None = None,
) -> Iterator[Tensor]:
    """Yields the head's pre-norm outputs [rows, columns, hidden] of steps 0 .. steps - 1.

    `embedding` [vocabulary, hidden] is the target's; `ids` [rows, columns]; `taps` [rows, columns, taps * hidden].
    `documents` [rows, columns] numbers the conversations of a packed row, which do not see each other; without it a row
    is one conversation. `drafting` [rows, columns] bool marks columns whose outputs are wanted: only they are computed,
    all others are zero. Column t of step k has read tokens up to t + 1 + k; mask outputs past the end of a
    conversation, and padding. Positions run on through a packed row: RoPE depends on distances only.
    """
    rows, columns = ids.shape
    places, wanted = _places(ids, drafting)
    embedded = embedding[ids]  # [rows, columns, hidden]
    cosines, sines = turned(columns + steps, head.shape.head_dim, head.shape.rope, taps)
    # [1, rows * columns, hidden] at step 0, [1, places, hidden] from then on
    hidden = head.fuse(taps.flatten(0, 1)[None]).to(taps.dtype)
    every = torch.arange(columns, device=ids.device).repeat(rows)  # [rows * columns]
    numbers = numbered(torch.zeros_like(ids) if documents is None else documents)
    blocks = arranged(numbers[places], numbers, lambda q, k: k <= places[q], product_dtype(taps))
    for step in range(steps):
        shifted = torch.roll(embedded, -1 - step, dims=1).flatten(0, 1)[None]
        turns = cosines[every[places] + step], sines[every[places] + step]  # [places, head_dim] each
        if step == 0:
            q, k, v = head.project(shifted, hidden, places)  # [1, heads, columns, head_dim], k and v with kv_heads
            keys, values = _by_place(rotate(k, cosines[every], sines[every]), v)
            memory = Memory(blocks, keys, values, head.shape.group)
            hidden = hidden[:, places]
        else:
            q, k, v = head.project(shifted[:, places], hidden)
            memory.add(*_by_place(rotate(k, *turns), v))
        mixed = memory.attend(*_by_place(rotate(q, *turns)))  # [places, heads, head_dim]
        output = head.finish(hidden, mixed.transpose(0, 1)[None])
        found = output.new_zeros(rows * columns, output.shape[2])
        yield found.index_copy(0, places[:wanted], output[0, :wanted]).unflatten(0, (rows, columns))
        hidden = head.feedback(output)


def _places(ids: Tensor, drafting: Tensor | None) -> tuple[Tensor, int]:
    """Which of the rows * columns are computed: those that draft, and after them others up to a round number; and how
    many draft.
    """
    if drafting is None:
        return torch.arange(ids.numel(), device=ids.device), ids.numel()
    wanted = int(drafting.sum())
    order = drafting.flatten().int().argsort(descending=True, stable=True)
    return order[: rounded(wanted)], wanted


def _by_place(*states: Tensor) -> list[Tensor]:
    """[1, heads, columns, head_dim] -> [columns, heads, head_dim] each."""
    return [one[0].transpose(0, 1) for one in states]


def turned(positions: int, size: int, rope: Rope, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, size] of RoPE, in the dtype of `like`."""
    places = torch.arange(positions, dtype=torch.float64, device=like.device)
    angles = places[:, None] * frequencies(rope, size).to(like.device)  # [positions, size / 2]
    angles = torch.cat([angles, angles], -1)  # [positions, size]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE in Llama's half-split form; x [..., columns, size]."""
    low, high = x.chunk(2, -1)
    return x * cosines + torch.cat([-high, low], -1) * sines
