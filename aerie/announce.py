"""What a person sees when the server is ready: its address, what it holds, and two ways to talk to it."""

from collections.abc import Callable

from contracts.config import Config
from contracts.messages import Ready

_QUESTION = "What does textwrap.dedent do?"
_TEXT = """
Aerie serves {name} at {url}
{report}

curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{name}", "temperature": 0, "messages": [{{"role": "user", "content": "{question}"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
messages = [{{"role": "user", "content": "{question}"}}]
answer = client.chat.completions.create(model="{name}", messages=messages, temperature=0)
print(answer.choices[0].message.content)
"""


def announce(config: Config) -> Callable[[Ready, str], None]:
    def say(ready: Ready, url: str) -> None:
        report = "\n".join(f"  {key:<18} {_shown(key, value)}" for key, value in ready.report.items())
        print(_TEXT.format(question=_QUESTION, name=config.model.served_name, url=url, report=report), flush=True)

    return say


def _shown(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**20:.1f} MiB"
    if key.endswith("_share") and isinstance(value, float):
        return f"{100 * value:.1f} %"
    return str(value)
