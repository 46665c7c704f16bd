"""A head that can already copy: part of its attention begins as an induction circuit instead of as the target's.

For targets whose layers 0 and 1 began as such a circuit themselves (`train/demo/induction.py`). There, what enters
layer 1 holds the token at hand and notes of those before it, so the head's lowest tap has to be 1. Pair t has the notes
of tokens up to t in its tap, and token t + 1 beside it. The head attends to pairs whose tap has just read the tokens at
hand, and says the token beside it. A step that drafts notes the token that it was fed.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.rope import frequencies
from aerie.train.heads.head import Head

_PLACES = 3
"""Tokens that are compared."""
_POSITION_GAIN = 2.0
_MATCH_GAIN = 3.0
_MATCH_DECAY = 0.8
"""How much less a token counts in a match for each place back."""
_COPY_GAIN = 2.5
"""How loud what follows is, beside a fused state whose components are near 1."""
_NOTE_GAIN = 2.0
"""How loud a step notes its token: beside the copy it is then as loud as in a fused state."""
_FAST = 0.1
_SLOW = 0.01
"""Radians a position: components that rotate as fast tell positions apart; those that rotate no faster compare tokens
over some hundred positions."""


@torch.no_grad()
def induce(head: Head, target: Mapping[str, Tensor], *, size: int, spoken: int) -> None:
    """Writes the circuit over parts of a head that borrowed the rest.

    `target` holds the embedding and layer 0's attention under their checkpoint names; the notes of a token have `size`
    components each, from component `spoken` on. Raises ConfigError if the head's shape has no room for the circuit.
    """
    shape = head.shape
    if shape.boundaries[0] != 1 or not shape.tap_norms:
        raise ConfigError(
            "a head that begins by copying reads tap 1 through a norm (features.taps, train.tap_norms)",
            param="train.start",
        )
    if shape.group < 2 or shape.kv_heads < 2 or shape.head_dim < 2 * size:
        found = f"{shape.heads} heads, {shape.kv_heads} keys of {shape.head_dim}"
        raise ConfigError(
            f"a head that begins by copying has two heads to a key, and room for {2 * size} in each; here are {found}",
            param="train.start",
        )
    gain = target["model.layers.0.input_layernorm.weight"]
    code = target["model.layers.0.self_attn.v_proj.weight"][:size] * gain  # [size, hidden] reads a token from its row
    noted = target["model.layers.0.self_attn.o_proj.weight"][spoken : spoken + size, :size].diag().mean()
    loudness = target["model.embed_tokens.weight"].pow(2).mean().sqrt()
    _fuse(head, code, float(loudness / noted), size=size, spoken=spoken)
    _attend(head, code, size=size, spoken=spoken)


def _fuse(head: Head, code: Tensor, level: float, *, size: int, spoken: int) -> None:
    """The fused state's notes: the token at hand, read by `code`, and the tap's own notes as loud as that (`level`)."""
    rows = head.fc.weight[spoken : spoken + _PLACES * size]  # a view
    rows.zero_()
    rows[:size, : head.shape.hidden] = code
    before = torch.arange((_PLACES - 1) * size)
    rows[size + before, spoken + before] = level
    head.midlayer.hidden_norm.weight[spoken : spoken + _PLACES * size] = 1


def _attend(head: Head, code: Tensor, *, size: int, spoken: int) -> None:
    """Of each key that is taken, one query attends to where the tokens at hand came before, one to its own pair.

    All keys but the last are taken, at least two. The first one's value holds the token of the pair and the last
    taken one's its newer notes; what is left of the values holds other components of the pair's embedding.
    """
    shape, attention, inputs = head.shape, head.midlayer.self_attn, head.midlayer.input_layernorm
    hidden, width = shape.hidden, shape.head_dim
    taken = max(2, shape.kv_heads - 1)
    angles = frequencies(shape.rope, width)
    inputs.weight.fill_(1)
    said = _basis(
        code, taken * width - 2 * size, spoken
    )  # [values that hold embeddings, hidden]; the first are `code`'s
    notes = torch.zeros(2 * size, hidden)
    copied = torch.cat([said[: width * (taken - 1)], notes, said[width * (taken - 1) :]])
    for key in range(taken):
        own = slice(key * width, (key + 1) * width)
        first = key * shape.group * width
        copying, noting = slice(first, first + width), slice(first + width, first + 2 * width)
        attention.k_proj.weight[own] = 0
        attention.q_proj.weight[first : noting.stop] = 0
        attention.o_proj.weight[:, first : first + shape.group * width] = 0
        _match(attention.q_proj.weight[copying], attention.k_proj.weight[own], angles, code, spoken)
        gains = _POSITION_GAIN * (angles >= _FAST)
        attention.k_proj.weight[own][: len(angles), 0] = gains
        attention.q_proj.weight[noting][: len(angles), 0] = gains
        attention.v_proj.weight[own] = 0
        attention.v_proj.weight[own][:, :hidden] = copied[own]
        attention.o_proj.weight[:, copying] = _COPY_GAIN * copied[own].T
    _note(head, code @ said[:size].T, taken, size=size, spoken=spoken)


def _match(queries: Tensor, keys: Tensor, angles: Tensor, code: Tensor, spoken: int) -> None:
    """A query's token and notes against a key's notes, which are one token older: [head_dim, 2 * hidden] each."""
    size, hidden = code.shape
    slow = torch.nonzero(angles <= _SLOW).flatten()
    compared = torch.cat([slow, slow + len(angles)])
    for place in range(_PLACES):
        mixed = torch.randn(len(compared), size) * _MATCH_DECAY**place * _MATCH_GAIN / size**0.5
        noted = hidden + spoken + place * size
        keys[compared, noted : noted + size] = mixed
        if place == 0:
            queries[compared, :hidden] += mixed @ code
        else:
            queries[compared, noted - size : noted] = mixed


def _note(head: Head, spelled: Tensor, taken: int, *, size: int, spoken: int) -> None:
    """Attention to the own pair replaces the newest note by the pair's token, and the one before by the newest.

    `spelled` [size, size] reads the token from the first value.
    """
    shape, attention = head.shape, head.midlayer.self_attn
    last, width = (taken - 1) * shape.head_dim, shape.head_dim
    newest, older = slice(spoken, spoken + size), slice(spoken + size, spoken + 2 * size)
    attention.v_proj.weight[last : last + 2 * size, shape.hidden + spoken : shape.hidden + older.stop] = torch.eye(
        2 * size
    )
    token, notes = width, ((taken - 1) * shape.group + 1) * width  # inputs of the output projection
    kept = torch.eye(size) * (1 + float(head.norm.weight.pow(2).mean().sqrt())) / 2  # of a step's state, beside 1
    output = attention.o_proj.weight
    output[newest, token : token + size] = _NOTE_GAIN * spelled
    output[newest, notes : notes + size] = -kept
    output[older, notes : notes + size] = _NOTE_GAIN * torch.eye(size)
    output[older, notes + size : notes + 2 * size] = -kept


def _basis(code: Tensor, rows: int, spoken: int) -> Tensor:
    """Orthonormal rows [rows, hidden]: the first ones span `code`, the others the embeddings' other components.

    Component 0, by which attention knows positions, belongs to none.
    """
    hidden = code.shape[1]
    more = torch.zeros(max(0, min(rows, spoken - 1) - len(code)), hidden)
    more[:, 1:spoken] = torch.randn(len(more), spoken - 1)
    found = torch.zeros(rows, hidden)
    square = torch.linalg.qr(torch.cat([code, more]).T)[0].T
    found[: len(square)] = square
    return found
