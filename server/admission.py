"""Places in the queue, taken before any work is done for a request and given back when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from contracts.errors import Overloaded


class Admission:
    """At most `places` choices at a time. While draining none is given."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.draining = False
        self.rejected = {"full": 0, "draining": 0}

    @contextmanager
    def reserve(self, choices: int) -> Iterator[None]:
        """Raises Overloaded at once where the places do not suffice."""
        if self.draining:
            self.rejected["draining"] += 1
            raise Overloaded("the server is shutting down; send the request elsewhere", code="draining")
        if self.taken + choices > self.places:
            self.rejected["full"] += 1
            raise Overloaded(
                f"{self.taken} of {self.places} places are taken and this request needs {choices}; try again soon"
            )
        self.taken += choices
        try:
            yield
        finally:
            self.taken -= choices
