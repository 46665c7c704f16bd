"""Initializes a head: from the target's last layer, or from an exported head.

Called by `train`. A head that was made for another target, template, vocabulary or set of taps is rejected with the
difference: training would silently spoil it.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import ModelConfig
from aerie.spec.checkpoints.card import origin_of
from aerie.train.heads.borrow import borrow, borrow_output
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.induction import induce
from aerie.train.heads.layout import boundaries_of, load_exported, specforge_config
from aerie.train.heads.peagle.head import ParallelHead, ParallelShape, start_from
from aerie.train.heads.peagle.layout import load_parallel_head
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import Index
from aerie.train.pipeline.fitting.config import TrainStage

Exported = tuple[dict[str, Any], dict[str, Tensor]]
"""Config and weights."""


def first_head(stage: TrainStage, seed: int, end: OutputEnd, index: Index, vocabulary: DraftVocabulary) -> Head:
    """Equal arguments give equal weights. Raises ConfigError if the head to continue from does not fit."""
    shape = _shape(stage, end, index, vocabulary)
    if stage.start_from is not None:
        folder = Path(stage.start_from)
        _same(folder, "kind", _kind(_checked(folder, shape, index, vocabulary)[1]), "eagle3")
        return load_exported(folder, shape)
    head = _begun(stage, shape, seed, end, vocabulary)
    if stage.start == "copying":
        _induce(head, end)
    return head


def first_parallel(
    stage: TrainStage, seed: int, end: OutputEnd, index: Index, vocabulary: DraftVocabulary, mask_token: int
) -> ParallelHead:
    """As `first_head`; when it starts from an EAGLE-3 head, only mask slots and deeper layers are new."""
    one = _shape(stage, end, index, vocabulary)
    shape = ParallelShape(one, stage.peagle.layers, mask_token)
    begun = _begun(stage, one, seed, end, vocabulary).state_dict()
    if stage.start_from is not None:
        folder = Path(stage.start_from)
        begun_config, begun = _checked(folder, one, index, vocabulary)
        if _kind(begun) == "peagle":
            _same(folder, "number of layers", begun_config["num_hidden_layers"], shape.layers)
            _same(folder, "mask token", begun_config["ptd_token_id"], mask_token)
            return load_parallel_head(folder, shape)
    torch.manual_seed(seed)
    head = ParallelHead(shape)
    start_from(head, {name: tensor.float() for name, tensor in begun.items()}, kept=stage.peagle.keep_start)
    return head


def _kind(weights: dict[str, Tensor]) -> str:
    return "peagle" if "mask_hidden" in weights else "eagle3"


def _begun(stage: TrainStage, shape: HeadShape, seed: int, end: OutputEnd, vocabulary: DraftVocabulary) -> Head:
    torch.manual_seed(seed)
    head = Head(shape)
    if stage.start == "random":
        borrow_output(head, _last_layer(end), vocabulary)
    else:
        borrow(head, _last_layer(end), end.model.layers, vocabulary)
    return head


def _induce(head: Head, end: OutputEnd) -> None:
    from aerie.train.demo.induction import room  # imports transformers, which takes seconds

    model, first = end.model, "model.layers.0"
    hidden, inner = model.hidden_size, model.heads * model.head_dim
    shapes = {
        "self_attn.v_proj": (model.kv_heads * model.head_dim, hidden),
        "self_attn.o_proj": (hidden, inner),
        "input_layernorm": (hidden,),
    }
    names = {f"{first}.{name}.weight": shape for name, shape in shapes.items()}
    tensors = {name: end.weights.take(name, shape) for name, shape in names.items()}
    size, spoken = room(hidden, model.heads)
    induce(head, tensors | {"model.embed_tokens.weight": end.embedding}, size=size, spoken=spoken)


def _shape(stage: TrainStage, end: OutputEnd, index: Index, vocabulary: DraftVocabulary) -> HeadShape:
    shape = shape_for(end.model, index.boundaries, len(vocabulary.draft_to_target), stage.intermediate_size)
    norms = ("tap_norms", "norm_output", "norm_before_residual")
    return replace(shape, **{name: getattr(stage, name) for name in norms})


def shape_for(
    model: ModelConfig, boundaries: tuple[int, ...], draft_vocabulary: int, intermediate: int | None = None
) -> HeadShape:
    """A head as wide as the target, and its MLP too unless `intermediate` says otherwise."""
    return HeadShape(
        hidden=model.hidden_size,
        intermediate=intermediate or model.intermediate_size,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocabulary=model.vocabulary,
        draft_vocabulary=draft_vocabulary,
        boundaries=boundaries,
        eps=model.norm_eps,
        rope=model.rope,
        max_positions=model.max_positions,
    )


def _last_layer(end: OutputEnd) -> dict[str, Tensor]:
    model, prefix = end.model, f"model.layers.{end.model.layers - 1}"
    hidden, inner = model.hidden_size, model.intermediate_size
    shapes = {
        "self_attn.q_proj": (model.heads * model.head_dim, hidden),
        "self_attn.k_proj": (model.kv_heads * model.head_dim, hidden),
        "self_attn.v_proj": (model.kv_heads * model.head_dim, hidden),
        "self_attn.o_proj": (hidden, model.heads * model.head_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    names = {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}
    tensors = {name: end.weights.take(name, shape) for name, shape in names.items()}
    return tensors | {"model.norm.weight": end.norm_weight, "lm_head.weight": end.output}


def _checked(folder: Path, shape: HeadShape, index: Index, vocabulary: DraftVocabulary) -> Exported:
    """Reads an exported head of either kind and checks that it fits."""
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"no exported head at {folder} (train.start_from)", param="train.start_from")
    origin = origin_of(folder)
    if origin is None:
        raise ConfigError(f"{folder} has no card that says which target it was trained for", param="train.start_from")
    _same(folder, "target (sha256 of its weights)", origin.target, index.target)
    _same(folder, "chat template (sha256)", origin.template, index.template)
    config = specforge_config(shape)
    begun_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _same(folder, "set of taps (boundaries)", list(boundaries_of(begun_config)), list(shape.boundaries))
    for key in ("intermediate_size", "fc_norm", "norm_output", "norm_before_residual"):
        _same(folder, key, begun_config.get(key, False), config.get(key, False))
    tensors = load_file(weights)
    ids = tensors["d2t"] + torch.arange(begun_config["draft_vocab_size"])  # [draft vocabulary]
    if not torch.equal(ids, vocabulary.draft_to_target):
        raise ConfigError(
            f"{folder} was trained on another draft vocabulary ({len(ids)} ids, here {shape.draft_vocabulary}): "
            f"go on with the one it has, or train a head from the start",
            param="train.start_from",
        )
    return begun_config, tensors


def _same(folder: Path, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ConfigError(
            f"{folder} was trained on another {what}: it has {found}, here it is {wanted}", param="train.start_from"
        )
