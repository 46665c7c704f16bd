"""A fresh model with the circuit copies what repeats; without it, it does not."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from aerie.train.demo.config import Architecture
from aerie.train.demo.induction import induce
from aerie.train.demo.model import fresh_model


@pytest.mark.parametrize("circuit", [True, False])
def test_an_untrained_model_goes_on_with_what_it_has_read_before(words: PreTrainedTokenizerFast, circuit: bool) -> None:
    torch.manual_seed(0)
    architecture = Architecture(
        hidden_size=256,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = fresh_model(architecture, words)
    if circuit:
        induce(model)
    said = torch.randperm(len(words))[:60]
    with torch.inference_mode():
        likeliest = model(torch.cat([said, said])[None]).logits[0, 60:-1].argmax(-1)
    right = float((likeliest == said[1:]).float().mean())
    assert right > 0.9 if circuit else right < 0.1
