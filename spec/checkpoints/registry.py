"""Which head a target has: one file of `configs/head/` for each pair, looked up for `spec.head: auto`.

A pair is found by the target's name (hub id or served path). Its sizes alone suffice only if the file allows it with
`by_sizes`, since fine-tunes share sizes and a head fits only one of them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aerie.contracts.errors import ConfigError
from aerie.contracts.places import find, named_in, shipped
from aerie.engine.model.config import ModelConfig

FOLDER = shipped() / "configs" / "head"


class Sizes(BaseModel):
    """Sizes that a target must have for a pair to apply."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    architecture: str
    hidden_size: int
    layers: int
    vocabulary: int

    def are_of(self, model: ModelConfig) -> bool:
        own = (self.architecture, self.hidden_size, self.layers, self.vocabulary)
        return own == (model.architecture, model.hidden_size, model.layers, model.vocabulary)


class Promised(BaseModel):
    """Acceptance length, bonus included, that chains of `depth` reach, and who measured it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    length: float = Field(gt=1)
    depth: int = Field(ge=1)
    source: str

    @model_validator(mode="after")
    def _possible(self) -> "Promised":
        if self.length > 1 + self.depth:
            raise ValueError(f"chains of {self.depth} commit at most {1 + self.depth} tokens a step")
        return self


class Pair(BaseModel):
    """A file of `configs/head/`. `taps`, `rope` and `template` tell readers how the head was made; the checkpoint's
    config decides.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    targets: tuple[str, ...]
    """Hub ids, or folders relative to the file."""
    sizes: Sizes
    head: str
    """A folder relative to the file, or a hub id."""
    by_sizes: bool = False
    engine: Literal["native", "sglang-model", "sglang"] = "native"
    """The first `engine.kind` that serves this architecture."""
    taps: tuple[int, ...] = ()
    """Boundaries: tap b is the residual stream entering layer b."""
    rope: str = ""
    template: str = ""
    promise: Promised | None = None


def read_pairs(folder: Path = FOLDER) -> list[Pair]:
    """Raises ConfigError that names the invalid file, or the folder if it is missing."""
    if not folder.is_dir():
        raise ConfigError(f"the registry of heads, {folder}, is missing: install Aerie again", param="spec.head")
    pairs = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
            pair = Pair.model_validate(data)
        except (ValidationError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is not a pair of target and head: {error}", param="spec.head") from None
        targets = tuple(named_in(folder, target) for target in pair.targets)
        pairs.append(pair.model_copy(update={"targets": targets, "head": named_in(folder, pair.head)}))
    return pairs


def head_of(names: Iterable[str], model: ModelConfig, pairs: list[Pair]) -> str | None:
    """The head of a target known by any of `names`; None if no pair fits, or more than one."""
    known = {_canonical(name) for name in names if name}
    fitting = [pair for pair in pairs if pair.sizes.are_of(model)]
    for pair in fitting:
        if known & {_canonical(target) for target in pair.targets}:
            return pair.head
    loose = [pair for pair in fitting if pair.by_sizes]
    return loose[0].head if len(loose) == 1 else None


def same_place(one: str, other: str) -> bool:
    """Whether two names refer to one folder or hub id."""
    return _canonical(one) == _canonical(other)


def locate(name: str) -> Path | None:
    """The folder of a head: the given path, a folder that ships with Aerie, or a hub id in the local hub cache."""
    folder = find(name)
    if folder.is_dir():
        return folder
    return _cached(name) if name.count("/") == 1 else None


def _cached(repo: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _canonical(name: str) -> str:
    """The real path of a folder; the hub id of a hub cache's folder."""
    for part in Path(name).parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    folder = find(name)
    return str(folder.resolve()) if folder.is_dir() else name
