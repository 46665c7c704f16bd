"""A target's model: fresh, and exported in Hugging Face's layout."""

import os
import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.config import Architecture


def fresh_model(architecture: Architecture, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of this shape with the tokenizer's ids, in fp32."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **architecture.model_dump(exclude_none=True),
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:  # residual branches that start at zero let a deep narrow stack learn at once
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes weights in bf16, configuration, tokenizer and template; the model stays so, on the CPU."""
    nn.Module.to(model, "cpu", torch.bfloat16)
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes the tokenizer's files to `out`, each whole or not at all: a run that resumes reads them."""
    fresh = out / "tokenizer.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    tokenizer.save_pretrained(fresh)
    for file in sorted(fresh.iterdir()):
        os.replace(file, out / file.name)
    fresh.rmdir()
