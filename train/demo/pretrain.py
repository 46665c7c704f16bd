"""Trains the target of demo pair 2 on generated tasks: first thin, then with all its layers.

A thin model learns to copy in half the time. When it is deepened its layers are spread out, and those between begin as
the identity, so that the loss goes on where it was. Resumes exactly from its checkpoints after a kill.
"""

import json
import random
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.chat import Chat, train_tokenizer
from aerie.train.demo.config import TaskTarget
from aerie.train.demo.induction import induce
from aerie.train.demo.judge import forced_rates
from aerie.train.demo.learning import learn
from aerie.train.demo.mix import Mix, draw
from aerie.train.demo.model import export, fresh_model
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.docstrings import paragraphs
from aerie.train.progress import say

_TOKENIZED = 1500
"""Exercises whose text the tokenizer is trained on."""
_DOCSTRING_WEIGHT = 3


def pretrain(run: TaskTarget, out: Path, *, seed: int) -> None:
    """Writes tokenizer and target to `out` in Hugging Face's layout, weights in bf16; checkpoints are in folders of
    it.
    """
    torch.set_num_threads(run.threads)
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(run, seed=seed)
    model = _deepened(run, tokenizer, out, seed)
    _learn(run, model, tokenizer, seed, out / "checkpoint", first=run.thin.steps, last=run.steps)
    export(model, tokenizer, out)


def build_tokenizer(run: TaskTarget, *, seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer of the run; equal settings give equal tokenizers."""
    texts = ["Answer, or call tools."] * _TOKENIZED
    for number in range(_TOKENIZED):
        exercise = draw(dict.fromkeys(run.shares, 1.0), Dice(random.Random(f"{seed} tokenizer {number}")))
        texts += [json.dumps(tool["function"]) for tool in exercise.tools]
        for message in exercise.messages:
            texts += [message["content"], message.get("reasoning_content", "")]
            texts += [json.dumps(call["function"]) for call in message.get("tool_calls", [])]
    texts += [text for pair in paragraphs().items() for text in pair] * _DOCSTRING_WEIGHT
    return train_tokenizer(texts, run.vocabulary)


def build(run: TaskTarget, tokenizer: PreTrainedTokenizerFast, layers: int) -> LlamaForCausalLM:
    """A fresh target of `layers` layers, in fp32, that can copy."""
    model = fresh_model(run.architecture.model_copy(update={"num_hidden_layers": layers}), tokenizer)
    induce(model)
    return model


def _deepened(run: TaskTarget, tokenizer: PreTrainedTokenizerFast, out: Path, seed: int) -> LlamaForCausalLM:
    """The target with all its layers, ready for the main part of the run; trains the thin one where that is to do."""
    if run.thin.steps == 0:
        return build(run, tokenizer, run.architecture.num_hidden_layers)
    model = fresh_model(run.architecture, tokenizer)
    if (out / "checkpoint").exists():
        return model
    thin = build(run, tokenizer, run.thin.layers)
    _learn(run, thin, tokenizer, seed, out / "thin", first=0, last=run.thin.steps)
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
    run: TaskTarget,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    folder: Path,
    *,
    first: int,
    last: int,
) -> None:
    chat = Chat(tokenizer)
    tokens, longest = run.tokens_per_batch, run.longest
    mix = Mix(chat, run.shares, tokens=tokens, longest=longest, grown=run.grown, seed=seed)

    def watch(done: int) -> None:
        if done % run.judged_every == 0:
            say(f"step {done} exact {json.dumps(forced_rates(model, chat, run.shares, seed=seed))}")

    learn(run, model, mix.ahead, folder, first=first, last=last, watch=watch)
