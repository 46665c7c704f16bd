"""Stage 8: the head in the layouts of SpecForge/SGLang and of speculators/vLLM, each with its model card.

Both hold the same bf16 tensors, bit for bit those of the training stage; names and config differ. For a P-EAGLE head
the first layout is vLLM's, since SGLang has no P-EAGLE.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import weights_hash
from aerie.engine.model.config import read_rope
from aerie.engine.model.config_numbers import ConfigNumbers
from aerie.train.heads.head import HeadShape
from aerie.train.heads.layout import boundaries_of
from aerie.train.pipeline import evaluate, features, fit
from aerie.train.pipeline.card import write_card
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import read_index
from aerie.train.pipeline.folder import begin, input_hash, reported_when_full
from aerie.train.progress import bar

STAGE = "export"
SPECFORGE, SPECULATORS = "specforge", "speculators"
_TOKENS = 4
"""Tokens that an EAGLE-3 head drafts by default."""


def export_head(config: PipelineConfig) -> Path:
    """Raises AerieError if the target has changed since the head was trained."""
    work, target = Path(config.work), Path(config.target)
    inputs = {stage: input_hash(work, stage) for stage in (features.STAGE, fit.STAGE, evaluate.STAGE)}
    index = read_index(work / features.STAGE)
    if weights_hash(target) != index.target:
        raise AerieError(
            f"{target} is not the target that the head was trained for: its weights hash to {weights_hash(target)}, "
            f"those of the features to {index.target}"
        )
    begun = begin(work, STAGE, config.export.model_dump(mode="json"), inputs)
    head = work / fit.STAGE / fit.HEAD
    head_config = json.loads((head / "config.json").read_text(encoding="utf-8"))
    shape = shape_of(head_config)
    cells = json.loads((work / evaluate.STAGE / evaluate.FILE).read_text(encoding="utf-8"))
    with reported_when_full(begun.path), bar(STAGE, 2) as advance:
        (begun.path / SPECFORGE).mkdir(exist_ok=True)
        for file in sorted(head.iterdir()):
            shutil.copy(file, begun.path / SPECFORGE)
        advance(1)
        _write_speculators(begun.path / SPECULATORS, head, head_config, shape, target)
        advance(1)
        for layout in (SPECFORGE, SPECULATORS):
            write_card(begun.path / layout / "README.md", config, index, shape, cells)
            for picture in (work / evaluate.STAGE).glob("*.png"):
                shutil.copy(picture, begun.path / layout / picture.name)
    return begun.finish({"layouts": [SPECFORGE, SPECULATORS], "weights": weights_hash(begun.path / SPECFORGE)})


def shape_of(head_config: dict[str, Any]) -> HeadShape:
    """The shape in the config that training wrote for a head of either kind; it does not include a P-EAGLE head's
    layers.
    """
    return HeadShape(
        hidden=head_config["hidden_size"],
        intermediate=head_config["intermediate_size"],
        heads=head_config["num_attention_heads"],
        kv_heads=head_config["num_key_value_heads"],
        head_dim=head_config["head_dim"],
        vocabulary=head_config["vocab_size"],
        draft_vocabulary=head_config["draft_vocab_size"],
        boundaries=boundaries_of(head_config),
        eps=head_config["rms_norm_eps"],
        rope=read_rope(ConfigNumbers(head_config, "the head's config.json", "work")),
        max_positions=head_config["max_position_embeddings"],
        tap_norms=head_config.get("fc_norm", False),
        norm_output=head_config.get("norm_output", False),
        norm_before_residual=head_config.get("norm_before_residual", False),
    )


def _write_speculators(out: Path, head: Path, head_config: dict[str, Any], shape: HeadShape, target: Path) -> None:
    """Names layers `layers.N` and writes the embedding: this layout's readers expect both.

    The embedding is the target's; a P-EAGLE head already has one, with the mask's row.
    """
    out.mkdir(exist_ok=True)
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor for name, tensor in load_file(head / "model.safetensors").items()
    }
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = OutputEnd(target).embedding.to(torch.bfloat16).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(speculators_config(head_config, shape, target), indent=2) + "\n")


def speculators_config(head_config: dict[str, Any], shape: HeadShape, target: Path) -> dict[str, Any]:
    """The `config.json`: shapes are under `transformer_layer_config` and taps are boundaries.

    Writes every switch, since a missing `norm_before_residual` is read as true.
    """
    layer = (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act "
        "attention_bias rms_norm_eps rope_theta max_position_embeddings vocab_size tie_word_embeddings model_type"
    )
    scaling = {key: head_config[key] for key in ("rope_scaling",) if key in head_config}
    architectures = json.loads((target / "config.json").read_text(encoding="utf-8")).get("architectures")
    parallel = "ptd_token_id" in head_config
    kind, name = ("peagle", "PEagleSpeculator") if parallel else ("eagle3", "Eagle3Speculator")
    return {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": head_config.get("num_depths", _TOKENS)}
            ],
            "verifier": {"name_or_path": str(target), "architectures": architectures},
        },
        "transformer_layer_config": {key: head_config[key] for key in layer.split()} | scaling,
        "draft_vocab_size": shape.draft_vocabulary,
        "target_hidden_size": shape.hidden,
        "eagle_aux_hidden_state_layer_ids": list(shape.boundaries),
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": shape.tap_norms,
        "norm_output": shape.norm_output,
        "embed_requires_grad": parallel,
        "torch_dtype": "bfloat16",
        **({"mask_token_id": head_config["ptd_token_id"]} if parallel else {}),
    }
