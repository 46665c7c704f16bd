"""How a head begins: like the target's last layers, or as an exported head that is trained on.

Called by `train`. A head that was made for another target, template, vocabulary or set of taps is refused by name:
training would go on and quietly spoil it.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from contracts.errors import ConfigError
from spec.card import origin_of
from train.export import load_exported, specforge_config
from train.head import Head, HeadShape
from train.stages.config import TrainStage
from train.stages.served import OutputEnd
from train.stages.shards import Index
from train.start import borrow
from train.vocabulary import DraftVocabulary


def first_head(stage: TrainStage, seed: int, end: OutputEnd, index: Index, vocabulary: DraftVocabulary) -> Head:
    """Equal arguments give equal weights. Raises ConfigError on a head to go on from that does not belong here."""
    shape = _shape(stage, end, index, vocabulary)
    if stage.start_from is not None:
        return _earlier(Path(stage.start_from), shape, index, vocabulary)
    torch.manual_seed(seed)
    head = Head(shape)
    borrow(head, _last_layer(end), end.model.layers, vocabulary)
    return head


def _shape(stage: TrainStage, end: OutputEnd, index: Index, vocabulary: DraftVocabulary) -> HeadShape:
    model = end.model
    return HeadShape(
        hidden=model.hidden_size,
        intermediate=stage.intermediate_size or model.intermediate_size,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocabulary=model.vocabulary,
        draft_vocabulary=len(vocabulary.draft_to_target),
        boundaries=index.boundaries,
        eps=model.norm_eps,
        rope_theta=model.rope.theta,
        max_positions=model.max_positions,
        tap_norms=stage.tap_norms,
        norm_output=stage.norm_output,
    )


def _last_layer(end: OutputEnd) -> dict[str, torch.Tensor]:
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


def _earlier(folder: Path, shape: HeadShape, index: Index, vocabulary: DraftVocabulary) -> Head:
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"no exported head at {folder} (train.start_from)", param="train.start_from")
    origin = origin_of(folder)
    if origin is None:
        raise ConfigError(f"{folder} has no card that says which target it was trained for", param="train.start_from")
    _same(folder, "target (sha256 of its weights)", origin.target, index.target)
    _same(folder, "chat template (sha256)", origin.template, index.template)
    config = specforge_config(shape)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    taps = [tap + 1 for tap in told["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    _same(folder, "set of taps (boundaries)", taps, list(shape.boundaries))
    for key in ("intermediate_size", "fc_norm", "norm_output"):
        _same(folder, key, told.get(key), config.get(key))
    ids = load_file(weights)["d2t"] + torch.arange(told["draft_vocab_size"])
    if not torch.equal(ids, vocabulary.draft_to_target):
        raise ConfigError(
            f"{folder} was trained on another draft vocabulary ({len(ids)} ids, here {shape.draft_vocabulary}): "
            f"go on with the one it has, or train a head from the start",
            param="train.start_from",
        )
    return load_exported(folder, shape)


def _same(folder: Path, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ConfigError(
            f"{folder} was trained on another {what}: it has {found}, here it is {wanted}", param="train.start_from"
        )
