"""Work for a caller that may hang up: it is cancelled at once when the connection closes, or when the server gives up.

Used by `gate`, `respond` and `events`. ASGI reports a closed connection only to a listener, so one always listens.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


CLIENT_CLOSED = 499
"""nginx's status for a caller that disconnected; only logs and metrics see it."""


class CallerGone(Exception):
    """The caller has disconnected and will not read the answer."""


async def while_connected(receive: Receive, cut: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """Returns the result of `work`. Raises CallerGone if the caller disconnects or `cut` is set before it is done."""
    return await _unless([_left(receive), cut.wait()], work)


async def while_serving(cut: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """As `while_connected`, for work that listens to the connection itself."""
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
