"""Explains why two answers to one request differ: how close the target's choice was at the difference.

The choice is the argmax of logits / T + g. If its two best tokens are closer than the rounding of the logits, the order
of a sum decides, and batching changes that order. The same holds for a token that close to the edge of a filter,
however far ahead it is (`edges`). Recomputed in this process by one causal pass over the common prefix, with simple
dense attention.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from aerie.contracts.config import Config
from aerie.contracts.messages import Generate
from aerie.contracts.sampling import noise_key
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.build import load_target
from aerie.engine.memory import plan_sizes
from aerie.engine.model.config import read_model_config
from aerie.engine.sampling.noise import gumbel
from aerie.probe.edges import Distance, Edges, filter_edges

EXCUSED = 1e-4
"""A gap between two choices below which a mismatch is rounding, in fp32 too."""
_ROUNDINGS = 4
"""In 16-bit arithmetic the logits themselves differ between batches by a few roundings."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer left the reference. `tokens` are the reference's and the other's; -1 if that one had ended."""

    request: str
    position: int
    """Position of the answer's first different token."""
    tokens: tuple[int, int]
    margin: float
    """Difference between the two best of logits / T + g that pass the filters."""
    gap: float
    """The least difference of logits / T if both tokens were chosen: the margin, if they are the two best."""
    rounding: float
    """Rounding of the largest logit, over T, in the measured dtype."""
    edge: str | None = None
    """`min_p`, `top_k` or `top_p` if the gap is the distance to that filter's edge."""

    @property
    def excused(self) -> bool:
        return self.gap < EXCUSED

    @property
    def explained(self) -> bool:
        """In fp32 the same as excused."""
        return self.gap < max(EXCUSED, _ROUNDINGS * self.rounding)


@dataclass(frozen=True, slots=True)
class Choice:
    """The two best tokens by z = logits / T + g [V] that pass the filters, best first, and their distance."""

    z: torch.Tensor
    edges: Edges
    best: tuple[int, int]
    margin: float
    rounding: float
    """Rounding of the largest logit, over T, in the target's dtype."""


class Margins:
    """A separate target in the config's dtype, for one row."""

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
        """The first difference; None if the answers are equal."""
        if list(reference) == list(other):
            return None
        shared = min(len(reference), len(other))
        place = next((i for i in range(shared) if reference[i] != other[i]), shared)
        own, theirs = (answer[place] if place < len(answer) else -1 for answer in (reference, other))
        choice = self.choice(request, reference[:place])
        ended = -1 in (own, theirs)
        needed = [Distance(math.inf, None)] if ended else [choice.edges.needed(choice.z, one) for one in (own, theirs)]
        most = max(needed, key=lambda distance: distance.gap)
        return Divergence(
            request=request.id,
            position=place,
            tokens=(own, theirs),
            margin=choice.margin,
            gap=most.gap,
            rounding=choice.rounding,
            edge=most.edge,
        )

    def choice(self, request: Generate, answered: Sequence[int]) -> Choice:
        """The target's choice after these tokens of the answer. min_tokens is not applied."""
        sampling, ids = request.sampling, [*request.prompt, *answered]
        z = logits = self._logits(ids)
        temperature = 1.0 if sampling.greedy else sampling.temperature
        if not sampling.greedy:
            key = torch.tensor([noise_key(sampling.seed, request.prompt, request.choice)], device=self._device)
            position, tokens = torch.tensor([len(ids)], device=self._device), torch.arange(logits.numel())
            z = logits / temperature + gumbel(key, position, tokens.to(self._device))[0]
        edges = filter_edges(logits / temperature, sampling)
        values, best = z.masked_fill(edges.nearest < 0, -math.inf).topk(2)
        return Choice(
            z=z,
            edges=edges,
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
