"""What grammars leave of the vocabulary at the places of a pass: bits on the device, each distinct mask once.

The host makes them while the target's pass runs. A place whose mask is missing when the target chooses is one that
nobody may reach: a node counts as not drafted, and a row whose root has none commits nothing.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

FREE = -1
"""Any token may follow."""
MISSING = -2
"""The mask of the place is not there."""
_BITS = 32


@dataclass(frozen=True, slots=True)
class Masks:
    """Of n places."""

    words: Tensor
    """[masks, mask_words(V)] int32: bit i of word w is token 32 w + i."""
    of: Tensor
    """[n] int64: the mask of each place, FREE or MISSING."""

    def first(self, count: int) -> "Masks":
        """Those of the first places."""
        return replace(self, of=self.of[:count])

    @property
    def missing(self) -> Tensor:
        """[n] bool"""
        return self.of == MISSING

    def allowed(self, vocabulary: int) -> Tensor:
        """[n, V] bool; without a mask every token is allowed."""
        words = self.words.index_select(0, self.of.clamp(min=0))  # [n, words]
        bits = words[:, :, None] >> torch.arange(_BITS, dtype=torch.int32, device=words.device) & 1
        return bits.flatten(1)[:, :vocabulary].bool() | (self.of < 0)[:, None]


def mask_words(vocabulary: int) -> int:
    """int32 words of one mask."""
    return -(-vocabulary // _BITS)
