"""Prints the message for a ready server: its address, its sizes, and two ways to send it a request."""

import json
from collections.abc import Callable

from aerie.contracts.config import Config, masked
from aerie.contracts.messages import Ready

_QUESTION = "Count from 20 to 60 in steps of 2."
_TEXT = """
Aerie serves {name} at {url}
{report}
{settings}

curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\
  -d '{{"model": "{name}", "temperature": 0, "messages": [{{"role": "user", "content": "{question}"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
messages = [{{"role": "user", "content": "{question}"}}]
answer = client.chat.completions.create(model="{name}", messages=messages, temperature=0)
print(answer.choices[0].message.content)
"""


def announce(config: Config) -> Callable[[Ready, str], None]:
    def say(ready: Ready, url: str) -> None:
        report = "\n".join(f"  {key:<18} {_shown(key, value)}" for key, value in ready.report.items())
        fields = {"report": report, "settings": _settings(config), "url": url, "name": config.model.served_name}
        header, key = ("", "none") if config.server.api_key is None else (" -H 'Authorization: Bearer KEY'", "KEY")
        print(_TEXT.format(question=_QUESTION, header=header, key=key, **fields), flush=True)

    return say


def _settings(config: Config) -> str:
    """One line per section: the settings that differ from the defaults, secrets masked. /config shows all."""
    said, usual = masked(config), masked(Config())
    lines = []
    for section, values in said.items():
        other = [f"{key}={json.dumps(value)}" for key, value in values.items() if value != usual[section][key]]
        if other:
            lines.append(f"  {section + '.*':<18} {' '.join(other)}")
    return "\n".join(lines)


def _shown(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**20:.1f} MiB"
    if key.endswith("_share") and isinstance(value, float):
        return f"{100 * value:.1f} %"
    return str(value)
