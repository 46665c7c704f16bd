"""Errors over HTTP: every answer that is not 2xx has the same nested body, whoever raised it. Registered by `app`.

Clients print what they find under `error`; they show any other shape as "no body".
"""

import logging
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from aerie.contracts.errors import AerieError, BadRequest, DeadlineExceeded, NotFound, Overloaded
from aerie.server.http.faults import MAX_INPUT, explain
from aerie.server.http.paths import Paths

logger = logging.getLogger("aerie.server")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is not 2xx, and of every error event in a stream."""

    error: ErrorDetail


class MethodNotAllowed(AerieError):
    status = 405
    kind = "invalid_request_error"
    code = "method_not_allowed"


def error_data(error: AerieError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def error_answer(error: AerieError, headers: dict[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if isinstance(error, DeadlineExceeded):
        headers["x-should-retry"] = "false"  # OpenAI's clients would retry it twice
    elif error.status == 503:
        headers["retry-after"] = str(error.retry_after if isinstance(error, Overloaded) else 1)
    if error.status == 408:
        headers["connection"] = "close"  # the bytes that still arrive are not a request
    if error.status == 415:
        headers["accept-encoding"] = "identity"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode(error_data(error))
    return Response(body, error.status, headers, media_type="application/json")


def register(app: FastAPI) -> None:
    """Registers the error handlers on `app`, whose `state.paths` holds the paths of its routes."""
    app.add_exception_handler(AerieError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AerieError)
    return error_answer(error)


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = list(error.errors())
    if len(faults[0]["loc"]) == 1 and isinstance(faults[0]["input"], bytes):
        kind = request.headers.get("content-type", "not given")[:MAX_INPUT]
        return error_answer(BadRequest(f"the content-type is {kind}; it must be application/json"))
    message, param = explain(faults)
    return error_answer(BadRequest(message, param=param))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.scope['path'][:MAX_INPUT]}"
    if error.status_code == 404:
        paths: Paths = request.app.state.paths
        meant = paths.nearest(request.scope["path"])
        hint = f"did you mean {meant}? A client's base URL ends in /v1" if meant else "/openapi.json lists them"
        return error_answer(NotFound(f"no route {where}; {hint}", code="unknown_route"))
    if error.status_code == 405:
        return error_answer(MethodNotAllowed(f"{where}: the method is not allowed here"), dict(error.headers or {}))
    other = AerieError(str(error.detail))
    other.status = error.status_code
    other.kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return error_answer(other)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Starlette logs the traceback. This layer runs outside the gate, so the request id is added here."""
    id: str = request.state.request_id
    return error_answer(AerieError(f"internal error; the server's log has it under {id}"), {"x-request-id": id})
