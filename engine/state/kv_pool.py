"""Keys and values of every page, for the target or for the head. One page table indexes both pools."""

import torch
from torch import Tensor


class KVPool:
    """`keys` and `values` [layers, slots, kv_heads, head_dim]; slot = page * page_size + offset. Zeroed at first,
    always finite.

    A slot's keys and values lie side by side, so that a layer writes and gathers both at once. Masked attention
    multiplies hidden values by zero, and zero times NaN is NaN, so a pool must not hold uninitialized memory.
    """

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.page_size = page_size
        self._both = torch.zeros((layers, pages * page_size, 2, kv_heads, head_dim), dtype=dtype, device=device)
        self.keys, self.values = self._both.unbind(2)
        self._slots = self._both.flatten(2, 3).unbind(0)  # [slots, 2 * kv_heads, head_dim] of each layer
        self._pages = self._both.view(layers, pages, -1).unbind(0)  # [pages, numbers of a page] of each layer

    @property
    def bytes(self) -> int:
        return self._both.numel() * self._both.element_size()

    def slots(self, layer: int) -> Tensor:
        """A view of a layer's keys, then values, of every slot: [slots, 2 * kv_heads, head_dim]."""
        return self._slots[layer]

    def write(self, layer: int, slots: Tensor, both: Tensor) -> None:
        """Writes keys, then values, [tokens, 2 * kv_heads, head_dim] to `slots` [tokens]."""
        self._slots[layer].index_copy_(0, slots, both)

    def gather(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `pages` [n]: [n * page_size, kv_heads, head_dim] each."""
        # keys and values side by side: [n * page_size, 2, kv_heads, head_dim]
        taken = self._pages[layer].index_select(0, pages).view(-1, *self._both.shape[2:])
        keys, values = taken.unbind(1)
        return keys, values

    def paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of the keys and values of all pages, [pages, page_size, kv_heads, head_dim] each."""
        keys, values = (side[layer].unflatten(0, (-1, self.page_size)) for side in (self.keys, self.values))
        return keys, values

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies slots [n] to slots [n] in all layers. They may overlap: all are gathered before any is written."""
        self._both.index_copy_(1, target, self._both.index_select(1, source))
