"""Loads a target model of SGLang; `engine.build` calls this for `engine.kind: sglang-model`."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.engine.attention import Attention, make_attention
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.memory import Sizes
from aerie.engine.model.config import ModelConfig
from aerie.engine.sglang.place import mine
from aerie.engine.sglang.release import model_release
from aerie.engine.sglang.shapes import read_shape, refuse_layers
from aerie.engine.state.kv_pool import KVPool

if TYPE_CHECKING:
    from aerie.engine.sglang.draft import SglangDraft
    from aerie.engine.sglang.target import SglangTarget


def read_sglang_shape(config: Config) -> ModelConfig:
    """The target's shape. Raises ConfigError without the pinned SGLang, or on an unsupported model."""
    model_release()
    shape = read_shape(Path(config.model.path), config.model.max_length)
    _check_spread(config, shape)
    return shape


def _check_spread(config: Config, shape: ModelConfig) -> None:
    for name in ("pp", "dp", "ep", "nnodes"):
        if getattr(config.sglang, name) > 1:
            raise ConfigError(
                f"sglang.{name} is {getattr(config.sglang, name)}; engine.kind sglang-model spreads over the ranks of "
                f"sglang.tp on one machine only: set sglang.{name}=1, or engine.kind=sglang",
                param=f"sglang.{name}",
            )
    for name, otherwise in (("node_rank", 0), ("dist_init_addr", None), ("memory", None)):
        if getattr(config.sglang, name) != otherwise:
            raise ConfigError(
                f"sglang.{name} is {getattr(config.sglang, name)}, and engine.kind sglang-model does not read it: "
                f"leave it out (a share of memory is engine.memory_share here), or set engine.kind=sglang",
                param=f"sglang.{name}",
            )
    ranks = config.sglang.tp
    if shape.heads % ranks or (shape.kv_heads % ranks and ranks % shape.kv_heads):
        raise ConfigError(
            f"sglang.tp is {ranks}; the model's {shape.heads} heads and {shape.kv_heads} KV heads cannot be shared "
            f"evenly by so many ranks",
            param="sglang.tp",
        )


def load_sglang_target(
    config: Config,
    model: ModelConfig,
    sizes: Sizes,
    boundaries: tuple[int, ...] = (),
    kernels: Kernels = REFERENCES,
) -> "SglangTarget":
    """The model with its pool, on the device that `sizes` names. Raises ConfigError."""
    from aerie.engine.sglang.hooks import require_hooks

    require_hooks(taps=bool(boundaries))
    from aerie.engine.sglang.attention import PagedAttention
    from aerie.engine.sglang.start import start_runner
    from aerie.engine.sglang.taps import require_taps
    from aerie.engine.sglang.target import SglangTarget, attention_layers

    place = mine()
    shape = AttentionShape(
        heads=model.heads // place.ranks,
        kv_heads=max(1, model.kv_heads // place.ranks),
        head_dim=model.head_dim,
        page_size=sizes.page_size,
        dtype=sizes.dtype,
        device=sizes.device,
    )
    pool = KVPool(
        layers=model.layers,
        pages=sizes.pages,
        page_size=sizes.page_size,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=sizes.dtype,
        device=sizes.device,
    )
    backend = PagedAttention(make_attention(config.engine.attention, shape, kernels), pool)
    if boundaries:
        require_taps(model.architecture)
    runner = start_runner(config, sizes, backend, place)
    refuse_layers(attention_layers(runner.model))
    return SglangTarget(model, runner, backend, pool, boundaries)


def load_sglang_draft(folder: Path, embeddings: Tensor, pool: KVPool, attention: Attention) -> "SglangDraft":
    """Loads SGLang's EAGLE-3 head from `folder`, beside an SGLang target that is already loaded.

    `embeddings` [vocabulary, hidden] are the target's or the head's. Raises ConfigError on several ranks.
    """
    if mine().ranks > 1:
        raise ConfigError(
            f"the head in {folder} scales its RoPE in a way that only SGLang's own head computes, which runs on one "
            f"rank here; sglang.tp is {mine().ranks}: set sglang.tp=1, or engine.kind=sglang for SGLang's own engine",
            param="sglang.tp",
        )
    from aerie.engine.sglang.attention import PagedAttention
    from aerie.engine.sglang.draft import SglangDraft

    draft = SglangDraft(folder, PagedAttention(attention, pool), pool.keys.dtype, pool.keys.device)
    draft.share_embeddings(embeddings)
    return draft
