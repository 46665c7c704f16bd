"""A stack of layers in one call (src/stack.cpp): in a small model, a call from Python costs as much as the products
around it.
"""

import ctypes

import torch
from torch import Tensor

from aerie.engine.model import stack as references
from aerie.engine.model.layer import Pass
from aerie.engine.model.stack import Stack
from aerie.native.kernels.attention import addresses_of
from aerie.native.layers import NativeLayers, native_layers
from aerie.native.library import library
from aerie.native.numbers import TYPES
from aerie.native.once import Once


class Through:
    """Replaces engine.model.stack.through. Keeps the native layers of one worker's stacks."""

    def __init__(self) -> None:
        self._known: Once[Stack, NativeLayers | None] = Once(native_layers)

    def __call__(
        self, stack: Stack, x: Tensor, context: Pass, *, embedded: Tensor | None = None, tapped: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        held = self._known(stack)
        tokens, hidden = x.shape
        planned = addresses_of(context.planned)
        if held is None or tokens > held.most or planned is None or x.dtype not in TYPES:
            return references.through(stack, x, context, embedded=embedded, tapped=tapped)
        addresses, rows, page_size = planned
        first, pool = stack.layers[0].attention, context.pool.slots(0)
        boundaries = sorted(set(tapped))
        stream, beside = x.float(), None if embedded is None else embedded.float()
        taps = torch.empty(tokens, len(boundaries) * hidden)
        library().passed(
            stream.data_ptr(),
            taps.data_ptr(),
            None if beside is None else beside.data_ptr(),
            held.layers,
            (ctypes.c_int64 * len(boundaries))(*boundaries),
            context.rotations.data_ptr(),
            context.slots.data_ptr(),
            pool.data_ptr(),
            *addresses,
            len(stack.layers),
            len(boundaries),
            tokens,
            rows,
            hidden,
            first.heads,
            first.kv_heads,
            first.head_dim,
            page_size,
            pool.numel() * pool.element_size(),
            stack.normed_residual,
            pool.dtype is torch.bfloat16,
            False,
        )
        return stream.to(x.dtype), taps.to(x.dtype) if tapped else None
