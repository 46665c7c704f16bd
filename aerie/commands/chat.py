"""`aerie chat`: a conversation with a running server in the terminal, over the public API."""

import sys
import time
from collections.abc import Callable

from openai import APIConnectionError, APIError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.completion_usage import CompletionUsage
from rich.console import Console

from aerie.contracts.errors import AerieError

_LEAVE = ("/quit", "/exit")


def converse(url: str, *, temperature: float, api_key: str, drafted: bool = False) -> None:
    """Reads questions until /quit, Ctrl-C or the end of input. Shows errors of the server and continues.

    `url` is a server's URL, with or without http:// and /v1. With `drafted`, drafted text is green and the target's
    bonus tokens are not.
    """
    url = url.rstrip("/").removesuffix("/v1")
    url = url if "://" in url else f"http://{url}"
    console = Console(highlight=False)
    client = OpenAI(base_url=f"{url}/v1", api_key=api_key)
    try:
        model = client.models.list().data[0].id
    except APIConnectionError:
        raise AerieError(f"no server at {url}; start one with `make serve`, or name another with --url") from None
    except APIError as error:
        raise AerieError(f"{url} answers: {error}") from None
    console.print(f"{model} at {url}; /quit leaves", style="dim")
    messages: list[ChatCompletionMessageParam] = []
    ask = _reader()
    while True:
        try:
            question = ask("> ").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if question in _LEAVE:
            return
        if not question:
            continue
        messages.append({"role": "user", "content": question})
        try:
            answer = _answer(console, client, model, messages, temperature, drafted)
        except (APIError, KeyboardInterrupt) as error:
            console.print(f"\n{error}" if isinstance(error, APIError) else "\nstopped", style="red", markup=False)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _reader() -> Callable[[str], str]:
    """Returns the function that reads a question: in a terminal with line editing and a history."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  # input() uses it from now on
    return input


def _answer(
    console: Console,
    client: OpenAI,
    model: str,
    messages: list[ChatCompletionMessageParam],
    temperature: float,
    drafted: bool,
) -> str:
    began = time.monotonic()
    parts: list[str] = []
    usage: CompletionUsage | None = None
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=temperature,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"speculation": {"spans": True}} if drafted else None,
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            for text, guessed in (choice.model_extra or {}).get("spans") or [(parts[-1], False)]:
                console.print(text, end="", markup=False, style="green" if guessed else None)
    console.print()
    if usage is not None:
        console.print(_summary(usage, time.monotonic() - began), style="dim")
    return "".join(parts)


def _summary(usage: CompletionUsage, seconds: float) -> str:
    """Tokens per second, and the acceptance length."""
    speed = f"{usage.completion_tokens} tokens, {usage.completion_tokens / seconds:.0f} a second"
    speculation = (usage.model_extra or {}).get("speculation") or {}
    length = speculation.get("acceptance_length")
    return f"{speed}, acceptance length {length:.2f}" if length else speed
