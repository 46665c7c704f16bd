"""A file of configs/sweep/: who is measured, under which loads, with what."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class SweepError(Exception):
    """What is wrong with a sweep and what to do, for the person who started it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Target(_Strict):
    """A server: one that runs at `url`, or one that `command` starts on a free port, written {port}."""

    name: str = Field(pattern=r"^[\w .+-]+$")
    url: str | None = None
    command: str | None = None
    model: str | None = None
    """The first of /v1/models by default."""
    api_key: str | None = None
    fields: dict[str, Any] = {}
    """Of every request."""
    start_seconds: float = 600.0
    baseline: bool = False
    """The target that speed-ups are measured against; the first by default."""
    cost_per_hour: float | None = None
    """Of the machine, in the currency of your bill."""

    @model_validator(mode="after")
    def _one_way(self) -> "Target":
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        if self.command is not None and "{port}" not in self.command:
            raise ValueError("command must hold {port}")
        return self


class Load(_Strict):
    """`concurrency` is a closed loop, `rate` (requests a second) an open one."""

    concurrency: tuple[Annotated[int, Field(ge=1)], ...] = ()
    rate: tuple[Annotated[float, Field(gt=0)], ...] = ()
    burstiness: float = Field(default=1.0, gt=0)
    """Of an open loop: the shape of the Gamma distributed gaps; 1 is Poisson, less is bursty."""


class Sweep(_Strict):
    """`requests` are at least so many of a cell, and at least `rounds` for each place of a closed loop."""

    targets: tuple[Target, ...] = Field(min_length=1)
    workloads: tuple[str, ...] = ("demo",)
    load: Load
    max_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    requests: int = Field(default=16, ge=2)
    rounds: int = Field(default=4, ge=2)
    repeats: int = Field(default=1, ge=1)
    seed: int = 0
    together: bool = True
    """All targets run at once, and cells alternate between them; else each runs alone, and repeats alternate."""
    latency_targets: dict[Literal["ttft", "tpot", "e2e"], float] = {}

    @model_validator(mode="after")
    def _sound(self) -> "Sweep":
        names = [target.name for target in self.targets]
        if len(set(names)) != len(names):
            raise ValueError("two targets have the same name")
        if not (self.load.concurrency or self.load.rate):
            raise ValueError("load needs concurrency or rate")
        return self

    @property
    def baseline(self) -> str:
        return next((target.name for target in self.targets if target.baseline), self.targets[0].name)

    def digest(self) -> str:
        """Tells a results folder of this sweep from one of another."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:16]


def load_sweep(path: Path) -> Sweep:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}; configs/sweep/ holds those that ship") from None
    except yaml.YAMLError as error:
        raise SweepError(f"{path} is not YAML: {error}") from None
    return parse_sweep(data, str(path))


def parse_sweep(data: Any, source: str) -> Sweep:
    """Raises SweepError that names every fault and `source`."""
    try:
        return Sweep.model_validate(data)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'sweep'}: {one['msg']}" for one in error.errors())
        raise SweepError(f"{source}: {faults}") from None
