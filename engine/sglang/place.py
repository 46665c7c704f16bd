"""This process's place among the tensor-parallel ranks: process-wide, as are SGLang's process groups.

A rank's process takes its place before it builds anything; a process without a place runs alone.
"""

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    rank: int = 0
    ranks: int = 1
    port: int = 0
    """Port on 127.0.0.1 where the ranks of a deployment meet; 0 picks a free one."""


_taken = Place()


def take(place: Place) -> None:
    """Called once by a rank's process, before anything else. The process then sees one of its parent's GPUs."""
    global _taken  # noqa: PLW0603  each process has one place
    _taken = place
    if place.ranks > 1:
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = given.split(",") if given else [str(rank) for rank in range(place.ranks)]
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[place.rank % len(devices)]


def mine() -> Place:
    return _taken


def free_port() -> int:
    """A port of this machine on which no process listens; the ranks of one deployment meet there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
