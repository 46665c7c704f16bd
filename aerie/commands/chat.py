"""`aerie chat`: a conversation with a running server in the terminal, over the public API."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openai import APIConnectionError, APIError, OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from openai.types.completion_usage import CompletionUsage
from rich.console import Console

from aerie.contracts.errors import AerieError

_LEAVE = ("/quit", "/exit")

Tools = list[ChatCompletionFunctionToolParam]


def read_tools(path: Path) -> Tools:
    """The functions in a JSON file: a list of them, with or without the object around each. Raises AerieError."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AerieError(f"{path} cannot be read as JSON: {error}") from None
    listed = read if isinstance(read, list) else [read]
    if not all(isinstance(tool, dict) for tool in listed):
        raise AerieError(f"{path} holds something other than objects; it must be a list of functions")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in listed]


def converse(url: str, *, temperature: float, api_key: str, drafted: bool = False, tools: Sequence[Any] = ()) -> None:
    """Reads questions until /quit, Ctrl-C or the end of input. Shows errors of the server and continues.

    `url` is a server's URL, with or without http:// and /v1. With `drafted`, drafted text is green and the target's
    bonus tokens are not. The model may call `tools`; what they return is read as questions are.
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
        turn: list[Any] = [{"role": "user", "content": question}]
        try:
            while not turn[1:] or turn[-1]["role"] == "tool":
                turn.append(_answer(console, client, model, [*messages, *turn], temperature, drafted, tools))
                for call in turn[-1].get("tool_calls", ()):
                    result = ask(f"{call['function']['name']} returns> ")
                    turn.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        except EOFError:
            return
        except (APIError, KeyboardInterrupt) as error:
            console.print(f"\n{error}" if isinstance(error, APIError) else "\nstopped", style="red", markup=False)
            continue
        messages += turn


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
    tools: Sequence[Any],
) -> dict[str, Any]:
    """Shows an answer while it comes; returns its message."""
    began = time.monotonic()
    parts: list[str] = []
    calls: list[dict[str, Any]] = []
    usage: CompletionUsage | None = None
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=temperature,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=({"speculation": {"spans": True}} if drafted else {}) | ({"tools": list(tools)} if tools else {}),
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            console.print((choice.delta.model_extra or {}).get("reasoning") or "", end="", markup=False, style="dim")
            spans = (choice.model_extra or {}).get("spans") or []
            if "".join(text for text, _ in spans) != parts[-1]:  # spans hold the markup of reasoning and calls too
                spans = [(parts[-1], False)]
            for text, guessed in spans:
                console.print(text, end="", markup=False, style="green" if guessed else None)
            for piece in choice.delta.tool_calls or ():
                _show_call(console, calls, piece)
    console.print()
    if usage is not None:
        console.print(_summary(usage, time.monotonic() - began), style="dim")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(parts)}
    return message | ({"tool_calls": calls} if calls else {})


def _show_call(console: Console, calls: list[dict[str, Any]], piece: ChoiceDeltaToolCall) -> None:
    """Takes a piece of a call: the first has its name, the others more of its arguments."""
    made = piece.function
    if made is None:
        return
    if piece.index == len(calls):
        calls.append({"id": piece.id, "type": "function", "function": {"name": made.name, "arguments": ""}})
        console.print(f"\n{made.name} ", end="", markup=False, style="bold")
    calls[piece.index]["function"]["arguments"] += made.arguments or ""
    console.print(made.arguments or "", end="", markup=False, style="cyan")


def _summary(usage: CompletionUsage, seconds: float) -> str:
    """Tokens per second, and the acceptance length."""
    speed = f"{usage.completion_tokens} tokens, {usage.completion_tokens / seconds:.0f} a second"
    speculation = (usage.model_extra or {}).get("speculation") or {}
    length = speculation.get("acceptance_length")
    return f"{speed}, acceptance length {length:.2f}" if length else speed
