"""Taps are the residuals that enter the layers named, and padding leaves them alone."""

import pytest
import torch
from transformers import LlamaForCausalLM

from aerie.train.heads.features import FeatureStore, FrozenTarget


def test_taps_are_what_enters_the_layers(target: LlamaForCausalLM) -> None:
    seen: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(target.model.layers):
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, index=index: seen.update({index: (args or (kwargs["hidden_states"],))[0].clone()}),
            with_kwargs=True,
        )
    ids = torch.randint(400, (2, 9))
    features = FrozenTarget(target, (2, 4, 5)).features(ids)
    assert torch.equal(features.taps, torch.cat([seen[2], seen[4], seen[5]], -1))
    assert torch.equal(features.logits, target(ids).logits)


def test_padding_on_the_right_is_never_seen(target: LlamaForCausalLM) -> None:
    frozen, ids = FrozenTarget(target, (2, 4, 5)), torch.randint(400, (1, 12))
    whole, short = frozen.features(ids), frozen.features(ids[:, :7])
    assert torch.allclose(whole.taps[:, :7], short.taps, atol=1e-5)


def test_a_boundary_beyond_the_layers_is_refused(target: LlamaForCausalLM) -> None:
    with pytest.raises(ValueError, match="8 layers"):
        FrozenTarget(target, (2, 4, 8))


def test_kept_features_equal_those_of_the_first_use(target: LlamaForCausalLM) -> None:
    frozen, ids = FrozenTarget(target, (2, 4, 5)), torch.randint(400, (2, 9))
    store = FeatureStore(frozen)
    first, again = store.features("a", ids), store.features("a", torch.zeros(1, 1, dtype=torch.long))
    assert torch.equal(first.taps, again.taps) and torch.equal(first.logits, again.logits)
    exact = frozen.features(ids)
    assert (first.taps - exact.taps).abs().max() <= exact.taps.abs().max() / 128
    assert not torch.equal(store.features("b", ids.flip(1)).taps, first.taps)
