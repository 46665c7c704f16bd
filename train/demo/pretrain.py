"""Trains the target of demo pair 2 on generated tasks: first thin, then with all its layers.

A thin model learns to copy in half the time. When it is deepened its layers are spread out, and those between begin as
the identity, so that the loss goes on where it was. Resumes exactly from its checkpoints after a kill.
"""

import json
import random
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.chat import Chat, train_tokenizer
from aerie.train.demo.config import TaskRun
from aerie.train.demo.induction import induce
from aerie.train.demo.judge import forced_rates
from aerie.train.demo.mix import Mix, draw
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.docstrings import paragraphs
from aerie.train.optimization import checkpoint
from aerie.train.optimization.optimizers import divided
from aerie.train.optimization.schedule import share
from aerie.train.recital.pretrain import export, fresh_model, train_step

_LOG_EVERY = 25
_TOKENIZED = 1500
"""Exercises whose text the tokenizer is trained on."""
_DOCSTRING_WEIGHT = 3


def pretrain(run: TaskRun) -> None:
    """Trains tokenizer and target and writes both to `run.out` in Hugging Face's layout, weights in bf16."""
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    tokenizer = build_tokenizer(run)
    model = _deepened(run, tokenizer)
    _learn(run, model, tokenizer, Path(run.work) / "checkpoint", first=run.thin.steps, last=run.steps)
    export(model, tokenizer, Path(run.out))


def build_tokenizer(run: TaskRun) -> PreTrainedTokenizerFast:
    """The tokenizer of the run; equal settings give equal tokenizers."""
    texts = ["Answer, or call tools."] * _TOKENIZED
    for number in range(_TOKENIZED):
        exercise = draw(dict.fromkeys(run.shares, 1.0), Dice(random.Random(f"{run.seed} tokenizer {number}")))
        texts += [json.dumps(tool["function"]) for tool in exercise.tools]
        for message in exercise.messages:
            texts += [message["content"], message.get("reasoning_content", "")]
            texts += [json.dumps(call["function"]) for call in message.get("tool_calls", [])]
    texts += [text for pair in paragraphs().items() for text in pair] * _DOCSTRING_WEIGHT
    return train_tokenizer(texts, run.vocabulary)


def build(run: TaskRun, tokenizer: PreTrainedTokenizerFast, layers: int) -> LlamaForCausalLM:
    """A fresh target of `layers` layers, in fp32, that can copy."""
    model = fresh_model(run.architecture.model_copy(update={"num_hidden_layers": layers}), tokenizer)
    induce(model)
    return model


def _deepened(run: TaskRun, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The target with all its layers, ready for the main part of the run; trains the thin one where that is to do."""
    if run.thin.steps == 0:
        return build(run, tokenizer, run.architecture.num_hidden_layers)
    model = fresh_model(run.architecture, tokenizer)
    if (Path(run.work) / "checkpoint").exists():
        return model
    thin = build(run, tokenizer, run.thin.layers)
    _learn(run, thin, tokenizer, Path(run.work) / "thin", first=0, last=run.thin.steps)
    deepen(thin, model)
    return model


@torch.no_grad()
def deepen(thin: LlamaForCausalLM, model: LlamaForCausalLM) -> None:
    """Copies `thin` into `model`, its layers spread out; the layers between stay as they were, fresh: the identity."""
    spread = len(model.model.layers) / len(thin.model.layers)
    for index, layer in enumerate(thin.model.layers):
        model.model.layers[int(index * spread)].load_state_dict(layer.state_dict())
    model.model.embed_tokens.load_state_dict(thin.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(thin.model.norm.state_dict())


def _learn(
    run: TaskRun, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, *, first: int, last: int
) -> None:
    """The steps from `first`, or from the checkpoint in `folder`, to `last`; the rate warms up from `first`."""
    optimizers = divided(model, apart="embed")
    start = checkpoint.load(folder, model, optimizers) or first
    chat = Chat(tokenizer)
    batches = _mix(run, chat).ahead(start)
    began, seen = time.monotonic(), torch.zeros(2)
    for step in range(start, last):
        level = share(step, steps=run.steps, warmup=run.warmup, decay=run.decay)
        level = min(level, (step - first + 1) / run.warmup)
        seen += train_step(run, level, model, optimizers, next(batches))
        done = step + 1
        if done % _LOG_EVERY == 0:
            print(f"step {done} loss {seen[0] / seen[1]:.4f} seconds {time.monotonic() - began:.0f}", flush=True)
            seen.zero_()
        if done % run.checkpoint_every == 0 or done == last:
            checkpoint.save(folder, done, model, optimizers)
        if done % run.judged_every == 0:
            print(f"step {done} exact {json.dumps(forced_rates(model, chat, run.shares, seed=run.seed))}", flush=True)


def _mix(run: TaskRun, chat: Chat) -> Mix:
    return Mix(
        chat,
        run.shares,
        tokens=run.tokens_per_batch,
        longest=run.longest,
        grown=run.grown,
        seed=run.seed,
    )
