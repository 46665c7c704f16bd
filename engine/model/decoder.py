"""The native target: one config-driven decoder for the Llama family (Llama 2/3, Qwen2, Qwen3, Mistral)."""

import torch
from torch import Tensor

from aerie.engine.attention import Attention, planned_for
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.kernels.uses import Use
from aerie.engine.model.body import Body
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.layer import Pass
from aerie.engine.model.parts import Module, Parts
from aerie.engine.model.projection import Precision
from aerie.engine.model.rope import rotations
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
        precision: Precision = Precision.STORED,
    ) -> None:
        self.config = config
        self.pool = pool
        self.boundaries = boundaries
        self.attention = attention
        vocabulary, hidden = config.vocabulary, config.hidden_size
        parts = Parts(weights, config.norm_eps, kernels, precision)
        embeddings = weights.take("model.embed_tokens.weight", (vocabulary, hidden))
        self.body = Body(
            stack=Stack(tuple(_layer(config, parts, f"model.layers.{index}") for index in range(config.layers))),
            norm=parts.norm("model.norm", hidden),
            output=parts.projected(embeddings, use=Use.LOGITS)
            if config.tied_embeddings
            else parts.projection(hidden, Module("lm_head", vocabulary), use=Use.LOGITS),
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
            rotations=body.rotations.index_select(0, positions),
            slots=slots,
            planned=planned_for(body.attention, inputs),
            attention=body.attention,
            pool=body.pool,
            kernels=body.kernels,
        )
        x, tapped = body.kernels[through](body.stack, self.embed(ids), context, tapped=self.boundaries if taps else ())
        last = x if wanted is None else x.index_select(0, wanted)  # [wanted, hidden]
        return TargetOutput(body.output.wide(last, body.norm), tapped)


def _layer(config: ModelConfig, parts: Parts, prefix: str) -> Layer:
    hidden = config.hidden_size
    return Layer(
        input_norm=parts.norm(f"{prefix}.input_layernorm", hidden),
        attention=parts.attention(
            f"{prefix}.self_attn",
            width=hidden,
            hidden=hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            output_bias=config.output_bias,
            qk_norm=config.qk_norm,
        ),
        post_norm=parts.norm(f"{prefix}.post_attention_layernorm", hidden),
        mlp=parts.mlp(f"{prefix}.mlp", hidden=hidden, inner=config.intermediate_size, bias=config.mlp_bias),
    )
