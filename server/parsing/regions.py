"""The regions of an answer: reasoning, content, tool calls. A parser yields them as events while the text grows.

`choice` collects the events of a step in `Delta.events`. The encoders of chats and of responses read them; how the text
was cut into steps changes where pieces are cut, never what they say. The events of an answer:

* any number of `Reasoning` and `Content`, each the next piece of its region;
* for each call one `CallOpened`, any number of `CallArguments` (JSON text), one `CallClosed`. The calls of an answer
  have the indices 0, 1, ...; a call is closed before the next region begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments. The pieces of a call, concatenated, are its JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """`complete` is False if the answer ended inside the call; its arguments are then cut too."""

    index: int
    complete: bool


Event = Reasoning | Content | CallOpened | CallArguments | CallClosed


def add(events: list[Event], event: Event) -> None:
    """Appends an event, or merges it into the last one if that is a piece of the same region."""
    last = events[-1] if events else None
    if isinstance(event, Content) and isinstance(last, Content):
        events[-1] = Content(last.text + event.text)
    elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
        events[-1] = Reasoning(last.text + event.text)
    elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
        events[-1] = CallArguments(last.index, last.text + event.text)
    else:
        events.append(event)


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Message:
    """A whole answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)


def message_of(events: Iterable[Event]) -> Message:
    message = Message()
    for event in events:
        if isinstance(event, Reasoning):
            message.reasoning += event.text
        elif isinstance(event, Content):
            message.content += event.text
        elif isinstance(event, CallOpened):
            message.calls.append(Call(event.id, event.name))
        elif isinstance(event, CallArguments):
            message.calls[event.index].arguments += event.text
        else:
            message.calls[event.index].complete = event.complete
    return message


class AnswerParser:
    """Yields an answer's text as content. The base of the parsers that know more regions."""

    calls = 0
    """Calls opened so far."""
    failures = 0
    """Markers of calls that no call followed, and calls whose arguments are not JSON."""
    reasoning = False
    """Whether the text so far ends inside reasoning."""
    ended = False
    """The request wants nothing more, such as a second call with `parallel_tool_calls: false`."""

    def feed(self, text: str) -> list[Event]:
        """Takes the next piece of text; returns what is final now."""
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        """Returns what was held back, at the end of the answer."""
        return []
