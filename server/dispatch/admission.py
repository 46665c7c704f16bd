"""A bounded number of places for requests: taken all at once before any work is done, given back when a request ends.

Called by `generation`. A request that finds no place is rejected at once, with a time after which to retry.
"""

import math
import time
from collections import deque

from aerie.contracts.errors import BadRequest, Overloaded

MAX_RETRY_SECONDS = 30


class Admission:
    """`places` counts choices, running and waiting together."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.draining = False
        self.rejections: dict[str, int] = {"queue_full": 0, "draining": 0, "starting": 0}
        self._given_back: deque[float] = deque(maxlen=64)

    def take(self, count: int) -> None:
        """Reserves `count` places or none. Raises Overloaded, or BadRequest if `count` exceeds all places."""
        if self.draining:
            raise self.reject("draining", "the server is shutting down", 5)
        if count > self.places:
            raise BadRequest(
                f"the request asks for {count} choices; the server has {self.places} places "
                "(scheduler.max_running + scheduler.max_waiting)",
                param="n",
            )
        if self.taken + count > self.places:
            full = f"all {self.places} places are taken ({self.taken} requests run or wait)"
            raise self.reject("queue_full", f"{full}; try again later", self._retry_after(count))
        self.taken += count

    def give_back(self, count: int) -> None:
        self.taken -= count
        assert self.taken >= 0, "a place was given back twice"
        self._given_back += [time.monotonic()] * count

    def reject(self, reason: str, message: str, retry_after: int) -> Overloaded:
        self.rejections[reason] += 1
        return Overloaded(message, retry_after=retry_after, code="overloaded" if reason == "queue_full" else reason)

    def _retry_after(self, count: int) -> int:
        """Seconds until `count` places become free at the recent rate."""
        if len(self._given_back) < 2:
            return 1
        pace = (time.monotonic() - self._given_back[0]) / len(self._given_back)
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(pace * count)))
