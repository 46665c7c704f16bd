"""Flags of vLLM and SGLang, each with the matching setting of Aerie. docs/coming-from.md shows this table."""

import difflib
import json
import re
from dataclasses import dataclass

from aerie.contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Alias:
    """A flag of another server. `key` is our setting; `value` is the value to set for a flag that takes none."""

    flag: str
    origin: str
    key: str
    value: str | None = None


ALIASES = (
    Alias("--host", "both", "server.host"),
    Alias("--port", "both", "server.port"),
    Alias("--api-key", "both", "server.api_key"),
    Alias("--served-model-name", "both", "model.served_name"),
    Alias("--revision", "both", "model.revision"),
    Alias("--dtype", "both", "model.dtype"),
    Alias("--quantization", "both", "model.quantization"),
    Alias("--max-model-len", "vLLM", "model.max_length"),
    Alias("--context-length", "SGLang", "model.max_length"),
    Alias("--max-num-seqs", "vLLM", "scheduler.max_running"),
    Alias("--max-running-requests", "SGLang", "scheduler.max_running"),
    Alias("--max-queued-requests", "SGLang", "scheduler.max_waiting"),
    Alias("--max-num-batched-tokens", "vLLM", "scheduler.prefill_chunk"),
    Alias("--chunked-prefill-size", "SGLang", "scheduler.prefill_chunk"),
    Alias("--long-prefill-token-threshold", "vLLM", "scheduler.long_prefill_threshold"),
    Alias("--block-size", "vLLM", "engine.page_size"),
    Alias("--page-size", "SGLang", "engine.page_size"),
    Alias("--max-total-tokens", "SGLang", "engine.kv_tokens"),
    Alias("--enable-prefix-caching", "vLLM", "scheduler.prefix_cache", "true"),
    Alias("--no-enable-prefix-caching", "vLLM", "scheduler.prefix_cache", "false"),
    Alias("--disable-radix-cache", "SGLang", "scheduler.prefix_cache", "false"),
    Alias("--disable-overlap-schedule", "SGLang", "scheduler.overlap", "false"),
    Alias("--attention-backend", "both", "engine.attention"),
    Alias("--device", "both", "engine.device"),
    Alias("--enforce-eager", "vLLM", "engine.graphs", "false"),
    Alias("--disable-cuda-graph", "SGLang", "engine.graphs", "false"),
    Alias("--chat-template", "both", "server.chat_template"),
    Alias("--tool-call-parser", "both", "server.tool_call_parser"),
    Alias("--reasoning-parser", "both", "server.reasoning_parser"),
    Alias("--allowed-origins", "vLLM", "server.cors_origins"),
    Alias("--enable-log-requests", "vLLM", "server.log_requests", "true"),
    Alias("--no-enable-log-requests", "vLLM", "server.log_requests", "false"),
    Alias("--disable-log-requests", "vLLM", "server.log_requests", "false"),
    Alias("--speculative-draft-model-path", "SGLang", "spec.head"),
    Alias("--speculative-draft-model-revision", "SGLang", "spec.revision"),
    Alias("--speculative-num-steps", "SGLang", "spec.depth"),
    Alias("--speculative-eagle-topk", "SGLang", "spec.topk"),
    Alias("--speculative-num-draft-tokens", "SGLang", "spec.nodes"),
    Alias("--tensor-parallel-size", "both", "sglang.tp"),
    Alias("--tp-size", "SGLang", "sglang.tp"),
    Alias("--tp", "SGLang", "sglang.tp"),
    Alias("-tp", "vLLM", "sglang.tp"),
    Alias("--data-parallel-size", "both", "sglang.dp"),
    Alias("--dp-size", "SGLang", "sglang.dp"),
    Alias("--pipeline-parallel-size", "both", "sglang.pp"),
    Alias("--pp-size", "SGLang", "sglang.pp"),
    Alias("--expert-parallel-size", "SGLang", "sglang.ep"),
    Alias("--ep-size", "SGLang", "sglang.ep"),
    Alias("--nnodes", "both", "sglang.nnodes"),
    Alias("--node-rank", "both", "sglang.node_rank"),
    Alias("--dist-init-addr", "SGLang", "sglang.dist_init_addr"),
)
_ONLY: dict[str, tuple[str, ...]] = {
    "--speculative-algorithm": ("EAGLE3",),
    "--speculative-algo": ("EAGLE3",),
}
"""Flags with one value that matches what Aerie always does; any other value is rejected."""
_ALWAYS = {"--enable-auto-tool-choice": "tool calls are parsed wherever a request has tools"}
"""Flags without a value for what Aerie always does, each with that."""
_TARGET = ("--model", "--model-path")
"""Flags that name the model to serve, which is a positional argument here."""
_REFUSED = {
    "--trust-remote-code": "code out of a checkpoint is never run",
    "--gpu-memory-utilization": "engine.memory_share is the share of the free memory that KV pools take",
    "--mem-fraction-static": "engine.memory_share is the share of the free memory that KV pools take; with engine.kind "
    "sglang, sglang.memory is that of weights and KV",
    "--kv-cache-dtype": "KV is kept in the dtype of the weights",
    "--enable-lora": "adapters are not served",
    "--seed": "a seed belongs to a request: its `seed` field",
    "--random-seed": "a seed belongs to a request: its `seed` field",
    "--enable-metrics": "/metrics is always served",
    "--disable-log-stats": "statistics are under /metrics and not in the log",
    "--uvicorn-log-level": "the log has a line a request, which server.log_requests=false leaves out",
    "--log-level": "the log has a line a request, which server.log_requests=false leaves out",
    "--enable-chunked-prefill": "prompts are always read in chunks, of scheduler.prefill_chunk tokens",
    "--schedule-policy": "who comes first is served first",
    "--swap-space": "nothing is swapped: who loses its pages is computed again",
    "--load-format": "weights are safetensors; model.weights=dummy draws random ones",
    "--download-dir": "what is fetched lies in the hub's own cache, which the variable HF_HOME names",
    "--tokenizer": "the tokenizer is that of the model's folder",
    "--tokenizer-path": "the tokenizer is that of the model's folder",
    "--ssl-keyfile": "put a proxy with TLS before the server",
    "--ssl-certfile": "put a proxy with TLS before the server",
}
"""Known flags that are not supported, each with the reason or the alternative."""
_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)*=")
_CONFIG_KEYS = {"model": "spec.head", "num_speculative_tokens": "spec.depth"}


