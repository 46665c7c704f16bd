"""A fresh head with the circuit drafts what repeats; one that only borrowed does not, nor does one of a deaf target."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import Rope
from aerie.train.demo import induction as circuit
from aerie.train.heads.borrow import borrow
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.induction import induce
from aerie.train.heads.unroll import unroll

_WORDS = 300
_SAID = 60
_LAYERS = 3


def _target(*, copies: bool) -> LlamaForCausalLM:
    """Untrained, of the shape that the shipped tasks' target has but for its layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_WORDS,
        hidden_size=256,
        intermediate_size=16,
        num_hidden_layers=_LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    if copies:
        circuit.induce(model)
    return model


def _head(target: LlamaForCausalLM, *, copying: bool, boundaries: tuple[int, ...] = (1, 2)) -> Head:
    torch.manual_seed(1)
    head = Head(HeadShape(256, 16, 8, 4, 64, _WORDS, _WORDS, boundaries, 1e-6, Rope(), 512, True, True))
    weights = target.state_dict()
    borrow(head, weights, _LAYERS, DraftVocabulary(torch.arange(_WORDS), _WORDS, 1.0))
    if copying:
        size, spoken = circuit.room(256, 8)
        induce(head, weights, size=size, spoken=spoken)
    return head


@torch.no_grad()
def _right(target: LlamaForCausalLM, head: Head, steps: int = 4) -> list[float]:
    """The share of right drafts at each depth, of words that are said a second time."""
    said = torch.randperm(_WORDS, generator=torch.Generator().manual_seed(2))[:_SAID]
    ids = torch.cat([said, said])[None]
    states = target.model(ids, output_hidden_states=True).hidden_states
    taps = torch.cat([states[boundary] for boundary in head.shape.boundaries], -1)
    found = []
    for step, output in enumerate(unroll(head, target.model.embed_tokens.weight, ids, taps, steps)):
        columns = torch.arange(_SAID + 3, 2 * _SAID - 2 - step)
        wanted: Tensor = ids[0, columns + 2 + step]
        found.append(float((head.logits(output[0, columns]).argmax(-1) == wanted).float().mean()))
    return found


def test_a_fresh_head_drafts_what_it_has_read_before() -> None:
    target = _target(copies=True)
    copying, borrowed = (_right(target, _head(target, copying=one)) for one in (True, False))
    assert min(copying) > 0.8 and max(borrowed) < 0.3, (copying, borrowed)


def test_a_target_that_notes_nothing_is_not_copied_from() -> None:
    target = _target(copies=False)
    assert max(_right(target, _head(target, copying=True))) < 0.5


def test_a_head_without_room_for_the_circuit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tap 1"):
        _head(_target(copies=True), copying=True, boundaries=(0, 2))
