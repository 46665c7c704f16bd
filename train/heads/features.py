"""The head's training inputs: taps and output distributions of the frozen target.

Taps are indexed by boundary, as everywhere in Aerie: boundary b is the residual that enters layer b, before its norm.
"""

from collections.abc import Hashable
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
        """The features of ids [rows, columns], right-padded; causal attention never sees the padding."""
        taps, final = self.run(ids)
        return Features(taps, self.model.lm_head(final))

    def run(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The taps and the final normed hidden state [rows, columns, hidden]."""
        output = self.model.model(ids, output_hidden_states=True, use_cache=False)
        return torch.cat([output.hidden_states[b] for b in self.boundaries], -1), output.last_hidden_state


class FeatureStore:
    """Computes the features of a run's batches once and keeps them in memory in bf16, which saves a third of a step's
    work.

    `key` identifies a batch. Values are rounded to bf16 on first use too, so that a resumed run sees equal values.
    """

    def __init__(self, target: FrozenTarget) -> None:
        self._target = target
        self._kept: dict[Hashable, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def features(self, key: Hashable, ids: Tensor) -> Features:
        if key not in self._kept:
            taps, final = self._target.run(ids)
            self._kept[key] = taps.bfloat16(), final.bfloat16()
        taps, final = self._kept[key]
        return Features(taps.float(), self._target.model.lm_head(final.float()))
