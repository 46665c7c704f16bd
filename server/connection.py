"""Work for a caller that may hang up: it is cancelled at once when the connection closes, or when the server gives up.

Used by `gate`, `respond` and `events`. ASGI tells of a closed connection only to who listens: somebody always does.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


CLIENT_CLOSED = 499
"""nginx's status for a caller that left; only logs and metrics see it."""


class CallerGone(Exception):
    """Nobody reads the answer any more."""


async def while_connected(receive: Receive, cut: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the work. Raises CallerGone if the caller leaves, or `cut` is set, before it is done."""
    return await _unless([_left(receive), cut.wait()], work)


async def while_serving(cut: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """The same for work that listens to the connection by itself."""
    return await _unless([cut.wait()], work)


async def _unless(ends: list[Coroutine[Any, Any, Any]], work: Coroutine[Any, Any, _T]) -> _T:
    task = asyncio.create_task(work)
    watchers = [asyncio.create_task(end) for end in ends]
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
