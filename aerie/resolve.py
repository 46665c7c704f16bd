"""From what a person names (a config file, a folder, a hub id) to a config whose model is a folder on this machine."""

import re
from pathlib import Path

from contracts.config import Config, load_config, parse_config
from contracts.errors import ConfigError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
"""Nothing else is fetched: no pickles, no code."""


def resolve_config(target: str, overrides: list[str]) -> Config:
    """A YAML file is read; a folder or a hub id is served with default settings. Overrides come last."""
    if target.endswith((".yaml", ".yml")):
        return load_config(Path(target), overrides)
    return load_config(None, [f"model.path={target}", *overrides])


def with_local_model(config: Config) -> Config:
    """The same config with `model.path` a folder; hub ids are downloaded, or found in the local cache when offline."""
    name = config.model.path
    if not name:
        raise ConfigError("model.path is empty; name a model folder or a hub id ORG/MODEL", param="model.path")
    folder, called = Path(name), Path(name).resolve().name
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(name):
            raise ConfigError(f"no model folder at {name}, and it is no hub id ORG/MODEL either", param="model.path")
        folder, called = _download(name, config.model.revision), name
    data = config.model_dump()
    data["model"]["path"] = str(folder)
    data["model"]["served_name"] = config.model.served_name or called
    return parse_config(data)


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_WANTED)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"{name} is no folder here, and the hub did not give it: {error}. Without network, serve a local folder",
            param="model.path",
        ) from None
