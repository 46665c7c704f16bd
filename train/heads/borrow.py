"""Initializes a head from parts of the target, for the demo pair and the pipeline.

Does not import `transformers`: its models take seconds to import, and every stage of the pipeline would pay for that.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head


@torch.no_grad()
def borrow_output(head: Head, target: Mapping[str, Tensor], vocabulary: DraftVocabulary) -> None:
    """Initializes the final norm and the output rows as the target's. `target` holds these tensors under their
    checkpoint names.
    """
    head.norm.weight.copy_(target["model.norm.weight"])
    head.lm_head.weight.copy_(target["lm_head.weight"][vocabulary.draft_to_target])


@torch.no_grad()
def borrow(head: Head, target: Mapping[str, Tensor], layers: int, vocabulary: DraftVocabulary) -> None:
    """Initializes the head as the target's last layer, final norm and output rows, applied to the highest tap.

    `target` holds these tensors under their checkpoint names. Parts without a counterpart start at random: the
    embedding's half of q, k and v, and the rest of a wider MLP, whose output starts at zero.
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
    borrow_output(head, target, vocabulary)
