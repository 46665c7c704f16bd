"""An assistant's turn in OpenAI's shapes: whole as a `message`, in pieces as `delta`s.

Reasoning has two names, `reasoning` and `reasoning_content`: some clients read only the one, some only the other.
"""

from collections.abc import Iterable
from typing import Any

from aerie.server.parsing.regions import CallArguments, CallClosed, CallOpened, Content, Event, message_of

Json = dict[str, Any]


def message_data(events: Iterable[Event]) -> Json:
    message = message_of(events)
    content = None if message.calls and not message.content else message.content
    data: Json = {"role": "assistant", "content": content, "refusal": None}
    if message.reasoning:
        data |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
    if message.calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return data


def delta_data(event: Event) -> Json | None:
    """None for an event that a delta does not show."""
    if isinstance(event, Content):
        return {"content": event.text}
    if isinstance(event, CallOpened):
        function = {"name": event.name, "arguments": ""}
        return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
    if isinstance(event, CallArguments):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    if isinstance(event, CallClosed):
        return None
    return {"reasoning": event.text, "reasoning_content": event.text}


def finish_reason(reason: str | None, calls: int) -> str | None:
    """A cut answer is `length` even if it called tools."""
    return "tool_calls" if reason == "stop" and calls else reason
