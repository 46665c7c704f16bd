"""What a deployment says: YAML, then `key=value` overrides.

An unknown key is an error that names the nearest known one.
"""

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.errors import ConfigError
from contracts.step import MAX_NODES


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Section):
    path: str = ""
    """A folder with config.json and safetensors, or a hub id ORG/MODEL."""
    revision: str | None = None
    served_name: str | None = None
    """Name under /v1/models; the folder's name or the hub id by default."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's own."""
    weights: Literal["safetensors", "dummy"] = "safetensors"
    max_length: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together; the model's own limit by default."""


class EngineConfig(_Section):
    kind: Literal["native", "sglang-model", "sglang"] = "native"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attention: Literal["auto", "reference", "cpu", "flashinfer", "triton"] = "auto"
    lane: Literal["auto", "inline", "process"] = "auto"
    """Where steps run: in the scheduler's process, or in one of their own."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a CPU lane; real cores - 1 by default."""
    graphs: bool = True
    page_size: int = Field(default=16, ge=1)
    kv_tokens: int | None = Field(default=None, ge=64)
    """Tokens that the KV pool holds; by default what the memory share gives, at most max_running * max_length."""
    memory_share: float = Field(default=0.3, gt=0, le=1)
    """Share of the device's free memory for the KV pools."""


class SchedulerConfig(_Section):
    overlap: bool = True
    max_running: int = Field(default=64, ge=1)
    max_waiting: int = Field(default=256, ge=0)
    """Places in the queue beyond the running requests; a request that finds none is answered 503."""
    prefill_chunk: int = Field(default=256, ge=1)
    """Prompt tokens in one step."""
    long_prefill_threshold: int | None = Field(default=None, ge=1)
    """While other requests are open, prompts with more left than this get so many tokens of a step together; by default
    no fewer than any."""
    prefix_cache: bool = True
    poison: bool = False
    """Debug: a FutureMap read spoils what it read, so that a missed publish fails loudly."""


class LoadShape(_Section):
    """The draft shape while at most `rows` rows run; depth 0 drafts nothing."""

    rows: int = Field(ge=1)
    depth: int = Field(ge=0, le=MAX_NODES - 1)
    topk: int = Field(default=1, ge=1, le=16)
    nodes: int = Field(ge=1, le=MAX_NODES)


class SpecConfig(_Section):
    head: str = "auto"
    """`auto` looks the target up in configs/head, `none` decodes plainly, else a folder or hub id."""
    revision: str | None = None
    depth: int = Field(default=4, ge=0, le=MAX_NODES - 1)
    topk: int = Field(default=1, ge=1, le=16)
    nodes: int = Field(default=5, ge=1, le=MAX_NODES)
    """Nodes verified of a row, root included."""
    by_load: tuple[LoadShape, ...] = ()
    """Shapes by running rows, ascending; beyond the last entry nothing is drafted. Empty: one shape for every load."""
    draft_temperature: float = Field(default=1.5, gt=0)
    """The `a` of z = (a / T) log q + g: how sharply the draft's distribution is trusted; `inf` ignores the noise."""
    edge_temperatures: tuple[float, ...] = ()
    """tau by depth: an edge of the tree scores log softmax(z / tau). 1 where not given."""


class ServerConfig(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: str | None = None
    playground: bool = True
    cors_origins: tuple[str, ...] = ()
    keep_alive_seconds: float = 75.0
    """Of idle connections; longer than a proxy's, so that the proxy closes first."""
    ping_seconds: float = 15.0
    """Between comments on a silent stream."""
    drain_seconds: float = 30.0
    """How long SIGTERM waits for running requests."""
    chat_template: str | None = None
    """A file that replaces the tokenizer's template."""


class LimitsConfig(_Section):
    max_body_bytes: int = 4 << 20
    max_choices: int = Field(default=16, ge=1)
    max_stop_strings: int = 16
    max_stop_length: int = 256
    temperature_max: float = 2.0
    require_seed: bool = False
    queue_seconds: float = 60.0
    total_seconds: float = 600.0


class Config(_Section):
    """A file of `configs/serve/`."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    spec: SpecConfig = SpecConfig()
    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()


def load_config(path: Path | None = None, overrides: list[str] | None = None) -> Config:
    """The config of a YAML file with `section.key=value` overrides laid over it; the values are YAML too."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise ConfigError(f"no config file at {path}; configs/serve/ holds those that ship") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {error}") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{path} must hold a mapping of sections; it holds a {type(data).__name__}")
    for override in overrides or []:
        _apply(data, override)
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> Config:
    if isinstance(data.get("engine"), str):  # `engine: sglang` is short for `engine: {kind: sglang}`
        data = data | {"engine": {"kind": data["engine"]}}
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error), param=_dotted(error.errors()[0]["loc"])) from None


def masked(config: Config) -> dict[str, Any]:
    """The config as plain data, secrets replaced by `***`; what the log and /config show."""
    data = config.model_dump(mode="json")
    if data["server"]["api_key"] is not None:
        data["server"]["api_key"] = "***"
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is no override; write section.key=value, as in spec.depth=5")
    *sections, last = key.split(".")
    node = data
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{key!r} goes through {section!r}, which holds a value", param=key)
        node = child
    node[last] = yaml.safe_load(text)


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = _dotted(problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {where!r}{_nearest(where)}")
        else:
            lines.append(f"{where} is {problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)


def _nearest(key: str) -> str:
    known = known_keys()
    close = difflib.get_close_matches(key, known, 1, 0.5)
    if not close:
        tails = {name.rpartition(".")[2]: name for name in known}
        close = [tails[tail] for tail in difflib.get_close_matches(key.rpartition(".")[2], list(tails), 1, 0.5)]
    return f"; did you mean {close[0]!r}?" if close else f"; known sections: {', '.join(Config.model_fields)}"


def known_keys() -> list[str]:
    """Every dotted key of a config."""
    return [
        f"{section}.{key}" for section, field in Config.model_fields.items() for key in _fields_of(field.annotation)
    ]


def _fields_of(section: Any) -> list[str]:
    return list(section.model_fields)


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)
