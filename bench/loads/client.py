"""One conversation with a server, turn by turn, like a real client: streamed, timed, and retried after a refusal."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from aerie.bench.loads.workloads import Conversation
from aerie.bench.measured import Measured

RETRIES = 5
"""Attempts after a 429 or 503 before a request counts as failed."""
_LONGEST_WAIT = 30.0
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 8.0
"""Seconds to wait after a refusal that does not say how long."""
_TOTAL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go and what each of them has besides its messages."""

    url: str
    """Base, without /v1."""
    model: str
    api_key: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


class Truncated(Exception):
    """A stream that ended without its last event."""


def open_session() -> aiohttp.ClientSession:
    """A session with unlimited connections and no time limit except the request's own."""
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**18)


async def converse(session: aiohttp.ClientSession, at: Endpoint, talk: Conversation, *, seed: int) -> list[Measured]:
    """One result per turn; a failed turn ends the conversation."""
    messages = [{"role": "system", "content": talk.system}] if talk.system else []
    extra: dict[str, Any] = json.loads(talk.fields or "{}")
    results = []
    for turn in talk.turns:
        messages.append({"role": "user", "content": turn})
        body = {"messages": messages, "max_tokens": talk.max_tokens, "seed": seed, **extra, **at.fields}
        results.append(one := await ask(session, at, body))
        if one.error is not None:
            break
        messages.append({"role": "assistant", "content": one.text})
    return results


async def ask(session: aiohttp.ClientSession, at: Endpoint, body: dict[str, Any]) -> Measured:
    """Sends until the server accepts it or `RETRIES` are used up. Never raises: a failure is a result with an error."""
    result = Measured(sent=time.monotonic())
    body = {"model": at.model, "stream": True, "stream_options": {"include_usage": True}, **body}
    headers = {} if at.api_key is None else {"authorization": f"Bearer {at.api_key}"}
    try:
        async with asyncio.timeout(_TOTAL_SECONDS):
            while (wait := await _attempt(session, at, body, headers, result)) is not None:
                result.retries += 1
                if result.retries > RETRIES:
                    result.error = "refused"
                    break
                await asyncio.sleep(wait)
    except TimeoutError:
        result.error = "timeout"
    except (Truncated, aiohttp.ClientPayloadError):  # the latter: the connection broke within the answer
        result.error = "truncated"
    except (aiohttp.ClientError, ConnectionError) as error:
        result.error = type(error).__name__
    result.ended = time.monotonic()
    return result


async def _attempt(
    session: aiohttp.ClientSession, at: Endpoint, body: dict[str, Any], headers: dict[str, str], result: Measured
) -> float | None:
    """Fills `result` and returns None, or returns the seconds to wait before the next attempt. That has a connection of
    its own.
    """
    async with AsyncExitStack() as stack:
        if result.retries:  # of those that are kept alive the server may have closed others too
            session = await stack.enter_async_context(open_session())
        try:
            opened = await session.post(f"{at.url}/v1/chat/completions", json=body, headers=headers)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if result.retries:
                raise
            return 0.0  # the server closed a kept-alive connection just as this request came
        answer = await stack.enter_async_context(opened)
        if answer.status in (429, 503):
            return min(_retry_after(answer.headers.get("retry-after"), result.retries), _LONGEST_WAIT)
        if answer.status != 200:
            result.error = f"http {answer.status}"
            return None
        async for event in _events(answer):
            _take(event, result)
            if result.error is not None:
                return None
    if not result.tokens and not result.prompt_tokens:
        result.error = "no usage"  # without the server's own token count no figure is valid
    elif not result.pieces:
        result.pieces.append(time.monotonic())  # an answer without text has its end as its only piece
    return None


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events up to [DONE]. Raises Truncated if the stream ends earlier."""
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            yield json.loads(data)
        except json.JSONDecodeError:
            raise Truncated from None
    raise Truncated


def _take(event: dict[str, Any], result: Measured) -> None:
    now = time.monotonic()
    if "error" in event:
        result.error = "stream error"
        return
    text = "".join(_text(choice.get("delta") or {}) for choice in event.get("choices") or ())
    if text:
        result.pieces.append(now)
        result.text += text
    usage = event.get("usage")
    if usage:
        result.tokens = usage.get("completion_tokens") or 0
        result.prompt_tokens = usage.get("prompt_tokens") or 0
        result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        result.speculation = usage.get("speculation")


def _text(delta: dict[str, Any]) -> str:
    """Content, and the names and arguments of calls."""
    functions = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    calls = "".join((one.get("name") or "") + (one.get("arguments") or "") for one in functions)
    return (delta.get("content") or "") + calls


def _retry_after(given: str | None, retries: int) -> float:
    """Seconds to wait, from either form of the header: seconds or a date.

    Without one, backs off as the official clients do: twice as long each time, up to a limit, with jitter.
    """
    try:
        return max(0.0, float(given or ""))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(given or "") - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # neither form, or a date without a zone
        return min(_FIRST_BACKOFF * 2.0**retries, _LONGEST_BACKOFF) * random.uniform(0.75, 1.0)
