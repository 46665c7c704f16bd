"""Attention within packed conversations: whole conversations share blocks, and all blocks are one product.

Sizes are rounded up, so few shapes occur: products in bf16 on CPUs are compiled for every new one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUND = 64
"""Of which numbers of rows of products are multiples."""
_HEIGHT = 16

Visible = Callable[[Tensor, Tensor], Tensor]
"""Takes numbers of queries and of keys that broadcast; says which queries see which keys of their conversation."""


def rounded(count: int, multiple: int = ROUND) -> int:
    """`count`, rounded up to a multiple; at least one of them."""
    return max(multiple, -(count // -multiple) * multiple)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which queries and keys attend together, in the dtype that attention computes in."""

    queries: Tensor
    """[blocks, height]: numbers of queries; 0 where a block has room left, as in `keys`."""
    keys: Tensor
    """[blocks, width]: numbers of keys."""
    back: Tensor
    """[queries]: where each query is in `queries`, flattened."""
    hidden: Tensor
    """[blocks, height, width]: 0 where a query sees a key, else -inf; rows that are no query see all."""


def arranged(queries: Tensor, keys: Tensor, visible: Visible, dtype: torch.dtype) -> Blocks:
    """`queries` [n] and `keys` [m] are the numbers, from 0, of the conversations that they belong to.

    Each conversation is in the first block that has room for its keys; the longest makes the width.
    """
    count = int(keys.max()) + 1
    asked, read = (x.bincount(minlength=count).tolist() for x in (queries, keys))
    width, used, placed = rounded(max(read)), list[list[int]](), list[tuple[int, int, int]]()
    for n, m in zip(asked, read, strict=True):
        block = next((at for at, (_, taken) in enumerate(used) if taken + m <= width), len(used))
        if block == len(used):
            used.append([0, 0])
        placed.append((block, used[block][0], used[block][1]))
        used[block] = [used[block][0] + n, used[block][1] + m]
    height = rounded(max(n for n, _ in used), _HEIGHT)
    blocks, first_query, first_key = torch.tensor(placed, device=keys.device).unbind(1)  # [conversations] each
    back = blocks[queries] * height + first_query[queries] + _rank(queries, asked)
    at = blocks[keys] * width + first_key[keys] + _rank(keys, read)
    q, q_number = _filled(back, queries, (len(used), height))
    k, k_number = _filled(at, keys, (len(used), width))
    seen = (q_number[:, :, None] == k_number[:, None]) & visible(q[:, :, None], k[:, None])
    hidden = torch.zeros(seen.shape, dtype=dtype, device=keys.device)
    nobody = (q_number < 0)[:, :, None]  # it needs a softmax, too
    return Blocks(q, k, back, hidden.masked_fill(~(seen | nobody), -torch.inf))


def _rank(numbers: Tensor, sizes: list[int]) -> Tensor:
    """[n]: how many before each have the same number."""
    order = numbers.argsort(stable=True)
    begins = torch.tensor([0, *sizes[:-1]], device=numbers.device).cumsum(0)
    rank = torch.empty_like(numbers)
    rank[order] = torch.arange(len(numbers), device=numbers.device) - begins[numbers[order]]
    return rank


def _filled(at: Tensor, conversations: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Numbers from 0 put `at` their places of `shape`, and their conversations: 0 and -1 where nothing is."""
    numbers = torch.zeros(shape[0] * shape[1], dtype=torch.int64, device=at.device)
    owners = torch.full_like(numbers, -1)
    numbers[at] = torch.arange(len(at), device=at.device)
    owners[at] = conversations
    return numbers.view(shape), owners.view(shape)


class Memory:
    """Keys and values that `blocks` attend to, and what only a query itself sees: one key and value a step."""

    def __init__(self, blocks: Blocks, keys: Tensor, values: Tensor, group: int) -> None:
        """`keys` and `values` [m, kv_heads, head_dim]; `group` query heads share one of these."""
        self._blocks, self._group, self._dtype = blocks, group, blocks.hidden.dtype
        self._keys, self._values = (self._put(x, blocks.keys).flatten(0, 1) for x in (keys, values))
        shape = (len(blocks.keys), keys.shape[1] * group, *blocks.hidden.shape[1:])
        self._hidden = blocks.hidden[:, None].expand(shape).reshape(len(self._keys), -1, shape[-1])
        self._own: list[tuple[Tensor, Tensor]] = []

    def add(self, keys: Tensor, values: Tensor) -> None:
        """Of the next step: [n, kv_heads, head_dim] each, one for each query."""
        key, value = (self._put(x, self._blocks.queries)[:, :, None] for x in (keys, values))
        self._own.append((key, value))

    def attend(self, queries: Tensor) -> Tensor:
        """queries [n, heads, head_dim] -> the attention output, same shape."""
        with torch.autocast(queries.device.type, enabled=False):  # softmax would be in fp32, which takes longer
            return self._attend(queries * queries.shape[2] ** -0.5)

    def _attend(self, queries: Tensor) -> Tensor:
        _, heads, size = queries.shape
        asked = self._put(queries, self._blocks.queries)  # [blocks, heads, height, head_dim]
        blocks, _, height, _ = asked.shape
        grouped = asked.view(blocks, heads // self._group, self._group, height, size)
        flat = asked.view(len(self._keys), -1, size)  # [blocks * kv_heads, group * height, head_dim]
        scores = torch.baddbmm(self._hidden, flat, self._keys.mT)
        own = [(grouped * keys).sum(-1).view(*flat.shape[:2], 1) for keys, _ in self._own]
        width = scores.shape[2]
        shares = (torch.cat([scores, *own], -1) if own else scores).softmax(-1)
        mixed = torch.bmm(shares[..., :width], self._values).view(grouped.shape)
        for step, (_, values) in enumerate(self._own):
            mixed = mixed + shares[..., width + step].view(*grouped.shape[:4], 1) * values
        return mixed.view(blocks, heads, height, size).transpose(1, 2).reshape(-1, heads, size)[self._blocks.back]

    def _put(self, x: Tensor, places: Tensor) -> Tensor:
        """x [n, heads, head_dim] -> [blocks, heads, places of a block, head_dim], contiguous."""
        found = x.to(self._dtype).index_select(0, places.flatten()).unflatten(0, places.shape)
        return found.transpose(1, 2).contiguous()


def product_dtype(like: Tensor) -> torch.dtype:
    """In what products of this tensor are computed: autocast's dtype, or its own."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


def numbered(documents: Sequence[int] | Tensor) -> Tensor:
    """[rows, columns] of any numbers -> [rows * columns]: runs of equal ones in a row count up from 0."""
    given = torch.as_tensor(documents)
    begins = torch.ones_like(given, dtype=torch.bool)
    begins[:, 1:] = given[:, 1:] != given[:, :-1]
    return begins.flatten().cumsum(0) - 1
