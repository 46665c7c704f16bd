"""A deployment's settings: YAML, then `key=value` overrides.

An unknown key is an error that names the nearest known one.
"""

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from aerie.contracts.errors import ConfigError
from aerie.contracts.overrides import lay_over
from aerie.contracts.places import named_in
from aerie.contracts.section import Section
from aerie.contracts.server_section import LimitsConfig, ServerConfig
from aerie.contracts.sglang_section import SGLangConfig
from aerie.contracts.spec_section import SpecConfig


class ModelConfig(Section):
    path: str = ""
    """A folder with config.json and safetensors, or a hub id ORG/MODEL."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    offline: bool = False
    """Resolve hub ids, the head's too, in the local cache only; never use the network."""
    served_name: str | None = None
    """Name under /v1/models; by default the folder's name or the hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's dtype if the device computes it natively, and bfloat16 also if a CPU's C++ kernels
    serve, which widen it while they read it; else float32 on a CPU and float16 on a GPU."""
    weights: Literal["safetensors", "dummy"] = "safetensors"
    """`dummy` draws random weights of the shapes that config.json gives, for the head too; for measurements only."""
    quantization: Literal["none", "int8"] = "none"
    """Precision of the target's matrices on a CPU. `int8` rounds them while they are loaded, with a scale for each
    output: half the bytes of bf16, and a text that differs from the unrounded model's."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens of prompt and answer together; by default the model's limit."""


class EngineConfig(Section):
    kind: Literal["native", "sglang-model", "sglang"] = "native"
    """`native` runs Aerie's models, `sglang-model` SGLang's models under Aerie's scheduler, `sglang` SGLang's whole
    engine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU if there is one."""
    attention: Literal["auto", "reference", "cpu", "cpp", "flashinfer", "triton"] = "auto"
    """The attention backend; `auto` is the fastest for the device."""
    kernels: Literal["auto", "torch", "cpp", "triton"] = "auto"
    """Aerie's kernels; `auto` uses the C++ kernels on a CPU with a compiler, and on a GPU those Triton kernels that a
    committed measurement shows to be faster."""
    products: Literal["auto", "panels", "dots", "amx", "fp16", "library", "inductor"] = "auto"
    """What multiplies by the weights. Where a CPU has C++ kernels: Aerie's own product (`panels`), its own by dot
    products of bf16 (`dots`, for models served in bf16 on a CPU that has them) or by AMX (`amx`, on a CPU that has it),
    or torch's packed `fp16`; `auto` measures them at the first start and keeps to the fastest one. On a GPU: `auto`
    takes cuBLASLt or Triton's product for those matrices and few tokens where a trial shows it to be faster,
    `inductor` tries also what PyTorch compiles, which takes minutes at a start, and `library` tries nothing."""
    lane: Literal["auto", "inline", "process"] = "auto"
    """Where steps run: in the scheduler's process or in a separate one."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a CPU lane; by default as many as are fastest, at most one fewer than the cores that its affinity and
    quota allow."""
    graphs: bool = True
    """Replay steps as CUDA graphs."""
    page_size: int = Field(default=16, ge=1)
    """Tokens in a KV page."""
    kv_tokens: int | None = Field(default=None, ge=64)
    """Tokens that the KV pool holds; by default what the memory share allows, at most max_running * max_length."""
    edit_slots: int = Field(default=64, ge=0)
    """Requests at a time that use penalties, logit_bias, allowed_token_ids or bad_words; the others wait. Each takes 8
    bytes for each token of the vocabulary."""
    memory_share: float | None = Field(default=None, gt=0, le=1)
    """Share of the free memory for the KV pools; by default 0.3 on a CPU, and on a GPU 0.9 of what the weights leave.
    """


class SchedulerConfig(Section):
    overlap: bool = True
    """Plan the next step while the device runs this one; false plans and runs steps one after the other."""
    max_running: int = Field(default=64, ge=1)
    """Requests that decode at once."""
    max_waiting: int = Field(default=256, ge=0)
    """Places in the queue beyond the running requests; when all are taken, a new request is answered 503."""
    prefill_chunk: int = Field(default=256, ge=1)
    """The most prompt tokens in one step."""
    long_prefill_threshold: int | None = Field(default=None, ge=1)
    """A prompt with more tokens than this to compute is long; by default `prefill_chunk`."""
    long_prefill_chunk: int | None = Field(default=None, ge=1)
    """Tokens of a step that all long prompts share while other requests are open; by default `long_prefill_threshold`.
    A smaller number shortens the wait of short requests; the share grows with a long prompt's wait."""
    prefix_cache: bool = True
    """Reuse the KV of earlier prompts and answers for prompts that begin with the same tokens."""
    poison: bool = False
    """Debug: a FutureMap read overwrites what it read, so that a missed publish fails loudly."""


_PATHS = (("model", "path"), ("spec", "head"), ("server", "chat_template"))
_NO_PATHS = ("", "auto", "none")
_SHAPE_KEYS = ("spec.depth", "spec.topk", "spec.nodes")


class Config(Section):
    """A file of `configs/serve/`."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    spec: SpecConfig = SpecConfig()
    sglang: SGLangConfig = SGLangConfig()
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
        _resolve_paths(data, path.parent)
    texts = {key for key, kind in _settings() if kind in (str, str | None)}
    keys = [lay_over(data, override, texts=texts) for override in overrides or []]
    if any(key in _SHAPE_KEYS for key in keys) and "spec.by_load" not in keys:
        data["spec"].pop("by_load", None)  # an explicit shape replaces the file's table
    return parse_config(data)


def _resolve_paths(data: dict[str, Any], folder: Path) -> None:
    """Makes the file's paths relative to the file; paths in overrides stay relative to the working directory."""
    for section, key in _PATHS:
        part = data.get(section)
        if isinstance(part, dict) and isinstance(part.get(key), str) and part[key] not in _NO_PATHS:
            part[key] = named_in(folder, part[key])


def parse_config(data: dict[str, Any]) -> Config:
    if isinstance(data.get("engine"), str):  # `engine: sglang` is short for `engine: {kind: sglang}`
        data = data | {"engine": {"kind": data["engine"]}}
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error), param=_dotted(error.errors()[0]["loc"])) from None


def masked(config: Config) -> dict[str, Any]:
    """The config as plain data with secrets replaced by `***`, for the log and /config."""
    data: dict[str, Any] = json.loads(config.model_dump_json())
    if data["server"]["api_key"] is not None:
        data["server"]["api_key"] = "***"
    return data


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
    known, sections = known_keys(), list(Config.model_fields)
    close = difflib.get_close_matches(key, known if "." in key else sections, 1, 0.5)
    if not close:
        tails = {name.rpartition(".")[2]: name for name in known}
        close = [tails[tail] for tail in difflib.get_close_matches(key.rpartition(".")[2], list(tails), 1, 0.5)]
    return f"; did you mean {close[0]!r}?" if close else f"; known sections: {', '.join(sections)}"


def known_keys() -> list[str]:
    """Every dotted key of a config."""
    return [key for key, _ in _settings()]


def _settings() -> Iterator[tuple[str, Any]]:
    for section, part in Config.model_fields.items():
        model: Any = part.annotation
        yield from ((f"{section}.{name}", field.annotation) for name, field in model.model_fields.items())


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)
