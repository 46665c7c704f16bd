"""Why two answers to one request part: how close the target's choice was where they did.

The choice is the argmax of logits / T + g. Where its two best tokens are nearer than the rounding of the logits, the
order of a sum decides, which batching changes. Recomputed in this process by one causal pass over the common prefix,
with attention that is dense and obvious.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from contracts.config import Config
from contracts.messages import Generate
from contracts.sampling import noise_key
from engine.attention.inputs import AttentionInputs
from engine.build import load_target
from engine.memory import plan_sizes
from engine.model_config import read_model_config
from engine.noise import gumbel

EXCUSED = 1e-4
"""A distance of two choices under which a mismatch is rounding, in fp32 too."""
_ROUNDINGS = 4
"""In 16-bit arithmetic the logits themselves differ between batches by a few of their own roundings."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer left the reference. `tokens` are the reference's and the other's; -1 where one had ended."""

    request: str
    position: int
    """Of the answer's first different token."""
    tokens: tuple[int, int]
    margin: float
    """Between the two best of logits / T + g."""
    gap: float
    """From the best to the worse of the two tokens: equal to the margin where they are the two best."""
    rounding: float
    """Of the largest logit, over T, in the dtype that was measured."""

    @property
    def excused(self) -> bool:
        return self.gap < EXCUSED

    @property
    def explained(self) -> bool:
        """In fp32 the same as excused."""
        return self.gap < max(EXCUSED, _ROUNDINGS * self.rounding)


@dataclass(frozen=True, slots=True)
class Choice:
    """The two best tokens by z = logits / T + g [V], best first, and how far they are apart."""

    z: torch.Tensor
    best: tuple[int, int]
    margin: float
    rounding: float
    """Of the largest logit, over T, in the target's dtype."""


class Margins:
    """A target of its own in the config's dtype, for one row."""

    def __init__(self, config: Config) -> None:
        one_row = config.scheduler.model_copy(update={"max_running": 1})
        engine = config.engine.model_copy(update={"attention": "reference", "kv_tokens": None})
        alone = config.model_copy(update={"scheduler": one_row, "engine": engine})
        model = read_model_config(Path(config.model.path))
        sizes = plan_sizes(alone, model)
        self._page, self._device = sizes.page_size, sizes.device
        self._resolution = torch.finfo(sizes.dtype).eps
        self._target = load_target(alone, model, sizes)

    def divergence(self, request: Generate, reference: Sequence[int], other: Sequence[int]) -> Divergence | None:
        """None where the answers are equal."""
        if list(reference) == list(other):
            return None
        shared = min(len(reference), len(other))
        place = next((i for i in range(shared) if reference[i] != other[i]), shared)
        own, theirs = (answer[place] if place < len(answer) else -1 for answer in (reference, other))
        choice = self.choice(request, reference[:place])
        return Divergence(
            request=request.id,
            position=place,
            tokens=(own, theirs),
            margin=choice.margin,
            gap=math.inf if -1 in (own, theirs) else float(choice.z.max() - choice.z[[own, theirs]].min()),
            rounding=choice.rounding,
        )

    def choice(self, request: Generate, answered: Sequence[int]) -> Choice:
        """What the target chooses between after these tokens of the answer. Filters and min_tokens are not applied."""
        sampling, ids = request.sampling, [*request.prompt, *answered]
        z = logits = self._logits(ids)
        temperature = 1.0 if sampling.greedy else sampling.temperature
        if not sampling.greedy:
            key = torch.tensor([noise_key(sampling.seed, request.prompt, request.choice)], device=self._device)
            position, tokens = torch.tensor([len(ids)], device=self._device), torch.arange(logits.numel())
            z = logits / temperature + gumbel(key, position, tokens.to(self._device))[0]
        values, best = z.topk(2)
        return Choice(
            z=z,
            best=(int(best[0]), int(best[1])),
            margin=float(values[0] - values[1]),
            rounding=float(logits.abs().max()) * self._resolution / temperature,
        )

    @torch.inference_mode()
    def _logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[V] fp32 after `ids`, in pages 1, 2, ... of the pool."""
        size = len(ids)
        pages = -(-size // self._page)
        inputs = AttentionInputs(
            qo_indptr=torch.tensor([0, size], dtype=torch.int32),
            kv_indptr=torch.tensor([0, pages], dtype=torch.int32),
            kv_indices=torch.arange(1, pages + 1, dtype=torch.int32, device=self._device),
            last_page_len=torch.tensor([size - (pages - 1) * self._page], dtype=torch.int32),
            prefix_lens=torch.zeros(1, dtype=torch.int64, device=self._device),
            words=None,
            page_size=self._page,
        )
        positions = torch.arange(size, device=self._device)
        wanted = torch.tensor([size - 1], device=self._device)
        tokens = torch.from_numpy(np.array(ids, dtype=np.int64)).to(self._device)
        return self._target.forward(tokens, positions, positions + self._page, inputs, wanted, taps=False).logits[0]
