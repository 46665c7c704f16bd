"""Asks the target about sampled entries and counts the docstrings that it recites, the quality measure of the demo."""

import random
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.batches import Sample
from aerie.train.demo.corpus.conversations import Renderer
from aerie.train.demo.corpus.docstrings import Entry, read
from aerie.train.demo.corpus.questions import HELD_OUT, TAUGHT, ask
from aerie.train.demo.generation import complete


@dataclass(frozen=True, slots=True)
class Recital:
    """Of `asked` entries, the shares whose first line, and whose whole text, is exactly right."""

    asked: int
    first_line: float
    whole: float


def recite(corpus: Path, folder: Path, *, entries: int, seed: int) -> dict[str, dict[str, float]]:
    """Greedy answers of the target in `folder` to the same sampled entries, scored in taught and held-out phrasings."""
    pinned = read(corpus)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    chosen = random.Random(seed).sample(pinned, min(entries, len(pinned)))
    return {
        kind: asdict(_recital(model, tokenizer, pinned, chosen, phrasings, seed))
        for kind, phrasings in (("taught", TAUGHT), ("held_out", HELD_OUT))
    }


def _recital(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pinned: list[Entry],
    chosen: list[Entry],
    phrasings: tuple[str, ...],
    seed: int,
) -> Recital:
    rng = random.Random(seed)
    questions = [(entry, rng.choice(phrasings)) for entry in chosen]
    known: dict[str, set[str]] = {}  # a name may have several docstrings; each of them is a right answer
    for entry in pinned:
        known.setdefault(entry.name, set()).add(entry.text)
    first = whole = 0
    for entry, sample in zip(chosen, answer(model, tokenizer, questions, temperature=0.0, seed=seed), strict=True):
        said = str(tokenizer.decode(sample.reply, skip_special_tokens=True))
        first += _first_line(said) in {_first_line(text) for text in known[entry.name]}
        whole += said in known[entry.name]
    return Recital(len(chosen), first / len(chosen), whole / len(chosen))


def answer(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[tuple[Entry, str]],
    *,
    temperature: float,
    seed: int,
) -> list[Sample]:
    """One conversation per (entry, phrasing), answered by the model; equal arguments give equal answers."""
    renderer = Renderer(tokenizer)
    prompts = [renderer.prompt(ask(*question)) for question in questions]
    lengths = [len(renderer.encode(entry.text)) for entry, _ in questions]
    return complete(model, prompts, lengths, temperature=temperature, seed=seed)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
