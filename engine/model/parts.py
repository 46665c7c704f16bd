"""The parts of layers, from a checkpoint's tensors: every projection and norm of targets and heads is made here.

Called while a model is loaded. Modules whose products have the same input become one projection, in the precision and
with the kernels of its worker.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.kernels.uses import Use
from aerie.engine.model.layer import AttentionWeights, MlpWeights
from aerie.engine.model.matrix import Matrix, reordered, stacked
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Precision, Projection
from aerie.engine.model.rope import interleaved
from aerie.engine.model.weights import Source


@dataclass(frozen=True, slots=True)
class Module:
    """A linear module of a checkpoint, such as `model.layers.0.self_attn.q_proj`."""

    name: str
    outputs: int
    head_dim: int = 0
    """Of heads that RoPE rotates, whose rows are reordered; 0 for other rows."""

    def ordered(self, rows: Tensor) -> Tensor:
        """rows [outputs, ...], in the order of the projection."""
        return interleaved(rows, self.head_dim) if self.head_dim else rows


@dataclass(frozen=True, slots=True)
class Parts:
    """Makes the parts of one model, whose tensors are `source`'s."""

    source: Source
    eps: float
    """Of its norms."""
    kernels: Kernels = REFERENCES
    precision: Precision = Precision.STORED

    def projection(self, inputs: int, *modules: Module, bias: bool = False, use: Use = Use.PLAIN) -> Projection:
        """The rows of all modules, one after the other."""
        weight = stacked([self._matrix(module, inputs) for module in modules])  # [sum of outputs, inputs]
        biases = [self._bias(module) for module in modules] if bias else []
        return self.projected(weight, torch.cat(biases) if biases else None, use=use)

    def projected(self, weight: Matrix, bias: Tensor | None = None, *, use: Use = Use.PLAIN) -> Projection:
        """Of weights that are at hand, such as tied ones."""
        return Projection(weight, bias, self.kernels, self.precision, use)

    def norm(self, name: str, size: int) -> RmsNorm:
        return RmsNorm(self.source.take(f"{name}.weight", (size,)), self.eps, self.kernels)

    def attention(
        self,
        prefix: str,
        *,
        width: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
    ) -> AttentionWeights:
        """Of q, k, v and o under `prefix`; `width` is the projections' input size (twice `hidden` in a draft head's
        first layer).
        """
        return AttentionWeights(
            qkv=self.projection(
                width,
                Module(f"{prefix}.q_proj", heads * head_dim, head_dim),
                Module(f"{prefix}.k_proj", kv_heads * head_dim, head_dim),
                Module(f"{prefix}.v_proj", kv_heads * head_dim),
                bias=bias,
                use=Use.NORMED if width == hidden else Use.PLAIN,
            ),
            output=self.projection(
                heads * head_dim, Module(f"{prefix}.o_proj", hidden), bias=output_bias, use=Use.ADDED
            ),
            q_norm=self._norm_of_heads(f"{prefix}.q_norm", head_dim) if qk_norm else None,
            k_norm=self._norm_of_heads(f"{prefix}.k_norm", head_dim) if qk_norm else None,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )

    def mlp(self, prefix: str, *, hidden: int, inner: int, bias: bool = False) -> MlpWeights:
        """Of gate, up and down under `prefix`."""
        gate_up = (Module(f"{prefix}.gate_proj", inner), Module(f"{prefix}.up_proj", inner))
        return MlpWeights(
            gate_up=self.projection(hidden, *gate_up, bias=bias, use=Use.GATED),
            down=self.projection(inner, Module(f"{prefix}.down_proj", hidden), bias=bias, use=Use.ADDED),
            inner=inner,
        )

    def _matrix(self, module: Module, inputs: int) -> Matrix:
        matrix = self.source.matrix(module.name, (module.outputs, inputs))
        return reordered(matrix, module.ordered)

    def _bias(self, module: Module) -> Tensor:
        return module.ordered(self.source.take(f"{module.name}.bias", (module.outputs,)))  # [outputs]

    def _norm_of_heads(self, name: str, head_dim: int) -> RmsNorm:
        gain = interleaved(self.source.take(f"{name}.weight", (head_dim,)), head_dim)  # [head_dim]
        return RmsNorm(gain, self.eps, self.kernels)
