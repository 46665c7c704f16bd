"""What the head learns from: the taps of the frozen target and its own distributions, computed as training goes.

Taps are kept by boundary, as everywhere in Aerie: boundary b is the residual that enters layer b, un-normed.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class Features:
    """`taps` [rows, columns, taps * hidden], low to high; `logits` [rows, columns, target vocabulary]."""

    taps: Tensor
    logits: Tensor


class FrozenTarget:
    """The finished target: the weights that serving uses (bf16), computed in fp32."""

    def __init__(self, model: LlamaForCausalLM, boundaries: tuple[int, ...]) -> None:
        if not all(0 <= b < model.config.num_hidden_layers for b in boundaries):
            raise ValueError(f"boundaries are {boundaries}; the target has {model.config.num_hidden_layers} layers")
        self.model = model.eval().requires_grad_(False)
        self.boundaries = boundaries

    @classmethod
    def load(cls, folder: Path, boundaries: tuple[int, ...]) -> "FrozenTarget":
        return cls(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), boundaries)

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden], shared with the head."""
        return self.model.get_input_embeddings().weight

    @torch.no_grad()
    def features(self, ids: Tensor) -> Features:
        """Of ids [rows, columns] padded on the right, which causal attention never sees."""
        output = self.model(ids, output_hidden_states=True, use_cache=False)
        return Features(torch.cat([output.hidden_states[b] for b in self.boundaries], -1), output.logits)
