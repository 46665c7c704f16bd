"""From what a person names (a config file, a folder, a hub id) to a config whose model and head are folders on this
machine.
"""

import sys
from pathlib import Path
from typing import Any

from aerie.hub import fetch, is_hub_id
from contracts.config import Config, load_config, parse_config
from contracts.errors import ConfigError


def resolve_config(target: str, overrides: list[str]) -> Config:
    """A YAML file is read; a folder or a hub id is served with default settings. Overrides come last."""
    if target.endswith((".yaml", ".yml")):
        return load_config(Path(target), overrides)
    return load_config(None, [f"model.path={target}", *overrides])


def with_local_model(config: Config) -> Config:
    """The same config with `model.path` and `spec.head` folders; hub ids are fetched. Raises ConfigError."""
    name = config.model.path
    if not name:
        raise ConfigError("model.path is empty; name a model folder or a hub id ORG/MODEL", param="model.path")
    folder, called = Path(name), Path(name).resolve().name
    if not folder.is_dir():
        if not is_hub_id(name):
            raise ConfigError(f"no model folder at {name}, and it is no hub id ORG/MODEL either", param="model.path")
        folder = fetch(name, config.model.revision, offline=config.model.offline, param="model.path")
        called = name
    data = config.model_dump()
    data["model"]["path"] = str(folder)
    data["model"]["served_name"] = config.model.served_name or called
    data["spec"]["head"] = _local_head(config, folder, name)
    return parse_config(data)


def _local_head(config: Config, target: Path, name: str) -> str:
    """The head's folder, or what the config says where there is nothing to fetch. A head that `auto` finds in
    configs/head and cannot get is done without; one that was named is an error.
    """
    from spec.registry import head_of, locate, read_pairs

    wanted = config.spec.head
    if wanted == "none" or config.engine.kind != "native":
        return wanted
    if wanted == "auto":
        found = head_of((name, config.model.served_name or ""), _shape(target), read_pairs())
        if found is None or locate(found) is not None:
            return found or wanted
        try:
            return str(_fetch_head(config, found))
        except ConfigError as error:
            print(f"aerie: decoding without speculation: {error.message}", file=sys.stderr)
            return "none"
    if locate(wanted) is None and is_hub_id(wanted):
        return str(_fetch_head(config, wanted))
    return wanted


def _fetch_head(config: Config, head: str) -> Path:
    return fetch(head, config.spec.revision, offline=config.model.offline, param="spec.head")


def _shape(target: Path) -> Any:
    from engine.model_config import read_model_config

    return read_model_config(target)
