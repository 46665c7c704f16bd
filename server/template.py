"""Renders messages into a prompt with the model's own chat template, sandboxed: a template is somebody else's program."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from contracts.errors import BadRequest, ConfigError

_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A template with the meaning that transformers gives it: trimmed blocks, `raise_exception`, `strftime_now`, special tokens."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template cannot be parsed: {error}", param="server.chat_template") from None
        self._special = special

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        """Raises BadRequest where the template refuses the messages."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special
            )
        except (TemplateError, TypeError, AttributeError, KeyError, ValueError) as error:
            raise BadRequest(f"the chat template refused the messages: {error}", param="messages") from None


def load_template(folder: Path, override: str | None) -> ChatTemplate | None:
    """The template of `override`, `chat_template.jinja` or `tokenizer_config.json`, in that order; None where there is none."""
    config_path = folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
    special = {name: text for name in _TOKENS if (text := _token_text(config.get(name))) is not None}
    if override is not None:
        if not Path(override).exists():
            raise ConfigError(f"no chat template at {override}", param="server.chat_template")
        return ChatTemplate(Path(override).read_text(encoding="utf-8"), special)
    if (folder / "chat_template.jinja").exists():
        return ChatTemplate((folder / "chat_template.jinja").read_text(encoding="utf-8"), special)
    source = config.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    return ChatTemplate(source, special) if source else None


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
