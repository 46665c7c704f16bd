"""Parses bodies as strict JSON: rejects NaN, Infinity and lone surrogates, all of which Python's parser accepts."""

import asyncio
import codecs
import itertools
import json
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pydantic_core
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute

from aerie.contracts.errors import BadRequest
from aerie.server.http.faults import field

Location = tuple[str | int, ...]

MAX_LEAVES = 100_000
"""How many values of a malformed body are inspected."""
_BYTES = range(0xDC80, 0xDD00)
"""The characters that stand for bytes from 0x80 on that are not UTF-8."""


class StrictRequest(Request):
    fault: BadRequest | None = None
    """Why the body is not valid JSON."""

    async def json(self) -> Any:
        body = (await self.body()).removeprefix(codecs.BOM_UTF8)
        try:
            return pydantic_core.from_json(body, allow_inf_nan=False)
        except ValueError as error:
            self.fault = await asyncio.to_thread(_fault, body, str(error)[:200])
            raise json.JSONDecodeError("no JSON", "", 0) from None


def _fault(body: bytes, error: str) -> BadRequest:
    """The parser's message; for values that only lenient parsers accept (NaN, infinities, lone surrogates, bytes that
    are not UTF-8), the field and its value.
    """
    try:
        data = json.loads(body.decode(errors="surrogateescape"))
    except (ValueError, RecursionError):
        data = None
    for location, value in itertools.islice(_leaves(data), MAX_LEAVES):
        oddity = _oddity(value)
        if oddity is not None:
            name = field(location)
            return BadRequest(f"{name or 'the body'} {oddity}", param=name or None, code="malformed_json")
    return BadRequest(f"the body is not JSON: {error}", code="malformed_json")


def _leaves(data: Any) -> Iterator[tuple[Location, Any]]:
    """Yields each leaf value with its location, in the order of the text. Keys have the location of their object."""
    open_: list[Iterator[tuple[Location, Any]]] = [iter([((), data)])]
    while open_:
        found = next(open_[-1], None)
        if found is None:
            open_.pop()
        elif isinstance(found[1], dict | list):
            open_.append(_inside(*found))
        else:
            yield found


def _inside(location: Location, data: dict[str, Any] | list[Any]) -> Iterator[tuple[Location, Any]]:
    if isinstance(data, list):
        for place, value in enumerate(data):
            yield (*location, place), value
        return
    for key, value in data.items():
        yield location, key
        yield (*location, key), value


def _oddity(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {json.dumps(value)}; numbers must be finite"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = ord(value[error.start])
            if half in _BYTES:
                return f"holds the byte 0x{half - _BYTES.start + 0x80:02X}, which is not UTF-8"
            return f"holds \\u{half:04x}, half of a surrogate pair and no character; send the pair or leave it out"
    return None


class StrictRoute(APIRoute):
    """A route that reads its body through StrictRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            asked = StrictRequest(request.scope, request.receive)
            try:
                return await handle(asked)
            except RequestValidationError:
                if asked.fault is not None:
                    raise asked.fault from None
                raise

        return strict
