"""A response as a stream of events: numbered without gaps, the first `response.created`, the last one that ends it.

One of the encoders that `openai.events` takes. However an answer ends, exactly one event says so: `response.completed`,
`response.incomplete` or `response.failed`, each with the whole response.
"""

from typing import TYPE_CHECKING

import msgspec

from aerie.contracts.errors import AerieError
from aerie.server.openai.generation import Generation, News
from aerie.server.responses.items import Items, Json

if TYPE_CHECKING:
    from aerie.server.responses.resource import ResponseAnswer


class ResponseEncoder:
    def __init__(self, answer: "ResponseAnswer", generation: Generation) -> None:
        self._answer = answer
        self._generation = generation
        self._items = Items()
        self._number = 0

    def opening(self) -> bytes:
        begun = self._answer.begun()
        return self._frames([{"type": f"response.{what}", "response": begun} for what in ("created", "in_progress")])

    def news(self, news: News) -> bytes:
        events: list[Json] = []
        for _, delta in news:
            events += self._items.take(delta.events, self._answer.logprobs(delta))
        return self._frames(events)

    def ending(self) -> bytes:
        choice = self._generation.choices[0]
        events = self._items.end(cut=choice.finish_reason == "length")
        response = self._answer.ended(self._items, choice, self._generation.usage())
        return self._frames([*events, {"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: AerieError) -> bytes:
        return self._frames([{"type": "response.failed", "response": self._answer.failed(self._items, error)}])

    def _frames(self, events: list[Json]) -> bytes:
        """Numbers the events when they are sent, so that those of a step that failed leave no gap."""
        first, self._number = self._number, self._number + len(events)
        return b"".join(_frame(event | {"sequence_number": first + place}) for place, event in enumerate(events))


def _frame(event: Json) -> bytes:
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
