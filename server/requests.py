"""Bodies parsed as JSON and nothing else: no NaN, no Infinity, no halves of characters, all of which Python's takes."""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute

from contracts.errors import BadRequest

_VALUE_EXPECTED = re.compile(r"(?:expected value|invalid number) at line (\d+) column (\d+)$")
_NOT_FINITE = re.compile(rb"-?(?:NaN|Infinity)\b")


class StrictRequest(Request):
    fault: BadRequest | None = None
    """Why the body is no JSON."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return pydantic_core.from_json(body, allow_inf_nan=False)
        except ValueError as error:
            self.fault = _fault(body, str(error)[:200])
            raise json.JSONDecodeError("no JSON", "", 0) from None


def _fault(body: bytes, error: str) -> BadRequest:
    """The parser's words; of a NaN or an infinity, which other parsers take, the field and its value."""
    place = _VALUE_EXPECTED.match(error)
    found = place and _NOT_FINITE.match(body, _start(body, int(place[1]), int(place[2])))
    if not found:
        return BadRequest(f"the body is not JSON: {error}", code="malformed_json")
    field = ".".join(_path(body[: found.start()]))
    told = f"{field or 'the body'} is {found[0].decode()}; numbers must be finite"
    return BadRequest(told, param=field or None, code="malformed_json")


def _start(body: bytes, line: int, column: int) -> int:
    """Where the word begins that the parser points at, counted from 1; of a number with a sign it is past the sign."""
    at = len(body) - len(body.split(b"\n", line - 1)[-1]) + column - 1
    return at - 1 if body[at - 1 : at] == b"-" else at


def _path(before: bytes) -> list[str]:
    """Keys and places that lead to the value that follows."""
    value = pydantic_core.from_json(before + b"null", allow_partial=True)
    names = []
    while isinstance(value, dict | list) and value:
        name, value = list(value.items())[-1] if isinstance(value, dict) else (len(value) - 1, value[-1])
        names.append(str(name)[:64])
    return names


class StrictRoute(APIRoute):
    """A route whose body is read by StrictRequest."""

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
