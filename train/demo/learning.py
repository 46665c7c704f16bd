"""The loop that trains a target: Muon for matrices, AdamW for the rest, checkpoints from which it resumes exactly.

Only answers carry loss: the model need not learn to ask. The plateau of the schedule lets a run be lengthened without
changing the steps before its decay.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

from aerie.train.demo import attention
from aerie.train.demo.batches import Batch
from aerie.train.demo.config import Pretraining
from aerie.train.optimization import checkpoint
from aerie.train.optimization.optimizers import divided
from aerie.train.optimization.precision import dtype_of, slow_here
from aerie.train.optimization.schedule import set_rate, share
from aerie.train.progress import say

_LOG_EVERY = 25
_CLIP = 1.0


def learn(
    run: Pretraining,
    model: LlamaForCausalLM,
    ahead: Callable[[int], Iterator[Batch]],
    folder: Path,
    *,
    first: int,
    last: int,
    slower: Mapping[str, float],
    watch: Callable[[int], None],
) -> None:
    """The steps from `first`, or from the checkpoint in `folder`, to `last`; the rates warm up from `first`.

    `ahead(step)` gives the batches from a step on, without end. Matrices of `slower`, by the start of their names,
    learn at that share of the rate. `watch` is called after each step with their number, before a checkpoint of it is
    written.
    """
    device = torch.device(run.device)
    nn.Module.to(model, device)
    optimizers = divided(model, apart="embed", slower=slower, precision=dtype_of(run.precision))
    if warning := slow_here(run.precision, device, "pretrain.precision"):
        say(warning)
    if run.precision == "bfloat16" and device.type == "cpu":
        model.set_attn_implementation(attention.NAME)
    start = checkpoint.load(folder, model, optimizers) or first
    batches = ahead(start)
    began, seen = time.monotonic(), torch.zeros(2)
    for step in range(start, last):
        level = share(step, steps=run.steps, warmup=run.warmup, decay=run.decay)
        level = min(level, (step - first + 1) / run.warmup)
        seen += _update(run, level, model, optimizers, next(batches))
        done = step + 1
        if done % _LOG_EVERY == 0:
            say(f"step {done} loss {seen[0] / seen[1]:.4f} seconds {time.monotonic() - began:.0f}")
            seen.zero_()
        watch(done)
        if done % run.checkpoint_every == 0 or done == last:
            checkpoint.save(folder, done, model, optimizers)


def _update(
    run: Pretraining, level: float, model: LlamaForCausalLM, optimizers: list[Optimizer], batch: Batch
) -> Tensor:
    """One update at `level`, a share of the full rates; returns [summed loss, answer tokens]."""
    for optimizer, rate in zip(optimizers, (run.matrix_rate, run.vector_rate), strict=True):
        set_rate(optimizer, rate * level)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=run.precision == "bfloat16"):
        loss, count = _loss(model, batch.to(model.device))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.tensor([loss.item() * count, count])


def _loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, int]:
    """Mean cross-entropy over answer tokens; rows are right-padded, so causal attention needs no mask."""
    hidden = model.model(batch.ids, use_cache=False).last_hidden_state[:, :-1]
    answer = batch.answer[:, 1:]
    return cross_entropy(model.lm_head(hidden[answer]), batch.ids[:, 1:][answer]), int(answer.sum())
