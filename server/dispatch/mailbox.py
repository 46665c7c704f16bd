"""Messages that have arrived for one HTTP request and wait to be read: runs of tokens, then endings.

Filled by `client`, emptied by `generation`. A slow reader finds one longer run, not a longer queue.
"""

import asyncio
import time
from dataclasses import dataclass, field

from aerie.contracts.messages import DraftTree, Failed, Finished, TokenLogprobs, Tokens


@dataclass(slots=True)
class Run:
    """Tokens of one id that arrived since its reader last read. With a slow reader, only the run grows."""

    ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    trees: list[tuple[DraftTree, list[int]]] = field(default_factory=list)
    """Each step's draft with its accepted tokens."""
    first_arrival: float = 0.0
    last_arrival: float = 0.0

    def add(self, tokens: Tokens) -> None:
        self.last_arrival = time.monotonic()
        self.first_arrival = self.first_arrival or self.last_arrival
        self.ids += tokens.ids
        self.drafted += [place < tokens.accepted for place in range(len(tokens.ids))]
        self.logprobs += tokens.logprobs or []
        if tokens.tree is not None:
            self.trees.append((tokens.tree, tokens.ids[: tokens.accepted]))


Arrival = Run | Finished | Failed


class Mailbox:
    """Messages for the ids of one HTTP request. Has one reader."""

    def __init__(self, ids: list[str]) -> None:
        self.open = set(ids)
        """Ids that have not ended."""
        self._runs: dict[str, Run] = {}
        self._endings: dict[str, Finished | Failed] = {}
        self._arrived = asyncio.Event()

    def put(self, message: Tokens | Finished | Failed) -> None:
        if isinstance(message, Tokens):
            self._runs.setdefault(message.id, Run()).add(message)
        else:
            self.open.discard(message.id)
            self._endings[message.id] = message
        self._arrived.set()

    async def take(self, seconds: float) -> list[tuple[str, Arrival]]:
        """Returns all that has arrived, tokens before endings; waits for a message for at most `seconds`."""
        if not self._arrived.is_set():
            try:
                async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
                    await self._arrived.wait()
            except TimeoutError:
                return []
        self._arrived.clear()
        arrived: list[tuple[str, Arrival]] = [*self._runs.items(), *self._endings.items()]
        self._runs, self._endings = {}, {}
        return arrived
