"""A start that can already copy: two layers of attention begin as an induction circuit instead of at random.

Copying from the prompt is what the tasks share, and it dawns late in a run that has to find the circuit itself (Olsson
et al., "In-context Learning and Induction Heads", 2022). Layer 0 begins by noting the tokens one to four places back
beside the token at hand; layer 1 begins by attending to where the same tokens came before, and says what followed. The
weights are only a start. They learn more slowly than the others (`circuit_rate`): at the full rate training forgets the
far places first, and then takes one word for another that ends alike.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from aerie.engine.model.config import read_rope
from aerie.engine.model.config_numbers import ConfigNumbers
from aerie.engine.model.rope import frequencies

_BACK = 4
"""Tokens that are noted: a word is two or three syllables and the space before it, and words may end alike."""
_NOTED = 0.375
"""Share of the hidden size that embeddings leave free, for the notes."""
_DEVIATION = 0.4
"""Of the embeddings' components. All that writes into the residual is in proportion, so that the first steps of the
optimizers, whose size does not depend on the weights', leave the circuit alike."""
_LOUDNESS = 0.08
"""Of the embeddings' components as logits see them: the final norm's weights make up for the rest."""
_CONSTANT = 4.0
"""Component 0 of every embedding, in standard deviations of the others: what attention by position alone reads."""
_POSITION_GAIN = 2.0
_MATCH_GAIN = 2.5
_MATCH_DECAY = 0.7
"""How much less a token counts in a match for each place back."""
_COPY_GAIN = 5.0
"""How loud the copied token is beside the token at hand."""
_FAST = 0.1
_SLOW = 0.01
"""Radians a position: components that rotate as fast tell neighbors apart; those that rotate no faster compare tokens
over some hundred positions."""

LAYERS = 2
"""The first ones of a model, whose attention is the circuit."""


@torch.no_grad()
def induce(model: LlamaForCausalLM) -> None:
    """Writes the circuit into layers 0 and 1 of a fresh model."""
    config: Any = model.config
    back = min(_BACK, config.num_attention_heads)
    size, spoken = room(config.hidden_size, config.num_attention_heads)
    rows = model.model.embed_tokens.weight
    rows[:, spoken:] = 0
    rows[:, 0] = 0
    rows.mul_(_DEVIATION * spoken**0.5 / rows.norm(dim=1, keepdim=True).clamp(min=1e-3))  # no token is louder
    rows[:, 0] = _CONSTANT * _DEVIATION
    model.model.norm.weight.fill_(_LOUDNESS / _DEVIATION)
    code = _orthonormal(size, spoken, config.hidden_size)
    _look_back(model, code, spoken, back)
    _look_up(model, code, spoken, back)


def room(hidden: int, heads: int) -> tuple[int, int]:
    """How many components a noted token has, and from which component on the notes are."""
    back = min(_BACK, heads)
    size = round(_NOTED * hidden / back)
    return size, hidden - back * size


def _look_back(model: LlamaForCausalLM, code: Tensor, spoken: int, back: int) -> None:
    """Head h of layer 0 attends h + 1 places back; what `code` [size, hidden] reads there it notes in its own place."""
    config: Any = model.config
    attention, angles, size = model.model.layers[0].self_attn, _angles(model), len(code)
    width, pairs = config.head_dim, len(angles)
    gains = _POSITION_GAIN * (angles >= _FAST)
    attention.k_proj.weight.zero_()
    attention.v_proj.weight.zero_()
    for key in range(config.num_key_value_heads):
        attention.k_proj.weight[key * width : key * width + pairs, 0] = gains
        attention.v_proj.weight[key * width : key * width + size] = code
    for head in range(back):
        first, places = head * width, torch.arange(size)
        attention.q_proj.weight[first : first + width] = 0
        attention.q_proj.weight[first : first + pairs, 0] = gains * ((head + 1) * angles).cos()
        attention.q_proj.weight[first + pairs : first + width, 0] = -gains * ((head + 1) * angles).sin()
        attention.o_proj.weight[spoken + head * size + places, first + places] = _DEVIATION


def _look_up(model: LlamaForCausalLM, code: Tensor, spoken: int, back: int) -> None:
    """One head of each key of layer 1 attends to where the tokens at hand were noted, and says what stands there."""
    config: Any = model.config
    attention, angles, size = model.model.layers[1].self_attn, _angles(model), len(code)
    width, keys = config.head_dim, config.num_key_value_heads
    slow = torch.nonzero(angles <= _SLOW).flatten()
    compared = torch.cat([slow, slow + len(angles)])
    speaking = min(keys, -(spoken // -width))  # as many as the embeddings' own components need
    said = _orthonormal(speaking * width, spoken, config.hidden_size)
    for key in range(speaking):
        first = key * (config.num_attention_heads // keys) * width
        own = slice(key * width, (key + 1) * width)
        attention.q_proj.weight[first : first + width] = 0
        attention.k_proj.weight[own] = 0
        for place in range(back):
            mixed = torch.randn(len(compared), size) * _MATCH_DECAY**place * _MATCH_GAIN / size**0.5
            noted = slice(spoken + place * size, spoken + (place + 1) * size)
            attention.k_proj.weight[key * width + compared, noted] = mixed
            if place == 0:
                attention.q_proj.weight[first + compared] += mixed @ code
            else:
                before = slice(noted.start - size, noted.stop - size)
                attention.q_proj.weight[first + compared, before] = mixed
        attention.v_proj.weight[own] = said[own]
        attention.o_proj.weight[:, first : first + width] = _COPY_GAIN * _DEVIATION * said[own].T


def _angles(model: LlamaForCausalLM) -> Tensor:
    """Radians that each pair of a head's components, (i, i + width / 2), turns a position."""
    config = ConfigNumbers(model.config.to_dict(), "the target's config", "pretrain.architecture")
    return frequencies(read_rope(config), config.size("head_dim"))


def _orthonormal(rows: int, spoken: int, hidden: int) -> Tensor:
    """Random orthonormal rows [rows, hidden] that read the embeddings' own components alone; rows beyond their number
    are zero.
    """
    square = torch.linalg.qr(torch.randn(spoken - 1, spoken - 1))[0]
    found = torch.zeros(rows, hidden)
    found[: len(square), 1:spoken] = square[:rows]
    return found
