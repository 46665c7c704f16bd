"""Keywords of `LLM(...)`: settings, and the flags of aerie/aliases.py as keywords of vLLM's and SGLang's classes."""

import json
import re
from typing import Any

from aerie.aliases import ALIASES, overrides_of
from aerie.contracts.errors import ConfigError

_FLAG = re.compile(r"--([a-z][a-z-]*)")


def overrides_of_keywords(given: dict[str, Any]) -> list[str]:
    """`section__key=value` sets a setting; `max_model_len=4096` means `--max-model-len 4096`. None counts as not given,
    and so does False unless the flag has a `--no-` form. Raises ConfigError.
    """
    overrides: list[str] = []
    for name, value in given.items():
        if "__" in name:
            overrides.append(f"{name.replace('__', '.')}={json.dumps(value, default=str)}")
        elif (words := _flag(name, value)) is not None:
            try:
                overrides += overrides_of([words])
            except ConfigError as error:
                said = _FLAG.sub(lambda found: found[1].replace("-", "_"), error.message)
                raise ConfigError(said.replace("section.key=value", "section__key=value")) from None
    return overrides


def _flag(name: str, value: Any) -> str | None:
    known = {alias.flag: alias for alias in ALIASES}
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return None
    if value is False:
        contrary = f"--no-{flag.removeprefix('--')}"
        return contrary if contrary in known else None
    if value is True and (flag not in known or known[flag].value is not None):
        return flag
    return f"{flag}={value if isinstance(value, str) else json.dumps(value, default=str)}"
