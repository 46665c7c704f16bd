"""Stage 4: token ids with answers marked and, offline, the target's taps and final states, in shards.

Prints the disk space and time that it needs before it starts, and does not start if the disk is too small. Shards are
filled in the order of the conversations and written whole; a start after a kill keeps finished ones.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import template_hash, weights_hash
from aerie.engine.model.config import read_model_config
from aerie.train.pipeline import respond
from aerie.train.pipeline.config import FeaturesStage, PipelineConfig
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.data.render import ChatRenderer, Document
from aerie.train.pipeline.data.served import ServedTarget, tap_boundaries
from aerie.train.pipeline.data.shards import INDEX, Index, ShardEntry, entry_of, shard_bytes
from aerie.train.pipeline.data.storage import Storage
from aerie.train.pipeline.folder import BegunStage, begin, input_hash, reported_when_full, write_whole
from aerie.train.progress import bar, say

STAGE = "features"

_TRIED = 512
"""Tokens that are computed to estimate the remaining time."""
_BF16 = 2


def make_features(config: PipelineConfig) -> Path:
    """Raises AerieError if no answer is left to learn from or the disk is too small."""
    stage, work, target = config.features, Path(config.work), Path(config.target)
    model = read_model_config(target)
    boundaries = tap_boundaries(stage.taps, model.layers)
    renderer = ChatRenderer(target, None if config.template is None else Path(config.template), model.end_ids)
    about = {"target": weights_hash(target), "template": template_hash(renderer.source)}
    inputs = {respond.STAGE: input_hash(work, respond.STAGE), **about}
    begun = begin(work, STAGE, stage.model_dump(mode="json", exclude={"threads", "device"}), inputs)
    counts: Counter[str] = Counter()
    longest = min(stage.longest, model.max_positions)
    documents = _documents(work, renderer, longest, counts)
    if not documents:
        raise AerieError(f"none of {counts['conversations']} conversations has an answer within {longest} tokens")
    tokens = sum(len(document.ids) for document in documents)
    storage = _storage(stage, begun, inputs)
    width = (len(boundaries) + 1) * model.hidden_size
    computed = None
    if stage.mode == "offline":
        computed = ServedTarget(
            target, boundaries, longest=longest, dtype=stage.dtype, threads=stage.threads, device=stage.device
        )
        _estimate(documents, tokens, tokens * (width * _BF16 + 5), storage, computed)
    about |= {"boundaries": " ".join(map(str, boundaries)), "final": "before the norm"}
    shards = _write(stage, storage, documents, computed, about)
    index = Index(
        target=about["target"],
        template=about["template"],
        boundaries=boundaries,
        hidden=model.hidden_size,
        longest=longest,
        dtype=stage.dtype,
        mode=stage.mode,
        storage=None if stage.storage is None else storage.url,
        final_is_prenorm=True,
        shards=shards,
    )
    with reported_when_full(begun.path):
        write_whole(begun.path / INDEX, index.as_bytes())
    answered = sum(sum(document.answer) for document in documents)
    figures = {"documents": len(documents), "tokens": tokens, "answer_tokens": answered, "shards": len(shards)}
    return begun.finish(figures | dict(sorted(counts.items())))


def _documents(work: Path, renderer: ChatRenderer, longest: int, counts: Counter[str]) -> list[Document]:
    """The documents that the head can learn from: two consecutive answer tokens within the limit."""
    found = []
    for record in read_own(work / respond.STAGE / respond.FILE):
        counts["conversations"] += 1
        try:
            rendered = renderer.documents(record["turns"])
        except ValueError as error:
            counts["refused_by_template"] += 1
            say(f"conversation {record['id']} is left out: {error}")
            continue
        for document in rendered:
            counts["cut"] += len(document.ids) > longest
            document = document.cut(longest)
            if any(a and b for a, b in zip(document.answer, document.answer[1:], strict=False)):
                found.append(document)
            else:
                counts["without_answer"] += 1
    return found


def _storage(stage: FeaturesStage, begun: BegunStage, inputs: dict[str, str]) -> Storage:
    """In a store, a run's shards are in a folder named by their inputs, so that runs never mix."""
    if stage.storage is None:
        return Storage(str(begun.path))
    return Storage(f"{stage.storage.rstrip('/')}/{inputs[respond.STAGE][:12]}-{inputs['target'][:12]}")


def _estimate(documents: list[Document], tokens: int, size: int, storage: Storage, target: ServedTarget) -> None:
    """Prints an estimate from the time of the first few conversations. Raises AerieError if the shards do not fit."""
    began, done = time.monotonic(), 0
    for document in documents:
        target.states(document.ids)
        done += len(document.ids)
        if done >= _TRIED:
            break
    hours = (time.monotonic() - began) / done * tokens / 3600
    free = storage.free_bytes()
    room = "" if free is None else f", {free / 2**30:.1f} GiB are free"
    say(f"{len(documents)} documents, {tokens} tokens: about {size / 2**30:.3f} GiB{room}; about {hours:.2f} hours")
    if free is not None and size > free:
        raise AerieError(
            f"the features would take {size} bytes and {storage.url} has {free} free; give features.storage a larger "
            f"place, lower features.longest, or set features.mode to online"
        )


def _write(
    stage: FeaturesStage,
    storage: Storage,
    documents: list[Document],
    target: ServedTarget | None,
    about: dict[str, str],
) -> list[ShardEntry]:
    entries = []
    with bar(STAGE, len(documents)) as advance:
        for number, group in enumerate(_groups(documents, stage.shard_tokens)):
            entries.append(_shard(storage, f"shard-{number:05}.safetensors", group, target, about, advance))
    return entries


def _groups(documents: list[Document], tokens: int) -> Iterator[list[Document]]:
    group, size = list[Document](), 0
    for document in documents:
        if group and size + len(document.ids) > tokens:
            yield group
            group, size = [], 0
        group.append(document)
        size += len(document.ids)
    yield group


def _shard(
    storage: Storage,
    name: str,
    group: list[Document],
    target: ServedTarget | None,
    about: dict[str, str],
    advance: Callable[[int], None],
) -> ShardEntry:
    """Writes a shard. One from an earlier start is kept: it was written whole, from the same inputs."""
    lengths = [len(document.ids) for document in group]
    if storage.size(name) is not None:
        advance(len(group))
        return entry_of(name, storage.read(name), lengths)
    states = None
    if target is not None:
        states = []
        for document in group:
            states.append(target.states(document.ids))
            advance(1)
    else:
        advance(len(group))
    data = shard_bytes(group, states, about)
    storage.write(name, data)
    return entry_of(name, data, lengths)
