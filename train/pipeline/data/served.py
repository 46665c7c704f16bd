"""The target as serving computes it: taps and final states of a conversation, from the engine's own decoder.

Called by `features` (offline) and by `train` (online); both keep the result in bf16, so the two see equal values. Each
conversation is a separate pass, so its values depend only on its ids.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.build import load_target
from aerie.engine.memory import plan_sizes
from aerie.engine.model.config import read_model_config
from aerie.engine.model.norm import RmsNorm, normed
from aerie.engine.model.weights import Weights
from aerie.spec.heads.config import default_boundaries


@dataclass(frozen=True, slots=True)
class States:
    """bf16. `taps` [tokens, taps * hidden], low to high; `final` [tokens, hidden], the last layer's output before the
    final norm.
    """

    taps: Tensor
    final: Tensor


class ServedTarget:
    """A loaded target with room for one conversation of `longest` tokens."""

    def __init__(
        self, folder: Path, boundaries: tuple[int, ...], *, longest: int, dtype: str, threads: int, device: str = "auto"
    ) -> None:
        torch.set_num_threads(threads)
        model = read_model_config(folder)
        longest = min(longest, model.max_positions)
        engine: dict[str, Any] = {"kv_tokens": max(64, longest + 1), "threads": threads, "device": device}
        config = parse_config(
            {
                "model": {"path": str(folder), "dtype": dtype, "max_length": longest},
                "engine": engine,
                "spec": {"head": "none"},
            }
        )
        sizes = plan_sizes(config, model)
        self.longest = longest
        self._target = load_target(config, model, sizes, (*boundaries, model.layers))
        self._width = len(boundaries) * model.hidden_size
        self._page = sizes.page_size
        self._device = sizes.device

    @torch.inference_mode()
    def states(self, ids: list[int]) -> States:
        """The states of a conversation of 1 to `longest` tokens."""
        count, page, device = len(ids), self._page, self._device
        pages = -(-count // page)
        positions = torch.arange(count, device=device)
        inputs = AttentionInputs(
            qo_indptr=torch.tensor([0, count], dtype=torch.int32),
            kv_indptr=torch.tensor([0, pages], dtype=torch.int32),
            kv_indices=torch.arange(1, pages + 1, dtype=torch.int32, device=device),  # page 0 is the dummy page
            last_page_len=torch.tensor([count - (pages - 1) * page], dtype=torch.int32),
            prefix_lens=torch.zeros(1, dtype=torch.int64, device=device),
            words=None,
            page_size=page,
        )
        none = torch.zeros(0, dtype=torch.int64, device=device)
        tokens = torch.tensor(ids, device=device)
        output = self._target.forward(tokens, positions, positions + page, inputs, none, taps=True)
        assert output.taps is not None
        taps = output.taps.bfloat16().cpu()
        return States(taps[:, : self._width].clone(), taps[:, self._width :].clone())


class OutputEnd:
    """The parts of the target that a trainer needs besides features, in fp32: embeddings, final norm, output matrix."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.model = read_model_config(folder)
        self.weights = Weights(folder, torch.float32, device)
        size = (self.model.vocabulary, self.model.hidden_size)
        self.embedding = self.weights.take("model.embed_tokens.weight", size)
        self.output = self.embedding if self.model.tied_embeddings else self.weights.take("lm_head.weight", size)
        self.norm_weight = self.weights.take("model.norm.weight", (self.model.hidden_size,))
        self._norm = RmsNorm(self.norm_weight, self.model.norm_eps)

    @torch.no_grad()
    def logits(self, final: Tensor) -> Tensor:
        """[..., hidden] before the norm, of any dtype -> [..., vocabulary] in fp32."""
        return self.normed(final) @ self.output.T

    def normed(self, final: Tensor) -> Tensor:
        """[..., hidden] before the norm, of any dtype -> the same after it, in fp32."""
        # In torch, whatever kernels the process has selected: a killed run must end in the same bytes.
        return normed(final.float(), self._norm.gain, self._norm.floor)


def tap_boundaries(taps: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """The taps that a config names, else EAGLE-3's own. Raises ConfigError if the target lacks one."""
    found = taps or default_boundaries(layers)
    if list(found) != sorted(set(found)) or not all(0 <= tap < layers for tap in found):
        raise ConfigError(
            f"features.taps is {list(found)}; taps ascend within 0 .. {layers - 1}, the target's layers",
            param="features.taps",
        )
    return found
