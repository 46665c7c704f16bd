"""Hashes that identify a target and its chat template: training writes them into a head's card, and serving compares
them.

Used by `train` (the stages and the card), `spec` (`spec.require_provenance`) and the server's tokenizer, so that all of
them read the same template. No torch.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from aerie.contracts.errors import ConfigError

_BLOCK = 1 << 22


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def weights_hash(folder: Path) -> str:
    """sha256 of a model's weights: of its one safetensors file, or of the lines `name hash` if there are several files.

    Raises ConfigError if the folder has none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"no safetensors in {folder}: there are no weights to identify")
    if len(files) == 1:
        return file_hash(files[0])
    lines = "".join(f"{path.name} {file_hash(path)}\n" for path in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def template_source(folder: Path, replacement: Path | None = None) -> str | None:
    """The chat template that is served: the replacement, else the template in the model's folder; None if there is
    none.

    Raises ConfigError on files that are missing or cannot be read.
    """
    if replacement is not None:
        if not replacement.is_file():
            raise ConfigError(f"no chat template at {replacement}", param="server.chat_template")
        return replacement.read_text(encoding="utf-8")
    return _templates(folder).get("default")


def tool_template_source(folder: Path, replacement: Path | None = None) -> str | None:
    """The template of chats with tools, if the model has one for them alone; a replacement serves all chats."""
    return None if replacement is not None else _templates(folder).get("tool_use")


def _templates(folder: Path) -> dict[str, str]:
    """A model's templates by name, from files of their own or else from `tokenizer_config.json`. Most models have one,
    `default`.
    """
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    source = tokenizer_settings(folder).get("chat_template")
    if isinstance(source, list):
        return {entry["name"]: entry["template"] for entry in source}
    return {} if source is None else {"default": source}


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; empty if there is none. Raises ConfigError if it is not JSON."""
    path = folder / "tokenizer_config.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", param="model.path") from None
    return found


def template_hash(source: str | None) -> str:
    """sha256 of a template's text; `none` if there is no template."""
    return "none" if source is None else hashlib.sha256(source.encode()).hexdigest()
