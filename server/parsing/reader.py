"""What every reader of calls has in common: it takes the text of a call character by character.

So its events cannot depend on how the text was cut. `parser` runs it behind a family's opening marker.
"""

import enum
from typing import Protocol


class Verdict(enum.Enum):
    MORE = "takes this character, and more"
    DONE = "ends with this character"
    BEFORE = "ended before this character"


class CallSink(Protocol):
    """Where a reader puts what it reads. A call is opened before its arguments come."""

    def open(self, name: str) -> None: ...

    def arguments(self, text: str) -> None: ...

    def close(self, *, complete: bool) -> None: ...


class Reader(Protocol):
    @property
    def raw(self) -> str:
        """Text taken outside calls since the last one: content if no call follows."""

    def push(self, character: str) -> Verdict: ...

    def finish(self) -> None:
        """The answer ends here: gives what is known of an open call."""
