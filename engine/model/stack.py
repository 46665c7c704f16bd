"""A stack of layers: the body of the target, and of a draft head."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.engine.model.layer import AttentionWeights, MlpWeights, Pass, attend, mlp
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Projection


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: RmsNorm
    """Norm of the residual stream."""
    attention: AttentionWeights
    post_norm: RmsNorm
    mlp: MlpWeights
    embedding_norm: RmsNorm | None = None
    """Norm of the tokens' embeddings, which a draft head's first layer reads to the left of the stream."""

    @property
    def matrices(self) -> tuple[Projection, ...]:
        return self.attention.qkv, self.attention.output, self.mlp.gate_up, self.mlp.down

    @property
    def bytes(self) -> int:
        norms = [norm for norm in (self.input_norm, self.post_norm, self.embedding_norm) if norm is not None]
        return sum(norm.bytes for norm in norms) + self.attention.bytes + self.mlp.bytes


@dataclass(slots=True)
class Stack:
    layers: tuple[Layer, ...]
    normed_residual: bool = False
    """Whether the first layer adds to the normed stream instead of the stream."""

    @property
    def matrices(self) -> Iterator[Projection]:
        for layer in self.layers:
            yield from layer.matrices

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)


def through(
    stack: Stack, x: Tensor, context: Pass, *, embedded: Tensor | None = None, tapped: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    """x [tokens, hidden], which is overwritten -> the last layer's output, and the inputs of the layers `tapped`, side
    by side: [tokens, boundaries * hidden]. Boundary `len(layers)` is the end. `embedded` [tokens, hidden] is for layers
    that read embeddings.
    """
    taps: list[Tensor] = []
    for index, layer in enumerate(stack.layers):
        if index in tapped:
            taps.append(x.clone())
        if layer.embedding_norm is None and not (stack.normed_residual and index == 0):
            attend(x, x, layer.input_norm, layer.attention, index, context)
        else:
            normed = layer.input_norm(x)  # [tokens, hidden]
            if stack.normed_residual and index == 0:
                x = normed.clone()
            if layer.embedding_norm is not None:
                assert embedded is not None
                normed = torch.cat((layer.embedding_norm(embedded), normed), -1)  # [tokens, 2 * hidden]
            attend(x, normed, None, layer.attention, index, context)
        context.kernels[mlp](x, layer.post_norm, layer.mlp, context.kernels)
    if len(stack.layers) in tapped:
        taps.append(x.clone())
    return x, torch.cat(taps, -1) if taps else None
