"""Trains the demo target, a small Llama, on questions about Python names answered by their docstrings.

Only answers carry loss: the model need not learn to ask. Muon updates matrices, AdamW the rest. The plateau of the
schedule lets a run be lengthened without changing the steps before its decay. Resumes from its checkpoint after a kill.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.optimization import checkpoint
from aerie.train.optimization.optimizers import divided
from aerie.train.optimization.schedule import set_rate, share
from aerie.train.recital.config import Architecture, Run, TargetRun
from aerie.train.recital.conversations import Batch, Renderer, epoch
from aerie.train.recital.docstrings import Entry, read
from aerie.train.recital.tokenizer import save_tokenizer, train_tokenizer

_LOG_EVERY = 50
_CLIP = 1.0


def pretrain(run: TargetRun) -> None:
    """Trains the tokenizer and the target and writes both to `run.out` in Hugging Face's layout, weights in bf16."""
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    entries = read(Path(run.corpus))
    tokenizer = build_tokenizer(run, entries)
    model = build(run, tokenizer)
    optimizers = divided(model, apart="embed")
    folder = Path(run.work) / "checkpoint"
    start = checkpoint.load(folder, model, optimizers)
    batches = _batches(run, entries, Renderer(tokenizer), skip=start)
    began, seen = time.monotonic(), torch.zeros(2)
    for step in range(start, run.steps):
        level = share(step, steps=run.steps, warmup=run.warmup, decay=run.decay)
        seen += train_step(run, level, model, optimizers, next(batches))
        if (step + 1) % _LOG_EVERY == 0:
            print(f"step {step + 1} loss {seen[0] / seen[1]:.4f} seconds {time.monotonic() - began:.0f}", flush=True)
            seen.zero_()
        if (step + 1) % run.checkpoint_every == 0:
            checkpoint.save(folder, step + 1, model, optimizers)
    export(model, tokenizer, Path(run.out))


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes weights in bf16, configuration, tokenizer and template; the model stays in bf16."""
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)


def build_tokenizer(run: TargetRun, entries: list[Entry]) -> PreTrainedTokenizerFast:
    """The run's tokenizer; equal texts give equal tokenizers."""
    return train_tokenizer((text for entry in entries for text in (entry.name, entry.text)), run.vocabulary)


def build(run: TargetRun, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A fresh target, in fp32."""
    return fresh_model(run.architecture, tokenizer)


def train_step(run: Run, level: float, model: LlamaForCausalLM, optimizers: list[Optimizer], batch: Batch) -> Tensor:
    """One update at `level`, a share of the full rates; returns [summed loss, answer tokens]."""
    for optimizer, rate in zip(optimizers, (run.matrix_rate, run.vector_rate), strict=True):
        set_rate(optimizer, rate * level)
    loss, count = _loss(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.tensor([loss.item() * count, count])


def _loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, int]:
    """Mean cross-entropy over answer tokens; rows are right-padded, so causal attention needs no mask."""
    hidden = model.model(batch.ids[:, :-1], use_cache=False).last_hidden_state
    answer = batch.answer[:, 1:]
    return cross_entropy(model.lm_head(hidden[answer]), batch.ids[:, 1:][answer]), int(answer.sum())


def fresh_model(architecture: Architecture, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of this shape with the tokenizer's ids, in fp32."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **architecture.model_dump(),
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:  # residual branches that start at zero let a deep narrow stack learn at once
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def _batches(run: TargetRun, entries: list[Entry], renderer: Renderer, *, skip: int) -> Iterator[Batch]:
    """Batches without end; the order of each epoch depends only on the seed and the epoch's number."""
    number = 0
    while True:
        rng = random.Random(f"{run.seed} {number}")
        for batch in epoch(entries, renderer, tokens=run.tokens_per_batch, longest=run.longest, rng=rng):
            skip -= 1
            if skip < 0:
                yield batch
        number += 1
