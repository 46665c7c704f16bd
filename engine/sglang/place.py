"""Where this process stands among tensor-parallel ranks: process-wide, as SGLang's own process groups are.

A rank's process takes its place before it builds anything; a process that takes none is alone.
"""

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    rank: int = 0
    ranks: int = 1
    port: int = 0
    """Of 127.0.0.1, where the ranks of a deployment meet; 0 takes a free one."""


_taken = Place()


def take(place: Place) -> None:
    """Called once, first of all, by a rank's process, which sees one GPU of those that its parent sees."""
    global _taken  # noqa: PLW0603  a process has one place
    _taken = place
    if place.ranks > 1:
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = given.split(",") if given else [str(rank) for rank in range(place.ranks)]
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[place.rank % len(devices)]


def mine() -> Place:
    return _taken


def free_port() -> int:
    """A port of this machine that nobody listens on now; the ranks of one deployment meet there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
