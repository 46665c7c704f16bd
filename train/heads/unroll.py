"""Training-time test: the head's drafting, all columns at once, with gradients through the recurrence.

Step k feeds the head its own output of step k - 1 and the true token, exactly as drafting k tokens deep does. Column t
of step k is at RoPE position t + k and attends to the keys of step 0 up to t and to its own keys of steps 1..k, in one
softmax.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

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
    is one conversation. `drafting` [rows, columns] bool marks columns whose outputs are wanted: only they are computed
    (a column that drafts in one row drafts in all), all others are zero. Column t of step k has read tokens up to
    t + 1 + k; mask outputs past the end of a conversation, and padding. Positions run on through a packed row: RoPE
    depends on distances only.
    """
    rows, columns = ids.shape
    places = torch.arange(columns, device=ids.device)
    if drafting is not None:
        places = places[drafting.any(0)]  # [drafting columns]
    embedded = embedding[ids]  # [rows, columns, hidden]
    cosines, sines = rope(columns + steps, head.shape.head_dim, head.shape.rope_theta, taps)
    hidden = head.fuse(taps)  # [rows, columns, hidden] at step 0, [rows, drafting columns, hidden] from then on
    memory = _Memory(head, places, conversations(ids, documents))
    for step in range(steps):
        shifted = torch.roll(embedded, -1 - step, dims=1)
        positions = places + step
        if step == 0:
            q, k, v = head.project(shifted, hidden)  # [rows, heads, columns, head_dim], k and v with kv_heads
            memory.begin(rotate(k, cosines[:columns], sines[:columns]), v)
            q, hidden = q[:, :, places], hidden[:, places]
        else:
            q, k, v = head.project(shifted[:, places], hidden)
            memory.add(rotate(k, cosines[positions], sines[positions]), v)
        output = head.finish(hidden, memory.attend(rotate(q, cosines[positions], sines[positions])))
        yield output.new_zeros(rows, columns, output.shape[2]).index_copy(1, places, output)
        hidden = head.feedback(output)


Span = tuple[slice, slice]
"""A conversation: its rows and its columns."""


def conversations(ids: Tensor, documents: Tensor | None) -> list[Span]:
    """The conversations of `ids` [rows, columns], row after row: a run of equal `documents` is one, and without them
    one is as long as the rows are, and in all of them.
    """
    rows, columns = ids.shape
    if documents is None:
        return [(slice(0, rows), slice(0, columns))]
    spans: list[Span] = []
    for row, numbers in enumerate(documents):
        begins = [0, *(numbers.diff().nonzero()[:, 0] + 1).tolist(), columns]
        spans += [(slice(row, row + 1), slice(begin, end)) for begin, end in pairwise(begins)]
    return spans


class _Memory:
    """Keys and values so far: those of step 0 are visible causally, those of later steps to their own column only.

    Each conversation attends by itself, so the work grows with the squares of their lengths, not of the row's.
    """

    def __init__(self, head: Head, places: Tensor, spans: list[Span]) -> None:
        self._group = head.shape.heads // head.shape.kv_heads
        self._scale = head.shape.head_dim**-0.5
        self._spans = []
        for rows, columns in spans:
            begin, end = torch.searchsorted(places, torch.tensor([columns.start, columns.stop]).to(places)).tolist()
            keys = torch.arange(columns.start, columns.stop, device=places.device)
            later = keys > places[begin:end, None]  # [drafting columns, columns] of the conversation
            self._spans.append((rows, columns, slice(begin, end), later))
        self._own: list[tuple[Tensor, Tensor]] = []

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """[rows, kv_heads, columns, head_dim] each."""
        self._keys, self._values = self._for_heads(keys), self._for_heads(values)

    def add(self, keys: Tensor, values: Tensor) -> None:
        """[rows, kv_heads, drafting columns, head_dim] each."""
        self._own.append((self._for_heads(keys), self._for_heads(values)))

    def attend(self, q: Tensor) -> Tensor:
        """q [rows, heads, drafting columns, head_dim] -> the attention output, same shape."""
        q = q * self._scale
        own = [(q * keys).sum(-1, keepdim=True) for keys, _ in self._own]  # [rows, heads, drafting columns, 1] each
        mixed: list[list[Tensor]] = [[] for _ in range(q.shape[0])]
        for rows, columns, drafting, later in self._spans:
            scores = (q[rows, :, drafting] @ self._keys[rows, :, columns].mT).masked_fill(later, -torch.inf)
            # [rows, heads, drafting columns, columns + later steps] of the conversation
            shares = torch.cat([scores, *(one[rows, :, drafting] for one in own)], -1).softmax(-1)
            size = columns.stop - columns.start
            found = shares[..., :size] @ self._values[rows, :, columns]
            for index, (_, values) in enumerate(self._own):
                found = found + shares[..., size + index, None] * values[rows, :, drafting]
            mixed[rows.start].append(found)
        return torch.cat([torch.cat(parts, 2) for parts in mixed if parts])

    def _for_heads(self, x: Tensor) -> Tensor:
        """x [rows, kv_heads, .., head_dim] -> with heads."""
        return x.repeat_interleave(self._group, 1)


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
