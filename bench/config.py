"""The schema of configs/sweep/: targets, loads and workloads of a sweep."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class SweepError(Exception):
    """What is wrong with a sweep and what to do about it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Setting = tuple[tuple[str, int | str], ...]
"""A value for each word of a command that varies; pairs, so that a setting can be compared and looked up."""


class Target(_Strict):
    """A server: one that runs at `url`, or one that `command` starts on a free port, written {port}."""

    name: str = Field(pattern=r"^[\w .+-]+$")
    url: str | None = None
    command: str | None = None
    model: str | None = None
    """The first of /v1/models by default."""
    api_key: str | None = None
    fields: dict[str, Any] = {}
    """Extra fields of every request."""
    environment: dict[str, str] = {}
    """Environment variables of the command, in addition to the sweep's own."""
    vary: dict[str, Annotated[tuple[int | str, ...], Field(min_length=1)]] = {}
    """Words in braces of `command` and `environment`, each with values to try. Every combination is measured before the
    sweep's own cells, and each load keeps its fastest.
    """
    install: str | None = None
    """How to get the program; shown if its command is not found."""
    start_seconds: float = 600.0
    baseline: bool = False
    """The target that speed-ups are relative to; the first by default."""
    cost_per_hour: float | None = None
    """Price of the machine, in the currency of your bill."""

    @model_validator(mode="after")
    def _one_way(self) -> "Target":
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        if self.command is not None and "{port}" not in self.command:
            raise ValueError("command must hold {port}")
        texts = (self.command or "", *self.environment.values())
        if unused := [word for word in self.vary if not any(f"{{{word}}}" in text for text in texts)]:
            raise ValueError(f"command holds no {{{unused[0]}}}, which vary names")
        return self

    def settings(self) -> list[Setting]:
        """Every combination of values in `vary`; one empty setting without it."""
        return [tuple(zip(self.vary, values, strict=True)) for values in itertools.product(*self.vary.values())]

    def with_setting(self, setting: Setting) -> "Target":
        def filled(text: str) -> str:
            for word, value in setting:
                text = text.replace(f"{{{word}}}", str(value))
            return " ".join(text.split())

        if not setting:
            return self
        environment = {name: filled(text) for name, text in self.environment.items()}
        return self.model_copy(update={"command": filled(self.command or ""), "environment": environment})


class Load(_Strict):
    """`concurrency` is a closed loop, `rate` (requests a second) an open one."""

    concurrency: tuple[Annotated[int, Field(ge=1)], ...] = ()
    rate: tuple[Annotated[float, Field(gt=0)], ...] = ()
    burstiness: float = Field(default=1.0, gt=0)
    """For an open loop: the shape of the Gamma distributed gaps; 1 is Poisson, less is bursty."""


class Tuning(_Strict):
    """Size of a trial of one setting; `requests`, `rounds` and `seconds` are as in the sweep. A fast server ends a few
    requests within a fraction of a second, too little to tell settings apart: `seconds` is the least a trial takes.
    """

    requests: int = Field(default=8, ge=2)
    rounds: int = Field(default=2, ge=2)
    seconds: float = Field(default=0.0, ge=0)


class Sweep(_Strict):
    """A cell has at least `requests` requests, and `rounds` for each slot of a closed loop; its window lasts at least
    `seconds`.
    """

    targets: tuple[Target, ...] = Field(min_length=1)
    workloads: tuple[str, ...] = ("demo",)
    load: Load
    max_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    requests: int = Field(default=16, ge=2)
    rounds: int = Field(default=4, ge=2)
    seconds: float = Field(default=0.0, ge=0)
    repeats: int = Field(default=1, ge=1)
    seed: int = 0
    together: bool = True
    """All targets run at once and cells alternate between them; otherwise each runs alone and repeats alternate."""
    tuning: Tuning = Tuning()
    latency_targets: dict[Literal["ttft", "tpot", "e2e"], float] = {}

    @model_validator(mode="after")
    def _sound(self) -> "Sweep":
        names = [target.name for target in self.targets]
        if len(set(names)) != len(names):
            raise ValueError("two targets have the same name")
        if not (self.load.concurrency or self.load.rate):
            raise ValueError("load needs concurrency or rate")
        return self

    def target(self, name: str) -> Target:
        return next(target for target in self.targets if target.name == name)

    @property
    def loads(self) -> list[tuple[str, float]]:
        """Mode and load of every cell of a workload."""
        closed = [("concurrency", float(value)) for value in self.load.concurrency]
        return closed + [("rate", float(value)) for value in self.load.rate]

    @property
    def baseline(self) -> str:
        return next((target.name for target in self.targets if target.baseline), self.targets[0].name)

    def digest(self) -> str:
        """Distinguishes the results folder of this sweep from that of another."""
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
