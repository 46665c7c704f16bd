"""A start that can already copy: two layers of attention begin as an induction circuit instead of at random.

Copying from the prompt is what the tasks share, and it dawns late in a run that has to find the circuit itself (Olsson
et al., "In-context Learning and Induction Heads", 2022). Layer 0 begins by attending to the token before and noting it
beside the token at hand; layer 1 begins by attending to where the token at hand was noted, and says what stood there.
The weights are only a start: all of them are trained.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

_NOTED = 0.25
"""Share of the hidden size that embeddings leave free, for the note of the token before."""
_DEVIATION = 0.08
"""Of the embeddings' components; large enough that the first steps of their optimizer leave them alike."""
_CONSTANT = 4.0
"""Component 0 of every embedding, in standard deviations of the others: what attention by position alone reads."""
_POSITION_GAIN = 2.0
_MATCH_GAIN = 2.5
_COPY_GAIN = 5.0
"""How loud the copied token is beside the token at hand."""
_FAST = 0.1
_SLOW = 0.004
"""Radians a position: components that rotate as fast tell neighbours apart; those that rotate no faster compare tokens
over some hundred positions."""


@torch.no_grad()
def induce(model: LlamaForCausalLM) -> None:
    """Writes the circuit into layers 0 and 1 of a fresh model. Its width must be at least twice that of two heads."""
    config: Any = model.config
    hidden, width = config.hidden_size, config.head_dim
    noted = min(width, round(_NOTED * hidden))
    spoken = hidden - noted
    rows = model.model.embed_tokens.weight
    rows[:, spoken:] = 0
    rows[:, 0] = 0
    rows.mul_(_DEVIATION * spoken**0.5 / rows.norm(dim=1, keepdim=True).clamp(min=1e-3))  # no token is louder
    rows[:, 0] = _CONSTANT * _DEVIATION
    note = _orthonormal(noted, spoken, hidden)
    _look_back(model, note, spoken)
    _look_up(model, note, spoken)


def _look_back(model: LlamaForCausalLM, note: Tensor, spoken: int) -> None:
    """Head 0 of layer 0 attends to the position before and writes its `note` [noted, hidden] where embeddings are 0."""
    attention, angles = model.model.layers[0].self_attn, _angles(model)
    width, pairs = 2 * len(angles), len(angles)
    for weight in (attention.q_proj.weight, attention.k_proj.weight):
        weight[:width] = 0
    gains = _POSITION_GAIN * (angles >= _FAST)
    attention.q_proj.weight[:pairs, 0] = gains
    attention.k_proj.weight[:pairs, 0] = gains * angles.cos()
    attention.k_proj.weight[pairs:width, 0] = gains * angles.sin()
    attention.v_proj.weight[:width] = 0
    attention.v_proj.weight[: len(note)] = note
    places = torch.arange(len(note))
    attention.o_proj.weight[spoken + places, places] = _DEVIATION


def _look_up(model: LlamaForCausalLM, note: Tensor, spoken: int) -> None:
    """One head of each key of layer 1 attends to where the token at hand was noted, and says what stands there."""
    config: Any = model.config
    attention, angles = model.model.layers[1].self_attn, _angles(model)
    pairs, width, keys = len(angles), config.head_dim, config.num_key_value_heads
    slow = torch.nonzero(angles <= _SLOW).flatten()
    compared = torch.cat([slow, slow + pairs])
    said = _orthonormal(keys * width, spoken, config.hidden_size)
    for key in range(keys):
        first = key * (config.num_attention_heads // keys) * width
        chosen = (torch.arange(len(compared)) + key * len(compared)) % len(note)
        attention.q_proj.weight[first : first + width] = 0
        attention.q_proj.weight[first + compared] = _MATCH_GAIN * note[chosen]
        attention.k_proj.weight[key * width : (key + 1) * width] = 0
        attention.k_proj.weight[key * width + compared, spoken + chosen] = _MATCH_GAIN
        own = said[key * width : (key + 1) * width]
        attention.v_proj.weight[key * width : (key + 1) * width] = own
        attention.o_proj.weight[:, first : first + width] = _COPY_GAIN * _DEVIATION * own.T


def _angles(model: LlamaForCausalLM) -> Tensor:
    """Radians that each pair of a head's components, (i, i + width / 2), turns a position."""
    config: Any = model.config
    theta, pairs = float(config.rope_parameters["rope_theta"]), config.head_dim // 2
    return torch.exp(-math.log(theta) * torch.arange(pairs) / pairs)


def _orthonormal(rows: int, spoken: int, hidden: int) -> Tensor:
    """Random orthonormal rows [rows, hidden] that read the embeddings' own components alone."""
    square = torch.linalg.qr(torch.randn(spoken - 1, spoken - 1))[0]
    found = torch.zeros(rows, hidden)
    found[:, 1:spoken] = square[:rows]
    return found
