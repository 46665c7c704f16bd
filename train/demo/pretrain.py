"""Trains a target on generated tasks: first thin, then with all its layers, at the end on longer exercises.

A thin model learns to copy in half the time. When it is deepened its layers are spread out, and those between begin as
the identity, so that the loss goes on where it was. Resumes exactly from its checkpoints after a kill.
"""

import json
import random
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo import induction
from aerie.train.demo.chat import Chat, kept_tokenizer, train_tokenizer
from aerie.train.demo.config import Architecture, LongerEnd, Pretraining
from aerie.train.demo.judge import forced_rates
from aerie.train.demo.learning import learn
from aerie.train.demo.lessons import Lessons
from aerie.train.demo.mix import Mix, draw
from aerie.train.demo.model import export, fresh_model, save_tokenizer
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.docstrings import paragraphs

_TOKENIZED = 1500
"""Exercises whose text the tokenizer is trained on."""
_DOCSTRING_WEIGHT = 3


def pretrain(run: Pretraining, out: Path, *, seed: int) -> None:
    """Writes tokenizer and target to `out` in Hugging Face's layout, weights in bf16; checkpoints are in folders of
    it.
    """
    torch.set_num_threads(run.threads)
    torch.manual_seed(seed)
    tokenizer = _tokenizer(run, out, seed)
    if run.start_from:
        model = fresh_model(run.architecture, tokenizer)
        finished = LlamaForCausalLM.from_pretrained(run.start_from, dtype=torch.float32)
        model.load_state_dict(finished.state_dict())
    else:
        model = _deepened(run, tokenizer, out, seed)
        _learn(run, model, tokenizer, seed, out / "checkpoint", first=run.thin.steps, last=run.steps)
    if end := run.longer:
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        part = lengthened(run, end)
        _learn(part, model, tokenizer, seed, out / "longer", first=run.steps, last=part.steps, size=end.size)
        _average(model, before, end.share)
    export(model, tokenizer, out)


@torch.no_grad()
def _average(model: LlamaForCausalLM, before: dict[str, Tensor], share: float) -> None:
    """Of the model's weights this share stays, the rest become those of `before`."""
    for name, weight in model.state_dict().items():
        weight.lerp_(before[name].to(weight.device), 1.0 - share)


def _tokenizer(run: Pretraining, out: Path, seed: int) -> PreTrainedTokenizerFast:
    """The one that a killed run left in `out`, whose ids its checkpoints are of; or that of the target which the run
    starts from, or a fresh one, left there.
    """
    if (out / "tokenizer.json").exists():
        return kept_tokenizer(out)
    tokenizer = kept_tokenizer(Path(run.start_from)) if run.start_from else build_tokenizer(run, seed=seed)
    save_tokenizer(tokenizer, out)
    return tokenizer


def build_tokenizer(run: Pretraining, *, seed: int) -> PreTrainedTokenizerFast:
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


def build(architecture: Architecture, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A fresh target in fp32 that can copy."""
    model = fresh_model(architecture, tokenizer)
    induction.induce(model)
    return model


def _deepened(run: Pretraining, tokenizer: PreTrainedTokenizerFast, out: Path, seed: int) -> LlamaForCausalLM:
    """The target with all its layers, ready for the main part of the run; trains the thin one where that is to do."""
    if run.thin.steps == 0:
        return build(run.architecture, tokenizer)
    model = fresh_model(run.architecture, tokenizer)
    if (out / "checkpoint").exists():
        return model
    thin = build(thinned(run), tokenizer)
    _learn(run, thin, tokenizer, seed, out / "thin", first=0, last=run.thin.steps)
    deepen(thin, model)
    return model


def lengthened(run: Pretraining, end: LongerEnd) -> Pretraining:
    """The run with what its longer end has of its own; steps are counted on."""
    steps = run.steps + end.steps
    return run.model_copy(
        update=end.model_dump(exclude={"size", "share"}) | {"steps": steps, "decay": end.steps / steps}
    )


def thinned(run: Pretraining) -> Architecture:
    """The shape that a run begins with."""
    thin = {"num_hidden_layers": run.thin.layers, "intermediate_size": run.thin.intermediate_size}
    return run.architecture.model_copy(update=thin)


@torch.no_grad()
def deepen(thin: LlamaForCausalLM, model: LlamaForCausalLM) -> None:
    """Copies `thin` into `model`, its layers spread out; the layers between stay as they were, fresh: the identity.

    Neurons that a layer has beyond the thin one's stay fresh, too: what they write is zero.
    """
    spread = len(model.model.layers) / len(thin.model.layers)
    for index, layer in enumerate(thin.model.layers):
        wide = dict(model.model.layers[int(index * spread)].named_parameters())
        for name, weight in layer.named_parameters():
            wide[name][tuple(map(slice, weight.shape))] = weight
    model.model.embed_tokens.load_state_dict(thin.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(thin.model.norm.state_dict())


def _learn(
    run: Pretraining,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    folder: Path,
    *,
    first: int,
    last: int,
    size: float = 1.0,
) -> None:
    chat = Chat(tokenizer)
    lessons = Lessons(
        run.shares,
        folder.parent / "rates",
        every=run.judged_every,
        judge=lambda: forced_rates(model, chat, run.shares, seed=seed, largest=size),
        first=first,
    )
    tokens, longest = run.tokens_per_batch, run.longest
    mix = Mix(chat, lessons.shares, tokens=tokens, longest=longest, grown=run.grown, seed=seed, size=size)
    slower = dict.fromkeys(_circuit(run, model), run.circuit_rate)
    learn(run, model, mix.ahead, folder, first=first, last=last, slower=slower, watch=lessons.watch)


def _circuit(run: Pretraining, model: LlamaForCausalLM) -> list[str]:
    """Starts of the names of the weights that began as the circuit, wherever their layers have come to stand."""
    spread = len(model.model.layers) / (run.thin.layers if run.thin.steps else len(model.model.layers))
    return [f"model.layers.{int(index * spread)}.self_attn." for index in range(induction.LAYERS)]
