"""How a head starts: its draft vocabulary, and weights that already resemble the target's last layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from train.config import HeadRun
from train.docstrings import Entry
from train.features import FrozenTarget
from train.head import Head, HeadShape, default_boundaries
from train.vocabulary import DraftVocabulary, draft_vocabulary


def started_vocabulary(run: HeadRun, entries: list[Entry], tokenizer: PreTrainedTokenizerFast) -> DraftVocabulary:
    """By the frequency of ids in the corpus's answers; the special tokens, which close answers, are always in."""
    end = tokenizer.eos_token_id
    answers = ([*tokenizer.encode(entry.text, add_special_tokens=False), end] for entry in entries)
    return draft_vocabulary(answers, kept=run.draft_vocabulary, size=len(tokenizer), always=tokenizer.all_special_ids)


def started_head(run: HeadRun, folder: Path, vocabulary: DraftVocabulary) -> tuple[Head, FrozenTarget]:
    """An untrained head shaped after the target in `folder`, and that target. Equal arguments give equal weights."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(run.seed)
    shape = _shape(run, model)
    head = Head(shape)
    borrow(head, model.state_dict(), model.config.num_hidden_layers, vocabulary)
    return head, FrozenTarget(model, shape.boundaries)


def _shape(run: HeadRun, model: LlamaForCausalLM) -> HeadShape:
    config: Any = model.config
    return HeadShape(
        hidden=config.hidden_size,
        intermediate=run.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        draft_vocabulary=run.draft_vocabulary,
        boundaries=default_boundaries(config.num_hidden_layers),
        eps=config.rms_norm_eps,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        max_positions=config.max_position_embeddings,
    )


@torch.no_grad()
def borrow(head: Head, target: Mapping[str, Tensor], layers: int, vocabulary: DraftVocabulary) -> None:
    """Begins as the target's last layer, final norm and output rows, read from the highest tap.

    `target` holds these tensors by their names in a checkpoint. What the target's layer has no counterpart for begins
    at random: the embedding's half of q, k and v, and the rest of a wider MLP, whose output begins at zero.
    """
    layer, last, hidden = head.midlayer, f"model.layers.{layers - 1}", head.shape.hidden
    head.fc.weight[:, -hidden:].add_(torch.eye(hidden))
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight[:, hidden:] = target[f"{last}.self_attn.{name}.weight"]
    layer.self_attn.o_proj.weight.copy_(target[f"{last}.self_attn.o_proj.weight"])
    wide = min(head.shape.intermediate, len(target[f"{last}.mlp.gate_proj.weight"]))
    layer.mlp.gate_proj.weight[:wide] = target[f"{last}.mlp.gate_proj.weight"][:wide]
    layer.mlp.up_proj.weight[:wide] = target[f"{last}.mlp.up_proj.weight"][:wide]
    layer.mlp.down_proj.weight.zero_()
    layer.mlp.down_proj.weight[:, :wide] = target[f"{last}.mlp.down_proj.weight"][:, :wide]
    layer.hidden_norm.weight.copy_(target[f"{last}.input_layernorm.weight"])
    layer.post_attention_layernorm.weight.copy_(target[f"{last}.post_attention_layernorm.weight"])
    head.norm.weight.copy_(target["model.norm.weight"])
    head.lm_head.weight.copy_(target["lm_head.weight"][vocabulary.draft_to_target])
