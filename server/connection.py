"""Work for a caller that may hang up: it is cancelled at once when the connection closes, or when the server gives up.

Used by the routes and by `events`. ASGI tells of a closed connection only to who listens, so somebody always listens.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class CallerGone(Exception):
    """Nobody reads the answer any more."""


async def while_connected(receive: Receive, cut: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the work. Raises CallerGone if the caller leaves, or `cut` is set, before it is done."""
    task = asyncio.create_task(work)
    watchers = [asyncio.create_task(_left(receive)), asyncio.create_task(_cut(cut))]
    try:
        await asyncio.wait([task, *watchers], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise CallerGone
    finally:
        for one in (task, *watchers):
            one.cancel()
        await asyncio.gather(task, *watchers, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cut(cut: asyncio.Event) -> None:
    await cut.wait()
