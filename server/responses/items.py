"""The items of a response as they grow out of its answer's regions: reasoning, a message, calls of functions.

Used for streams and for whole answers alike. Every method returns the events that it caused, without their numbers. At
most one item is open; it is closed when another kind of region begins, or when the answer ends.
"""

import uuid
from collections.abc import Iterable
from typing import Any, Literal

from aerie.server.parsing.regions import CallArguments, CallClosed, CallOpened, Content, Event, Reasoning

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class _Item:
    """One item, open at `index` of the output."""

    prefix = ""

    def __init__(self, index: int) -> None:
        self.id = f"{self.prefix}_{uuid.uuid4().hex}"
        self.index = index
        self.text = ""

    def opened(self) -> list[Json]:
        return [self._item_event("added", "in_progress")]

    def added(self, piece: str) -> Json:
        self.text += piece
        return self._event(f"{self.region}.delta", delta=piece)

    def closed(self, status: Status) -> list[Json]:
        return [self._item_event("done", status)]

    def data(self, status: Status) -> Json:
        raise NotImplementedError

    @property
    def region(self) -> str:
        raise NotImplementedError

    def _item_event(self, what: str, status: Status) -> Json:
        return {"type": f"response.output_item.{what}", "output_index": self.index, "item": self.data(status)}

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **fields}


class _Text(_Item):
    """An item with one part of text."""

    def opened(self) -> list[Json]:
        return [*super().opened(), self._event("content_part.added", content_index=0, part=self._part())]

    def closed(self, status: Status) -> list[Json]:
        return [
            self._event(f"{self.region}.done", content_index=0, **self._finished()),
            self._event("content_part.done", content_index=0, part=self._part()),
            *super().closed(status),
        ]

    def added(self, piece: str) -> Json:
        return super().added(piece) | {"content_index": 0}

    def _part(self) -> Json:
        raise NotImplementedError

    def _finished(self) -> Json:
        return {"text": self.text}

    def _content(self, status: Status) -> list[Json]:
        return [] if status == "in_progress" else [self._part()]


class ReasoningText(_Text):
    prefix = "rs"
    region = "reasoning_text"

    def data(self, status: Status) -> Json:
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [],
            "content": self._content(status),
            "status": status,
        }

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


class MessageText(_Text):
    prefix = "msg"
    region = "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.logprobs: list[Json] = []
        self._sent = 0

    def added(self, piece: str) -> Json:
        fresh = self.logprobs[self._sent :]
        self._sent = len(self.logprobs)
        return super().added(piece) | {"logprobs": fresh}

    def data(self, status: Status) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": self._content(status),
        }

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self.logprobs]}

    def _finished(self) -> Json:
        return {"text": self.text, "logprobs": [*self.logprobs]}


class FunctionCall(_Item):
    prefix = "fc"
    region = "function_call_arguments"

    def __init__(self, index: int, call: CallOpened) -> None:
        super().__init__(index)
        self._call = call

    def closed(self, status: Status) -> list[Json]:
        done = self._event(f"{self.region}.done", name=self._call.name, arguments=self.text)
        return [done, *super().closed(status)]

    def data(self, status: Status) -> Json:
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self._call.id,
            "name": self._call.name,
            "arguments": self.text,
            "status": status,
        }


class Items:
    def __init__(self) -> None:
        self._open: ReasoningText | MessageText | FunctionCall | None = None
        self._closed: list[Json] = []
        self._logprobs: list[Json] = []
        """Of tokens whose text has not come yet."""

    def take(self, regions: Iterable[Event], logprobs: list[Json]) -> list[Json]:
        """Takes the regions of one step; `logprobs` are of its tokens, and go with the message's text."""
        self._logprobs += logprobs
        return [event for region in regions for event in self._take(region)]

    def end(self, *, cut: bool) -> list[Json]:
        """Closes what is open. An answer without any text is an empty message."""
        events = []
        if self._open is None and not self._closed:
            events = self._begin(MessageText(0))
        if isinstance(self._open, MessageText):
            self._give_logprobs(self._open)
        return events + self._close("incomplete" if cut else "completed")

    def output(self) -> list[Json]:
        """The items so far; the open one is incomplete."""
        return self._closed + ([self._open.data("incomplete")] if self._open is not None else [])

    def _take(self, region: Event) -> list[Json]:
        match region:
            case Content(text):
                return self._add_text(MessageText, text)
            case Reasoning(text):
                return self._add_text(ReasoningText, text)
            case CallOpened():
                return self._close("completed") + self._begin(FunctionCall(len(self._closed), region))
            case CallArguments(text=text):
                assert isinstance(self._open, FunctionCall)
                return [self._open.added(text)]
            case CallClosed():
                return self._close("completed" if region.complete else "incomplete")

    def _add_text(self, kind: type[MessageText] | type[ReasoningText], text: str) -> list[Json]:
        events = []
        if not isinstance(self._open, kind):
            events = self._close("completed")
            events += self._begin(kind(len(self._closed)))
        assert self._open is not None
        if isinstance(self._open, MessageText):
            self._give_logprobs(self._open)
        else:
            self._logprobs.clear()
        return [*events, self._open.added(text)]

    def _give_logprobs(self, message: MessageText) -> None:
        message.logprobs += self._logprobs
        self._logprobs = []

    def _begin(self, item: ReasoningText | MessageText | FunctionCall) -> list[Json]:
        self._open = item
        return item.opened()

    def _close(self, status: Status) -> list[Json]:
        item, self._open = self._open, None
        if item is None:
            return []
        self._closed.append(item.data(status))
        return item.closed(status)