def split_words(words: list[str]) -> tuple[str, list[str]]:
    """Splits the words into the target, which may be anywhere among them, and the overrides. Raises ConfigError."""
    overrides = overrides_of(words)
    for place, word in enumerate(overrides):
        if _SETTING.match(word) is None:
            return word, overrides[:place] + overrides[place + 1 :]
    raise ConfigError("nothing to serve is named: a config file, a model folder or a hub id ORG/MODEL")


def overrides_of(arguments: list[str]) -> list[str]:
    """Converts known flags into settings and keeps words without dashes; raises ConfigError on anything else."""
    known = {alias.flag: alias for alias in ALIASES}
    valued = (*known, *_ONLY, *_TARGET, "--speculative-config")
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("-"):
            overrides.append(flag + equals + value)
        elif (alias := known.get(flag)) is not None and alias.value is not None:
            if equals:
                raise ConfigError(f"{flag} takes no value; write {alias.key}={value}")
            overrides.append(f"{alias.key}={alias.value}")
        elif flag in _ALWAYS and not equals:
            continue
        elif flag in valued:
            overrides += _valued(flag, value if equals else _next(flag, rest), known)
        else:
            raise _not_offered(flag, [*valued, *_ALWAYS, "--help"])
    return overrides


def as_markdown() -> str:
    """The tables of docs/coming-from.md."""
    lines = ["| flag | of | here |", "|---|---|---|"]
    for alias in ALIASES:
        value = "" if alias.value is None else f"={alias.value}"
        lines.append(f"| `{alias.flag}` | {alias.origin} | `{alias.key}{value}` |")
    lines += [f"| `{flag}` | {origin} | the target |" for flag, origin in zip(_TARGET, ("vLLM", "SGLang"), strict=True)]
    lines.append("| `--speculative-config` | vLLM | `spec.head`, `spec.depth`, `spec.topk=1`, `spec.nodes` |")
    lines += ["", "| flag | the value that is served |", "|---|---|"]
    lines += [f"| `{flag}` | {', '.join(values)} |" for flag, values in _ONLY.items()]
    lines += ["", "| flag | taken and not needed |", "|---|---|"]
    lines += [f"| `{flag}` | {what} |" for flag, what in _ALWAYS.items()]
    lines += ["", "| not offered | because, or instead |", "|---|---|"]
    lines += [f"| `{flag}` | {reason} |" for flag, reason in _REFUSED.items()]
    return "\n".join(lines) + "\n"


def _not_offered(flag: str, known: list[str]) -> ConfigError:
    if flag in _REFUSED:
        return ConfigError(f"{flag} is not offered: {_REFUSED[flag]}")
    near = difflib.get_close_matches(flag, known, 1)
    hint = f"did you mean {near[0]}?" if near else "docs/coming-from.md lists those that are known."
    return ConfigError(f"unknown flag {flag}; {hint} Settings are section.key=value")


def _valued(flag: str, value: str, known: dict[str, Alias]) -> list[str]:
    if flag in known:
        return [f"{known[flag].key}={value}"]
    if flag in _TARGET:
        return [value]
    if flag in _ONLY:
        if value.upper() not in _ONLY[flag]:
            raise ConfigError(f"{flag} {value} is not offered; Aerie serves {flag} {_ONLY[flag][0]}")
        return []
    return _speculative(value)


def _speculative(text: str) -> list[str]:
    """Reads vLLM's JSON: `method` eagle3, `model`, `num_speculative_tokens` (the length of the chain)."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"--speculative-config must be an object; it is {text}")
    if given.pop("method", "eagle3") != "eagle3":
        raise ConfigError("--speculative-config: the method must be eagle3")
    unknown = set(given) - set(_CONFIG_KEYS)
    if unknown:
        raise ConfigError(
            f"--speculative-config: {', '.join(sorted(unknown))} is not offered; known: {', '.join(_CONFIG_KEYS)}"
        )
    overrides = [f"{_CONFIG_KEYS[key]}={value}" for key, value in given.items()]
    tokens = given.get("num_speculative_tokens", 0)
    if not isinstance(tokens, int):
        raise ConfigError(f"--speculative-config: num_speculative_tokens is {tokens!r}; it must be an integer")
    if tokens:
        overrides += ["spec.topk=1", f"spec.nodes={tokens + 1}"]
    return overrides


def _next(flag: str, rest: list[str]) -> str:
    if not rest:
        raise ConfigError(f"{flag} needs a value")
    return rest.pop(0)
