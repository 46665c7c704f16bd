"""Checks whether this Aerie has been tested with the installed SGLang. Called before any of SGLang is imported.

SGLang's internals change from release to release, so nothing runs on an untested one: its model files run only on
NEWEST; its whole engine, whose interface is nearly stable, runs on OLDEST to NEWEST.
"""

import importlib.metadata
import re
import sys

from aerie.contracts.errors import ConfigError

OLDEST = (0, 5, 17)
NEWEST = (0, 5, 23)


def engine_release() -> str:
    """The installed release if it supports `engine.kind: sglang`, else a ConfigError that says how to get one."""
    return _within(OLDEST, "sglang")


def model_release() -> str:
    """The installed release if it supports `engine.kind: sglang-model`, else a ConfigError that says how to get one."""
    return _within(NEWEST, "sglang-model")


def installed_release() -> str:
    """The version from the installed package's metadata. Raises ConfigError if SGLang is not installed."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"SGLang is not installed in {sys.prefix}, and engine.kind asks for it; `make setup-sglang` makes "
            f".venv-sglang, whose `.venv-sglang/bin/aerie serve` takes the same words; engine.kind=native needs none",
            param="engine.kind",
        ) from None


def written(release: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in release)


def _within(oldest: tuple[int, ...], kind: str) -> str:
    version = installed_release()
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not oldest <= found <= NEWEST:
        wanted = written(NEWEST) if oldest == NEWEST else f"{written(oldest)} to {written(NEWEST)}"
        raise ConfigError(
            f"SGLang {version} is installed in {sys.prefix}; engine.kind {kind} runs on {wanted}: `make setup-sglang` "
            f"installs {written(NEWEST)} into an environment of its own",
            param="engine.kind",
        )
    return version
