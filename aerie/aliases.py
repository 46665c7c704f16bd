"""The flags that people know from vLLM and SGLang, each as the setting it means here. docs/coming-from.md shows this
table.
"""

import json
from dataclasses import dataclass

from contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Alias:
    """A flag of another server. `key` is our setting; `value` replaces the given one for flags that take none."""

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
    Alias("--chat-template", "both", "server.chat_template"),
    Alias("--speculative-draft-model-path", "SGLang", "spec.head"),
    Alias("--speculative-num-steps", "SGLang", "spec.depth"),
    Alias("--speculative-eagle-topk", "SGLang", "spec.topk"),
    Alias("--speculative-num-draft-tokens", "SGLang", "spec.nodes"),
)
_ONLY: dict[str, tuple[str, ...]] = {
    "--tensor-parallel-size": ("1",),
    "--tp-size": ("1",),
    "--tp": ("1",),
    "-tp": ("1",),
    "--data-parallel-size": ("1",),
    "--dp-size": ("1",),
    "--pipeline-parallel-size": ("1",),
    "--speculative-algorithm": ("EAGLE3",),
    "--speculative-algo": ("EAGLE3",),
}
"""Flags of which one value is what Aerie does anyway; any other is refused."""
_CONFIG_KEYS = {"model": "spec.head", "num_speculative_tokens": "spec.depth"}


def overrides_of(arguments: list[str]) -> list[str]:
    """`section.key=value` settings pass; known flags become settings; anything else is a ConfigError."""
    known = {alias.flag: alias for alias in ALIASES}
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("-"):
            overrides.append(flag + equals + value)
        elif (alias := known.get(flag)) is not None and alias.value is not None:
            overrides.append(f"{alias.key}={alias.value}")
        else:
            overrides += _valued(flag, value if equals else _next(flag, rest), known)
    return overrides


def _valued(flag: str, value: str, known: dict[str, Alias]) -> list[str]:
    if flag in known:
        return [f"{known[flag].key}={value}"]
    if flag in _ONLY:
        if value.upper() not in _ONLY[flag]:
            raise ConfigError(f"{flag} {value} is not offered; Aerie serves {flag} {_ONLY[flag][0]}")
        return []
    if flag == "--speculative-config":
        return _speculative(value)
    raise ConfigError(
        f"unknown flag {flag}; docs/coming-from.md lists those that are known, settings are section.key=value"
    )


def _speculative(text: str) -> list[str]:
    """vLLM's JSON: `method` eagle3, `model`, `num_speculative_tokens`; a chain of that many."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config is not JSON: {error}") from None
    if given.pop("method", "eagle3") != "eagle3":
        raise ConfigError("--speculative-config: the method must be eagle3")
    unknown = set(given) - set(_CONFIG_KEYS)
    if unknown:
        raise ConfigError(
            f"--speculative-config: {', '.join(sorted(unknown))} is not offered; known: {', '.join(_CONFIG_KEYS)}"
        )
    overrides = [f"{_CONFIG_KEYS[key]}={value}" for key, value in given.items()]
    if "num_speculative_tokens" in given:
        overrides += ["spec.topk=1", f"spec.nodes={int(given['num_speculative_tokens']) + 1}"]
    return overrides


def _next(flag: str, rest: list[str]) -> str:
    if not rest:
        raise ConfigError(f"{flag} needs a value")
    return rest.pop(0)
