"""From a checkpoint folder to a head. Every tensor is assigned, deliberately borrowed from the target, or named in an
error.

Two steps, since the taps must be known before the target is loaded: `open_head` reads the config, `load_head` the
tensors.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.dummy_weights import DummyWeights
from aerie.engine.model.matrix import Matrix
from aerie.engine.model.parts import Module, Parts
from aerie.engine.model.projection import Precision
from aerie.engine.model.stack import Layer, Stack
from aerie.engine.model.weights import Source, Weights
from aerie.spec.checkpoints.dummy import head_shapes
from aerie.spec.checkpoints.formats import Shapes, head_config, normalized_name
from aerie.spec.heads.config import HeadConfig, check_fits
from aerie.spec.heads.head import HeadWeights
from aerie.spec.heads.vocabulary import draft_to_target


class Lender(Protocol):
    """What a head may borrow from the loaded target."""

    @property
    def embeddings(self) -> Tensor:
        """[vocabulary, hidden]"""

    @property
    def output_weight(self) -> Tensor:
        """[vocabulary, hidden]"""


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A head's folder whose format is known and fits its target; no tensor has been read yet."""

    folder: Path
    config: HeadConfig
    weights: Source
    bytes: int


def open_head(
    folder: Path,
    target: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    dummy: bool = False,
    any_rope: bool = False,
) -> HeadCheckpoint:
    """Raises ConfigError on a format that is not served, a pickle, or a head made for another target.

    A `dummy` head needs only its config.json; `any_rope` is for heads whose layers Aerie does not run.
    """
    weights: Source
    shapes: Shapes
    config_json = read_config(folder)
    if dummy:
        shapes = head_shapes(config_json, target_hidden=target.hidden_size)
        weights = DummyWeights(dtype, device, shapes)
    else:
        stored = Weights(folder, dtype, device, rename=normalized_name)
        weights, shapes = stored, stored.shapes()
    config = head_config(config_json, shapes, target_layers=target.layers, any_rope=any_rope)
    check_fits(config, hidden=target.hidden_size, vocabulary=target.vocabulary, layers=target.layers)
    size = sum(math.prod(shape) for name, shape in shapes.items() if name not in ("d2t", "t2d"))
    return HeadCheckpoint(folder, config, weights, size * dtype.itemsize)


def load_head(
    checkpoint: HeadCheckpoint,
    target: Lender,
    kernels: Kernels = REFERENCES,
    precision: Precision = Precision.STORED,
) -> HeadWeights:
    """Reads every tensor that has not been taken yet.

    The embedding is the target's if the checkpoint has none; so is a missing output layer (`_output`).
    """
    config, weights = checkpoint.config, checkpoint.weights
    parts = Parts(weights, config.eps, kernels, precision)
    wide = len(config.taps) * config.target_hidden
    ids = draft_to_target(weights, draft_vocabulary=config.draft_vocabulary, vocabulary=config.vocabulary)
    norms = {
        "none": [],
        "concat": [("input_norm", wide)],
        "per_tap": [(f"fc_norm.{tap}", config.target_hidden) for tap in range(len(config.taps))],
    }[config.pre_norm]
    head = HeadWeights(
        fc=parts.projection(wide, Module("fc", config.hidden), bias=config.fc_bias),
        pre_norms=tuple(parts.norm(name, size) for name, size in norms),
        stack=Stack(
            tuple(_layer(config, parts, index) for index in range(config.layers)),
            normed_residual=config.norm_before_residual,
        ),
        norm=parts.norm("norm", config.hidden),
        output=parts.projected(_output(checkpoint, target, ids)),
        embeddings=_embeddings(checkpoint, target),
        draft_to_target=ids,
        own_output="lm_head.weight" in weights,
        own_embeddings="embed_tokens.weight" in weights,
    )
    weights.finish()
    return head


def _embeddings(checkpoint: HeadCheckpoint, target: Lender) -> Tensor:
    """[vocabulary, hidden]: the checkpoint's, else the target's."""
    config, weights = checkpoint.config, checkpoint.weights
    if "embed_tokens.weight" in weights:
        return weights.take("embed_tokens.weight", (config.vocabulary, config.hidden))
    shared = target.embeddings
    if shared.shape[1] != config.hidden:
        raise ConfigError(
            f"the head in {checkpoint.folder} has hidden size {config.hidden} and no own embedding; the target's "
            f"has hidden size {shared.shape[1]} and cannot be shared",
            param="spec.head",
        )
    return shared


def _output(checkpoint: HeadCheckpoint, target: Lender, ids: Tensor | None) -> Matrix:
    """The head's lm_head [draft vocabulary, hidden].

    A missing one is borrowed from the target, with its rows gathered for a reduced vocabulary; it is never left random.
    """
    config, weights = checkpoint.config, checkpoint.weights
    if "lm_head.weight" in weights:
        return weights.matrix("lm_head", (config.draft_vocabulary, config.hidden))
    shared = target.output_weight
    if shared.shape[1] != config.hidden:
        raise ConfigError(
            f"the head in {checkpoint.folder} has hidden size {config.hidden} and no lm_head; the target's has hidden "
            f"size {shared.shape[1]} and cannot be borrowed",
            param="spec.head",
        )
    return shared if ids is None else shared.index_select(0, ids.to(shared.device))


def _layer(config: HeadConfig, parts: Parts, index: int) -> Layer:
    """Layer 0 attends over embedding and hidden; deeper layers are plain. The name of their first norm varies."""
    prefix, hidden, first = f"layers.{index}", config.hidden, index == 0
    hidden_norm = f"{prefix}.hidden_norm"
    if not first and f"{prefix}.input_layernorm.weight" in parts.source:
        hidden_norm = f"{prefix}.input_layernorm"
    return Layer(
        embedding_norm=parts.norm(f"{prefix}.input_layernorm", hidden) if first else None,
        input_norm=parts.norm(hidden_norm, hidden),
        attention=parts.attention(
            f"{prefix}.self_attn",
            width=2 * hidden if first else hidden,
            hidden=hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            output_bias=config.output_bias,
            qk_norm=config.qk_norm,
        ),
        post_norm=parts.norm(f"{prefix}.post_attention_layernorm", hidden),
        mlp=parts.mlp(f"{prefix}.mlp", hidden=hidden, inner=config.intermediate, bias=config.mlp_bias),
    )


def has_tensor(folder: Path, name: str) -> bool:
    """Whether a head's folder has a tensor of this canonical name. A folder that cannot be read has none: opening it
    says why.
    """
    try:
        return name in Weights(folder, torch.float32, rename=normalized_name)
    except ConfigError:
        return False


def read_config(folder: Path) -> dict[str, object]:
    """The config.json of a draft head. Raises ConfigError."""
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"no config.json in {path.parent}; a draft head's folder has one", param="spec.head"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}", param="spec.head") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold an object; it holds a {type(data).__name__}", param="spec.head")
    return data
