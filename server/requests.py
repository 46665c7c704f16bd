"""Bodies parsed as JSON and nothing else: no NaN, no Infinity, no halves of characters, all of which Python's takes."""

import json
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
            raise json.JSONDecodeError(str(error)[:200], "", 0) from None


class StrictRoute(APIRoute):
    """A route whose body is read by StrictRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
