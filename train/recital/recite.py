"""Asks the target about sampled entries and counts the docstrings that it recites, the quality measure of the demo."""

import random
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.recital.answers import answer
from aerie.train.recital.conversations import Sample
from aerie.train.recital.docstrings import Entry, read
from aerie.train.recital.questions import HELD_OUT, TAUGHT


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
        said = _text(tokenizer, sample)
        first += _first_line(said) in {_first_line(text) for text in known[entry.name]}
        whole += said in known[entry.name]
    return Recital(len(chosen), first / len(chosen), whole / len(chosen))


def _text(tokenizer: PreTrainedTokenizerFast, sample: Sample) -> str:
    ids = [token for token, is_answer in zip(sample.ids, sample.answer, strict=True) if is_answer]
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
