"""Checks a server before any load: whether it answers, serves the model, and accepts one tiny request."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from aerie.bench.config import SweepError, Target
from aerie.bench.targets import base_url

_SECONDS = 60.0
_LONGEST_MESSAGE = 500
_LENGTHS = ("max_tokens", "max_completion_tokens", "min_tokens")
"""Fields that a one-token request must not carry."""


def look_at(target: Target, temperature: float = 0.0) -> str:
    """Returns the model to measure. Raises SweepError that says what is wrong and what to do."""
    url = base_url(target.url or "")
    try:
        served = [str(card["id"]) for card in json.loads(_ask(target, f"{url}/v1/models", None))["data"]]
        model = target.model or served[0]
    except (ValueError, KeyError, TypeError, IndexError):
        raise SweepError(f"{url}/v1/models lists no model; is this a server with OpenAI's API?") from None
    fields = {name: value for name, value in target.fields.items() if name not in _LENGTHS}
    tiny = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": True}
    try:
        answer = _ask(target, f"{url}/v1/chat/completions", {"temperature": temperature} | fields | tiny)
        if b"data:" not in answer:
            raise SweepError("its answer is not an event stream")
        if (failed := answer.find(b'data: {"error"')) >= 0:
            raise SweepError(answer[failed : failed + _LONGEST_MESSAGE].decode(errors="replace"))
    except SweepError as error:
        listed = "" if model in served else f"; it serves {', '.join(served)}, and {model} was asked for (--model)"
        raise SweepError(f"the server does not take a request of one token: {error}{listed}") from None
    return model


def _ask(target: Target, url: str, body: dict[str, Any] | None) -> bytes:
    headers = {"content-type": "application/json"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=_SECONDS) as answer:
            text: bytes = answer.read()
            return text
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise SweepError(f"{url} wants another API key ({error.code}); give --api-key or AERIE_API_KEY") from None
        raise SweepError(f"{url} answers {error.code}: {_message(error)}") from None
    except TimeoutError:
        raise SweepError(f"{url} did not answer within {_SECONDS:.0f} s") from None
    except urllib.error.URLError as error:
        raise SweepError(f"nothing answers at {url}: {error.reason}; start the server, or give its --url") from None
    except (OSError, HTTPException) as error:
        raise SweepError(f"{url} breaks off: {error!r}") from None


def _message(error: urllib.error.HTTPError) -> str:
    """The body's message, in OpenAI's form or as it is."""
    text = error.read(1 << 16).decode(errors="replace")
    try:
        said = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = text.strip() or error.reason
    return str(said)[:_LONGEST_MESSAGE]
