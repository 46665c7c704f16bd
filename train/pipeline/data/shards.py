"""Feature shards: conversations one after the other in safetensors, and the index that records their inputs.

Written by `features`, read by `vocabulary` and `train`. A shard holds `ids` int32 and `answer` uint8 [tokens],
`offsets` int64 [documents + 1] and, offline, `taps` and `final` in bf16. The index names the target, the template, the
tap boundaries and that the final states are before the norm, since features of another target or template look the
same.
"""

import hashlib
import json
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from aerie.contracts.errors import AerieError
from aerie.train.pipeline.data.render import Document
from aerie.train.pipeline.data.served import States
from aerie.train.pipeline.data.storage import Storage

INDEX = "index.json"
ABOUT = "aerie"
"""Metadata key of the shards: a short form of the index, as JSON."""
_OPEN = 2
"""Shards kept open: the one being read, and the next."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    name: str
    sha256: str
    bytes: int
    lengths: list[int]
    """Tokens of each document."""


@dataclass(frozen=True, slots=True)
class Index:
    target: str
    """Hash of the target's weights."""
    template: str
    """Hash of the chat template."""
    boundaries: tuple[int, ...]
    hidden: int
    longest: int
    dtype: str
    mode: str
    storage: str | None
    """URL of the shards; None if they are beside the index."""
    final_is_prenorm: bool
    shards: list[ShardEntry]

    def as_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def read_index(folder: Path) -> Index:
    data = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    shards = [ShardEntry(**entry) for entry in data.pop("shards")]
    return Index(**data | {"boundaries": tuple(data["boundaries"])}, shards=shards)


def shard_bytes(documents: list[Document], states: list[States] | None, about: dict[str, str]) -> bytes:
    lengths = torch.tensor([0, *(len(document.ids) for document in documents)])
    tensors = {
        "ids": torch.tensor([token for document in documents for token in document.ids], dtype=torch.int32),
        "answer": torch.tensor([said for document in documents for said in document.answer], dtype=torch.uint8),
        "offsets": lengths.cumsum(0),
    }
    if states is not None:
        tensors["taps"] = torch.cat([one.taps for one in states])
        tensors["final"] = torch.cat([one.final for one in states])
    return save(tensors, metadata={ABOUT: json.dumps(about, sort_keys=True)})  # the order of several keys would vary


def entry_of(name: str, data: bytes, lengths: list[int]) -> ShardEntry:
    return ShardEntry(name, hashlib.sha256(data).hexdigest(), len(data), lengths)


@dataclass(frozen=True, slots=True)
class Stored:
    """A document of a shard; `states` is None if they are computed on the fly."""

    ids: Tensor
    answer: Tensor
    states: States | None


class Shards:
    """Reads documents by (shard, place). Only a few shards are open at a time, so request near places together."""

    def __init__(self, folder: Path) -> None:
        self.index = read_index(folder)
        self._storage = Storage(self.index.storage or str(folder))
        self._open: OrderedDict[int, dict[str, Tensor]] = OrderedDict()
        for entry in self.index.shards:
            size = self._storage.size(entry.name)
            if size != entry.bytes:
                found = "is missing" if size is None else f"has {size} bytes"
                raise AerieError(f"shard {entry.name} in {self._storage.url} {found}; the index says {entry.bytes}")

    @property
    def lengths(self) -> list[list[int]]:
        return [entry.lengths for entry in self.index.shards]

    def document(self, shard: int, place: int) -> Stored:
        tensors = self._tensors(shard)
        begin, end = tensors["offsets"][place : place + 2].tolist()
        states = None
        if "taps" in tensors:
            states = States(tensors["taps"][begin:end], tensors["final"][begin:end])
        return Stored(tensors["ids"][begin:end].long(), tensors["answer"][begin:end].bool(), states)

    def _tensors(self, shard: int) -> dict[str, Tensor]:
        if shard not in self._open:
            while len(self._open) >= _OPEN:
                self._open.popitem(last=False)
            entry = self.index.shards[shard]
            path = self._storage.path(entry.name)
            self._open[shard] = load(self._storage.read(entry.name)) if path is None else load_file(path)
        self._open.move_to_end(shard)
        return self._open[shard]
