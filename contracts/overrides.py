"""One `section.key=value` laid over a config's data. Called by `config` for each override, in order."""

from collections.abc import Container
from typing import Any

import yaml

from aerie.contracts.errors import ConfigError


def lay_over(data: dict[str, Any], override: str, *, texts: Container[str]) -> str:
    """Changes `data` and returns the key. `texts` are the keys that hold text. Raises ConfigError."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is not an override; write section.key=value, as in spec.depth=5")
    *sections, last = key.split(".")
    node = data
    for section in sections:
        if node.get(section) is None:  # `spec:` with nothing below it
            node[section] = {}
        child = node[section]
        if not isinstance(child, dict):
            raise ConfigError(f"{key!r} goes through {section!r}, which holds a value", param=key)
        node = child
    node[last] = _value(key, text, is_text=key in texts)
    return key


def _value(key: str, text: str, *, is_text: bool) -> Any:
    """Parses YAML. Where text is wanted, a number stays text, as in server.api_key=123. An empty value is rejected: a
    key that an unset shell variable was to give must not leave the server open.
    """
    if is_text and not text.strip():
        raise ConfigError(f"{key} is empty; write {key}=null to unset it", param=key)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{key} is {text!r}, which is not YAML ({problem}); quotes help", param=key) from None
    return text if is_text and isinstance(value, int | float) else value
