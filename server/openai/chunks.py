"""A stream of chunks, as chats and completions send it: `data: ` and one JSON chunk an event.

One of the encoders that `events` takes; made by `answers`.
"""

from typing import TYPE_CHECKING

import msgspec

from aerie.contracts.errors import AerieError
from aerie.server.http.problems import error_data
from aerie.server.openai.generation import Generation, News

if TYPE_CHECKING:
    from aerie.server.openai.answers import Answers


class ChunkEncoder:
    def __init__(self, answers: "Answers", generation: Generation) -> None:
        self._answers = answers
        self._generation = generation
        self._finished: set[int] = set()

    def opening(self) -> bytes:
        openings = [self._answers.opening(choice) for choice in self._generation.choices]
        return b"".join(_frame(opening) for opening in openings if opening is not None)

    def news(self, news: News) -> bytes:
        frames: list[bytes] = []
        for choice, delta in news:
            finish = choice.ended and choice.index not in self._finished
            if finish:
                self._finished.add(choice.index)
            so_far = self._generation.choices
            frames += map(_frame, self._answers.chunks(choice, delta, finish=finish, so_far=so_far))
        return b"".join(frames)

    def ending(self) -> bytes:
        if not self._answers.wanted.usage:
            return b""
        return _frame(self._answers.usage_chunk(self._generation.usage(), self._generation.choices))

    def failure(self, error: AerieError) -> bytes:
        return _frame(error_data(error))


def _frame(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
