"""The proxy pair's target: it learns docstrings (prose) and sources of functions (code), and answers about both.

A name with `()` asks for the source. Every head learns from the target's answers at T=1 to taught phrasings about names
that are not held out. A smaller amount is a prefix of a larger one, and a larger one is about more names. Sources are
read from the running Python, so their text differs between releases: results name the release. Everything is made once
and kept in the proxy's work folder; a kill loses no more than one chunk.
"""

import importlib
import inspect
import random
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.batches import Sample
from aerie.train.demo.corpus.conversations import Renderer
from aerie.train.demo.corpus.docstrings import Entry, read, write
from aerie.train.demo.corpus.pretrain import pretrain
from aerie.train.demo.corpus.questions import HELD_OUT, TAUGHT, ask
from aerie.train.demo.corpus.recite import answer
from aerie.train.demo.generation import load_samples, save_samples
from aerie.train.experiments.config import Proxy

CODE, PROSE = "code", "prose"
_CHUNK = 256
"""Answers that are generated and saved together."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The finished target, with the names of each split."""

    folder: Path
    tokenizer: PreTrainedTokenizerFast
    taught: dict[str, list[Entry]]
    """By domain: names that heads may learn from."""
    held_out: dict[str, list[Entry]]
    layers: int
    """The target's layers."""


def prepare(proxy: Proxy) -> Pair:
    """Trains the target if it is missing."""
    work = Path(proxy.work)
    corpus = work / "corpus.jsonl.gz"
    if not corpus.exists():
        write(corpus, collect(proxy))
    entries = read(corpus)
    run, folder = proxy.pretrain.model_copy(update={"corpus": str(corpus)}), work / "target"
    if not (folder / "model.safetensors").exists():
        pretrain(run, folder, seed=proxy.seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    taught: dict[str, list[Entry]] = {PROSE: [], CODE: []}
    held_out: dict[str, list[Entry]] = {PROSE: [], CODE: []}
    for entry in entries:
        kept = random.Random(f"held out {entry.name}").random() < proxy.held_out
        (held_out if kept else taught)[CODE if entry.kind == CODE else PROSE].append(entry)
    return Pair(folder, tokenizer, taught, held_out, run.architecture.num_hidden_layers)


def collect(proxy: Proxy) -> list[Entry]:
    """Docstrings spread over the corpus, and as many sources as are wanted and found."""
    pinned = read(Path(proxy.pretrain.corpus))
    short = [entry for entry in pinned if len(entry.text) <= proxy.longest_text]
    prose = short[:: max(1, len(short) // proxy.entries)][: proxy.entries]
    code: list[Entry] = []
    for entry in random.Random("sources").sample(pinned, len(pinned)):
        if len(code) == proxy.sources:
            break
        source = _source(entry) if entry.kind == "function" else None
        if source is not None and 40 <= len(source) <= proxy.longest_text:
            code.append(Entry(f"{entry.name}()", CODE, source))
    return prose + code


def _source(entry: Entry) -> str | None:
    """The source of a standard library function, without its docstring; None where Python has none to show."""
    place, _, name = entry.name.rpartition(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from modules that Python will drop soon
            function = getattr(importlib.import_module(place), name)
        text = inspect.cleandoc(inspect.getsource(function))
    except (ImportError, AttributeError, TypeError, OSError):
        return None
    doc = inspect.getdoc(function)
    return text if doc is None or '"""' not in text else text.split('"""')[0] + text.split('"""')[-1].lstrip("\n")


def answers(proxy: Proxy, pair: Pair, domain: str, count: int) -> list[Sample]:
    """The first `count` answers of the domain; missing ones are generated."""
    found: list[Sample] = []
    while len(found) < count:
        number = len(found) // _CHUNK
        path = Path(proxy.work) / "answers" / f"{domain}-{number}-of-{proxy.parts}.safetensors"
        if not path.exists():
            model = LlamaForCausalLM.from_pretrained(pair.folder, dtype=torch.float32).eval()
            asked = _questions(_part(pair.taught[domain], number, proxy.parts), domain, number)
            save_samples(answer(model, pair.tokenizer, asked, temperature=1.0, seed=number), path)
        found += load_samples(path)
    return found[:count]


def held_out_prompts(proxy: Proxy, pair: Pair) -> dict[str, list[list[int]]]:
    """Ids of the questions that heads are measured on, by domain: new names in new phrasings."""
    renderer, prompts = Renderer(pair.tokenizer), {}
    for domain, entries in pair.held_out.items():
        rng = random.Random(f"measured {domain}")
        chosen = rng.sample(entries, min(proxy.questions, len(entries)))
        prompts[domain] = [renderer.prompt(ask(entry, rng.choice(HELD_OUT))) for entry in chosen]
    return prompts


def _part(entries: list[Entry], number: int, parts: int) -> list[Entry]:
    """The names that chunk `number` is about; where there are fewer names than parts, all of them."""
    spread = random.Random("parts").sample(entries, len(entries))
    return spread[number % parts :: parts] or entries


def _questions(entries: list[Entry], domain: str, number: int) -> list[tuple[Entry, str]]:
    rng = random.Random(f"{domain} {number}")
    return [(rng.choice(entries), rng.choice(TAUGHT)) for _ in range(_CHUNK)]
