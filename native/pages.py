"""Large pages for weights. A step of a small model reads all of them, and address translation of 4 KB pages takes more
than a tenth of its time. Called while a model is loaded.
"""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

_PAGE = 2 << 20
_BLOCK = 8 * _PAGE
_ALIGNED = 4096


class LargePages:
    """Copies of tensors, side by side in blocks of large pages, or of ordinary pages if the system has no large ones.

    Its tensors keep their block alive, so they may outlive it.
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        if self._used + size > self._block.numel():
            self._block, self._used = _block(max(size, _BLOCK)), 0
        place = self._block[self._used : self._used + size]
        self._used += -(-size // _ALIGNED) * _ALIGNED
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _block(size: int) -> Tensor:
    """At least `size` bytes, aligned to the start of a large page."""
    memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % _PAGE
    return whole[first : first + size]


WEIGHTS = LargePages()
"""For the models of this process."""
