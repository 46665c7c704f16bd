"""Keys and values of every page, for the target or for the head. Both pools are indexed by one page table."""

import torch
from torch import Tensor


class KVPool:
    """`keys` and `values` [layers, slots, kv_heads, head_dim]; slot = page * page_size + offset. Zeroed, and finite
    ever after.

    Masked attention multiplies hidden values by zero, and zero times NaN is NaN: nothing uninitialized may lie in a
    pool.
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
        shape = (layers, pages * page_size, kv_heads, head_dim)
        self.page_size = page_size
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values [tokens, kv_heads, head_dim] into `slots` [tokens]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copies slots [n] to slots [n] in all layers; they may overlap, since all are gathered before any is
        written.
        """
        keys, values = self.keys.index_select(1, source), self.values.index_select(1, source)
        self.keys.index_copy_(1, target, keys)
        self.values.index_copy_(1, target, values)
