"""Stage 1: prompts in one form with stable ids, from JSON Lines of OpenAI messages or ShareGPT, from text files, and
drawn from what a small target was taught.

A prompt is its system and user turns; the source's assistant turns are dropped, since the target will answer. Its id is
a hash of these turns alone, so it is the same in every run, file and order.
"""

import glob
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import file_hash, weights_hash
from aerie.train.demo.prompts import Drawn, draw_prompts
from aerie.train.pipeline.config import PipelineConfig, Source
from aerie.train.pipeline.data.lines import BadLines, read_objects, write_lines
from aerie.train.pipeline.folder import begin, reported_when_full
from aerie.train.progress import bar, say

STAGE = "prompts"
FILE = "prompts.jsonl"

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}

Record = dict[str, Any]
"""id, domain, license, source and line, turns: a list of {role, content}; drawn ones may have prompt_token_ids."""


def make_prompts(config: PipelineConfig) -> Path:
    """Reads `prompts.sources` in order. Raises AerieError if a source has no files or too many lines are bad."""
    stage = config.prompts
    files = [(source, path) for source in stage.sources for path in _files(source)]
    inputs = {str(path): file_hash(path) for _, path in files}
    if stage.drawn:
        inputs["target"] = weights_hash(Path(config.target))
    settings = stage.model_dump(mode="json") | ({"seed": config.seed} if stage.drawn else {})
    begun = begin(Path(config.work), STAGE, settings, inputs)
    bad = BadLines(stage.bad_lines)
    counts: Counter[str] = Counter()
    size = sum(path.stat().st_size for _, path in files)
    with bar(STAGE, size + stage.drawn) as advance, reported_when_full(begun.path):

        def records() -> Iterator[Record]:
            for source, path in files:
                for record in read_records(source, path, bad):
                    counts[record["domain"]] += 1
                    yield record
                advance(path.stat().st_size)
            for record in _drawn(config):
                counts[record["domain"]] += 1
                yield record
                advance(1)

        write_lines(begun.path / FILE, records())
        write_lines(
            begun.path / "bad_lines.jsonl", (dict(zip(("file", "line", "why"), b, strict=True)) for b in bad.found)
        )
    if bad.found:
        say(f"{len(bad.found)} bad lines:\n{bad.listed()}")
    bad.check()
    return begun.finish(
        {"prompts": counts.total(), "domains": dict(sorted(counts.items())), "bad_lines": len(bad.found)}
    )


def read_records(source: Source, path: Path, bad: BadLines) -> Iterator[Record]:
    """The prompts of one file; lines without a prompt go to `bad`."""
    if path.suffix == ".jsonl":
        for number, value in read_objects(path, bad):
            try:
                yield _record(_turns(value), source, path, number)
            except ValueError as error:
                bad.add(path, number, str(error))
    else:
        for number, paragraph in _paragraphs(path):
            yield _record([{"role": "user", "content": paragraph}], source, path, number)


def _drawn(config: PipelineConfig) -> Iterator[Record]:
    run = config.pretrain
    if run is None or not config.prompts.drawn:
        return
    stage = config.prompts
    found = draw_prompts(run, Path(config.target), stage.drawn, seed=config.seed, shares=stage.shares)
    for number, drawn in enumerate(found, 1):
        yield as_record(drawn, domain="tasks", license=run.license, source="drawn", line=number)


def as_record(drawn: Drawn, **about: Any) -> Record:
    return {"id": prompt_id(drawn["turns"]), **about, **drawn}


def prompt_id(turns: list[dict[str, str]]) -> str:
    """The same for the same system and user turns."""
    asked = [[turn["role"], turn["content"]] for turn in turns]
    return hashlib.sha256(json.dumps(asked, ensure_ascii=True).encode()).hexdigest()[:20]


def _record(turns: list[dict[str, str]], source: Source, path: Path, line: int) -> Record:
    return as_record({"turns": turns}, domain=source.domain, license=source.license, source=path.name, line=line)


def _turns(value: dict[str, Any]) -> list[dict[str, str]]:
    """System and user turns. Raises ValueError that names what the line lacks."""
    messages, who, what = value.get("messages"), "role", "content"
    if messages is None:
        messages, who, what = value.get("conversations"), "from", "value"
    if not isinstance(messages, list):
        raise ValueError("neither `messages` (OpenAI) nor `conversations` (ShareGPT) holds a list")
    turns = []
    for index, message in enumerate(messages):
        role = _ROLES.get(str(message.get(who))) if isinstance(message, dict) else None
        if role is None:
            raise ValueError(f"message {index} has no known {who}; known are {', '.join(sorted(_ROLES))}")
        if role == "assistant":
            continue
        text = message.get(what)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"message {index} of the {role} has no text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"message {index} holds half of a surrogate pair") from None
        turns.append({"role": role, "content": text})
    if not any(turn["role"] == "user" for turn in turns):
        raise ValueError("no message of a user")
    return turns


def _paragraphs(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each paragraph; empty lines separate paragraphs."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise AerieError(f"{path} is not UTF-8 text: {error}") from None
    begun, gathered = 1, list[str]()
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            begun = begun if gathered else number
            gathered.append(line)
        elif gathered:
            yield begun, "\n".join(gathered).strip()
            gathered = []


def _files(source: Source) -> list[Path]:
    found = [Path(name) for name in sorted(glob.glob(source.path, recursive=True)) if Path(name).is_file()]
    if not found:
        raise AerieError(f"no file at {source.path} (prompts.sources)")
    return found
