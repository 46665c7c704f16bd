"""Bodies parsed as JSON and nothing else: no NaN, no Infinity, no halves of characters, all of which Python's takes."""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute


class StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return pydantic_core.from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(_explained(body, str(error)[:200]), "", 0) from None


def _explained(body: bytes, error: str) -> str:
    """The parser's words; of a NaN or an infinity, which other parsers take, the field and its value."""
    found = re.search(r"at line (\d+) column (\d+)", error)
    if found is None:
        return error
    line = body.split(b"\n")[int(found[1]) - 1]
    named = re.compile(rb"\"(\w+)\"\s*:\s*(-?(?:NaN|Infinity))")
    for match in named.finditer(line, max(0, int(found[2]) - 200)):
        if match.start(2) <= int(found[2]) <= match.end(2):
            return f"{match[1].decode()} is {match[2].decode()}; numbers must be finite"
    return error


class StrictRoute(APIRoute):
    """A route whose body is read by StrictRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
