"""Initializes a head: its draft vocabulary, and weights that already resemble the target's last layer."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.heads.borrow import borrow
from aerie.train.heads.features import FrozenTarget
from aerie.train.heads.head import Head, HeadShape, default_boundaries
from aerie.train.heads.vocabulary import DraftVocabulary, draft_vocabulary
from aerie.train.recital.config import EagleRun, HeadRun
from aerie.train.recital.docstrings import Entry


def started_vocabulary(run: HeadRun, entries: list[Entry], tokenizer: PreTrainedTokenizerFast) -> DraftVocabulary:
    """Chosen by the frequency of ids in the corpus's answers; special tokens are always in, as they close answers."""
    end = tokenizer.eos_token_id
    answers = ([*tokenizer.encode(entry.text, add_special_tokens=False), end] for entry in entries)
    return draft_vocabulary(answers, kept=run.draft_vocabulary, size=len(tokenizer), always=tokenizer.all_special_ids)


def started_head(run: EagleRun, folder: Path, vocabulary: DraftVocabulary) -> tuple[Head, FrozenTarget]:
    """An untrained head shaped for the target in `folder`, and that target. Equal arguments give equal weights."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(run.seed)
    shape = _shape(run, model)
    head = Head(shape)
    borrow(head, model.state_dict(), model.config.num_hidden_layers, vocabulary)
    return head, FrozenTarget(model, shape.boundaries)


def _shape(run: EagleRun, model: LlamaForCausalLM) -> HeadShape:
    config: Any = model.config
    return HeadShape(
        hidden=config.hidden_size,
        intermediate=run.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        draft_vocabulary=run.draft_vocabulary,
        boundaries=default_boundaries(config.num_hidden_layers),
        eps=config.rms_norm_eps,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        max_positions=config.max_position_embeddings,
        tap_norms=run.tap_norms,
        norm_output=run.norm_output,
    )
