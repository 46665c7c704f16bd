"""Resolves a target (a config file, a folder or a hub id) into a config whose model and head are local folders."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aerie.contracts.config import Config, load_config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.places import find
from aerie.contracts.sglang_section import SGLangConfig
from aerie.hub import fetch, is_hub_id

logger = logging.getLogger("aerie.resolve")


def resolve_config(target: str, overrides: list[str]) -> Config:
    """Reads a YAML file, or makes a config with default settings for a folder or a hub id. Overrides apply last."""
    if target.endswith((".yaml", ".yml")):
        return load_config(find(target), overrides)
    return load_config(None, [f"model.path={target}", *overrides])


def with_local_model(config: Config) -> Config:
    """The config with `model.path` and `spec.head` as local folders; fetches hub ids. Raises ConfigError."""
    name = config.model.path
    if not name:
        raise ConfigError("model.path is empty; name a model folder or a hub id ORG/MODEL", param="model.path")
    usual = SGLangConfig()
    said = [f"sglang.{key}" for key, value in config.sglang if value != getattr(usual, key)]
    if config.engine.kind == "native" and said:
        raise ConfigError(
            f"{', '.join(said)} is set and engine.kind is native, which runs on one device; set engine.kind=sglang, "
            "whose engine spreads a model over ranks and machines, or leave it out",
            param="sglang",
        )
    if config.engine.kind != "native" and config.model.quantization != "none":
        raise ConfigError(
            f"model.quantization is {config.model.quantization}, which rounds Aerie's own models, and engine.kind is "
            f"{config.engine.kind}; set model.quantization=none and, with engine.kind=sglang, "
            "sglang.arguments.quantization to one that SGLang has",
            param="model.quantization",
        )
    folder = find(name)
    called = folder.resolve().name
    if not folder.is_dir():
        if not is_hub_id(name):
            raise ConfigError(f"no model folder at {name}, and it is not a hub id ORG/MODEL either", param="model.path")
        folder = fetch(name, config.model.revision, offline=config.model.offline, param="model.path")
        called = name
    data = config.model_dump(exclude_unset=True)  # keeps unset settings unset: SGLang's engine tells them apart
    data["model"] |= {"path": str(folder), "served_name": config.model.served_name or called}
    head = _local_head(config, folder, name)
    if config.engine.kind == "sglang":
        head = _found_head(head)
    data["spec"] = data.get("spec", {}) | {"head": head}
    return parse_config(data)


def _local_head(config: Config, target: Path, name: str) -> str:
    """The head's folder, or the config's value if nothing must be fetched. If a head that `auto` found in configs/head
    cannot be fetched, the target is served without it; for a head that was named, this is an error.
    """
    from aerie.spec.checkpoints.registry import head_of, read_pairs

    wanted = config.spec.head
    if wanted == "none":
        return wanted
    if wanted == "auto":
        found = head_of((name, config.model.served_name or ""), _shape(target, config.engine.kind), read_pairs())
        if found is None:
            logger.info("decoding without speculation: no head is registered for %s; spec.head names one", name)
            return "none"
        if _is_here(config, found):
            return found
        try:
            return str(_fetch_head(config, found))
        except ConfigError as error:
            logger.warning("decoding without speculation: %s", error.message)
            return "none"
    if not _is_here(config, wanted) and is_hub_id(wanted):
        return str(_fetch_head(config, wanted))
    return wanted


def _is_here(config: Config, head: str) -> bool:
    """Whether nothing must be fetched. A requested revision is always looked up, whatever the cache holds."""
    from aerie.spec.checkpoints.registry import locate

    if config.spec.revision is not None and is_hub_id(head) and not Path(head).is_dir():
        return False
    return locate(head) is not None


def _fetch_head(config: Config, head: str) -> Path:
    if not is_hub_id(head):
        raise ConfigError(f"the registered head, {head}, is not there; spec.head names another", param="spec.head")
    return fetch(head, config.spec.revision, offline=config.model.offline, param="spec.head")


def _found_head(head: str) -> str:
    """The head's folder for SGLang's engine, which does not know Aerie's folders; `auto` without a pair is `none`."""
    from aerie.spec.checkpoints.registry import locate

    if head in ("none", "auto"):
        return "none"
    folder = locate(head)
    if folder is None:
        raise ConfigError(
            f"spec.head is {head!r}, and there is no such folder; or set spec.head=none", param="spec.head"
        )
    return str(folder.resolve())


def _shape(target: Path, kind: str) -> Any:
    """The shape by which a pair is found; for architectures that only SGLang supports, just the sizes."""
    if kind == "native":
        from aerie.engine.model.config import read_model_config

        return read_model_config(target)
    try:
        data = json.loads((target / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config.json in {target}; a model folder has one", param="model.path") from None
    text = data.get("text_config") or data
    return SimpleNamespace(
        architecture=(data.get("architectures") or ["(none)"])[0],
        hidden_size=text.get("hidden_size"),
        layers=text.get("num_hidden_layers"),
        vocabulary=text.get("vocab_size"),
    )
