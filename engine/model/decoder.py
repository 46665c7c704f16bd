"""The native target: one config-driven decoder for the Llama family (Llama 2/3, Qwen2, Qwen3, Mistral)."""

import torch
from torch import Tensor

from aerie.engine.attention import Attention, planned_for
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.model.body import Body
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.layer import AttentionWeights, MlpWeights, Pass
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Projection
from aerie.engine.model.rope import interleaved, rotations
from aerie.engine.model.stack import Layer, Stack, through
from aerie.engine.model.target import TargetOutput
from aerie.engine.model.weights import Source
from aerie.engine.state.kv_pool import KVPool


class Decoder:
    """Implements TargetModel. Weights are stored merged; nothing in a pass depends on values on the device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Source,
        pool: KVPool,
        attention: Attention,
        *,
        positions: int,
        boundaries: tuple[int, ...] = (),
        device: torch.device | str = "cpu",
        kernels: Kernels = REFERENCES,
    ) -> None:
        self.config = config
        self.pool = pool
        self.boundaries = boundaries
        self.attention = attention
        size = (config.vocabulary, config.hidden_size)
        embeddings = weights.take("model.embed_tokens.weight", size)
        self.body = Body(
            stack=Stack(tuple(_layer(config, weights, index, kernels) for index in range(config.layers))),
            norm=RmsNorm(weights.take("model.norm.weight", (config.hidden_size,)), config.norm_eps, kernels),
            output=Projection(
                embeddings if config.tied_embeddings else weights.take("lm_head.weight", size), kernels=kernels
            ),
            embeddings=embeddings,
            rotations=rotations(config.rope, config.head_dim, positions, device),
            pool=pool,
            attention=attention,
            kernels=kernels,
        )
        weights.finish(
            ignored=("rotary_emb.inv_freq", "lm_head.weight") if config.tied_embeddings else ("rotary_emb.inv_freq",)
        )

    @property
    def bytes(self) -> int:
        """Bytes of all weights as stored: merged weights count once; a tied output with a layout of its own counts
        beside the embeddings.
        """
        body, embeddings = self.body, self.body.embeddings
        shared = self.config.tied_embeddings and body.output.shares(embeddings)
        output = 0 if shared else body.output.bytes
        return body.stack.bytes + body.norm.bytes + output + embeddings.numel() * embeddings.element_size()

    @property
    def embeddings(self) -> Tensor:
        """[vocabulary, hidden], shared with heads that have no embedding."""
        return self.body.embeddings

    @property
    def output_weight(self) -> Tensor:
        """[vocabulary, hidden], shared with heads that have no output layer."""
        return self.body.output.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.body.embeddings.index_select(0, ids)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        inputs: AttentionInputs,
        wanted: Tensor | None,
        *,
        taps: bool,
    ) -> TargetOutput:
        body = self.body
        context = Pass(
            turns=body.rotations.index_select(0, positions),
            slots=slots,
            planned=planned_for(body.attention, inputs),
            attention=body.attention,
            pool=body.pool,
            kernels=body.kernels,
        )
        x, tapped = body.kernels[through](body.stack, self.embed(ids), context, tapped=self.boundaries if taps else ())
        last = x if wanted is None else x.index_select(0, wanted)
        logits = body.output(body.norm(last)).float()
        return TargetOutput(logits, tapped)


def _layer(config: ModelConfig, weights: Source, index: int, kernels: Kernels) -> Layer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size

    def bias(name: str, wide: int, present: bool) -> Tensor | None:
        return weights.take(f"{prefix}.{name}.bias", (wide,)) if present else None

    def merged(names: tuple[str, str], present: bool) -> Tensor | None:
        parts = [bias(name, inner, present) for name in names]
        return torch.cat([part for part in parts if part is not None]) if present else None

    return Layer(
        input_norm=RmsNorm(weights.take(f"{prefix}.input_layernorm.weight", (hidden,)), config.norm_eps, kernels),
        attention=attention_weights(
            weights,
            f"{prefix}.self_attn",
            width=hidden,
            hidden=hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            output_bias=config.output_bias,
            qk_norm=config.qk_norm,
            eps=config.norm_eps,
            kernels=kernels,
        ),
        post_norm=RmsNorm(
            weights.take(f"{prefix}.post_attention_layernorm.weight", (hidden,)), config.norm_eps, kernels
        ),
        mlp=MlpWeights(
            gate_up=Projection(
                torch.cat(
                    [weights.take(f"{prefix}.mlp.{name}_proj.weight", (inner, hidden)) for name in ("gate", "up")]
                ),
                merged(("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias),
                kernels,
            ),
            down=Projection(
                weights.take(f"{prefix}.mlp.down_proj.weight", (hidden, inner)),
                bias("mlp.down_proj", hidden, config.mlp_bias),
                kernels,
            ),
            inner=inner,
        ),
    )


def attention_weights(
    weights: Source,
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
    eps: float = 1e-6,
    kernels: Kernels = REFERENCES,
) -> AttentionWeights:
    """Takes q, k, v and o under `prefix`; `width` is the projections' input size (twice `hidden` in a draft head's
    first layer).
    """
    parts, biases = [], []
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        part = weights.take(f"{prefix}.{name}_proj.weight", (count * head_dim, width))
        parts.append(part if name == "v" else interleaved(part, head_dim))
        if bias:
            value = weights.take(f"{prefix}.{name}_proj.bias", (count * head_dim,))
            biases.append(value if name == "v" else interleaved(value, head_dim))
    norms = [
        RmsNorm(interleaved(weights.take(f"{prefix}.{name}_norm.weight", (head_dim,)), head_dim), eps, kernels)
        if qk_norm
        else None
        for name in ("q", "k")
    ]
    return AttentionWeights(
        qkv=Projection(torch.cat(parts), torch.cat(biases) if bias else None, kernels),
        output=Projection(
            weights.take(f"{prefix}.o_proj.weight", (hidden, heads * head_dim)),
            weights.take(f"{prefix}.o_proj.bias", (hidden,)) if output_bias else None,
            kernels,
        ),
        q_norm=norms[0],
        k_norm=norms[1],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
