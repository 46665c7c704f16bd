"""Routes for managed platforms: a health check, and predictions in the platform's format.

Included by `app` if `server.health_route` or `server.predict_route` is set. A prediction is a body of the OpenAI API,
answered in the same way; or `instances`, a list of such bodies with `parameters` merged into each, answered with
`predictions`.
"""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aerie.contracts.errors import BadRequest
from aerie.server.openai.answers import ChatAnswers
from aerie.server.openai.bodies import ChatBody, CompletionBody
from aerie.server.openai.body import Few
from aerie.server.openai.chats import answer_chat
from aerie.server.openai.requests import StrictRoute
from aerie.server.openai.shapes import PREDICTED, Status
from aerie.server.routes.openai import answer_completion
from aerie.server.routes.state import check_ready
from aerie.server.service import Service


class PredictBody(BaseModel):
    """`instances` with `parameters`, or the fields of one chat or completion."""

    model_config = ConfigDict(extra="allow", strict=True)
    instances: Annotated[Few[dict[str, Any]], Field(min_length=1)] | None = None
    parameters: dict[str, Any] | None = None


def platform_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=StrictRoute, tags=["platform"])
    settings = service.config.server

    async def health() -> dict[str, str]:
        """Whether requests should be sent here, as in /ready."""
        check_ready(service)
        return {"status": "ready"}

    async def predict(body: PredictBody, request: Request) -> Response:
        """Answers a chat or a completion, or several as `instances`."""
        if body.instances is None:
            return await _answer(service, _read(body.model_extra or {}, ()), request)
        most = service.config.limits.max_choices
        if len(body.instances) > most:
            raise BadRequest(
                f"there are {len(body.instances)} instances; at most {most} are allowed (limits.max_choices)",
                param="instances",
            )
        whole = {**(body.parameters or {}), "stream": False}
        bodies = [_read(one | whole, ("instances", place)) for place, one in enumerate(body.instances)]
        answers = await asyncio.gather(*(_answer(service, one, request) for one in bodies))
        return JSONResponse({"predictions": [json.loads(bytes(answer.body)) for answer in answers]})

    if settings.health_route is not None:
        router.add_api_route(settings.health_route, health, methods=["GET"], response_model=Status)
    if settings.predict_route is not None:
        router.add_api_route(
            settings.predict_route, predict, methods=["POST"], response_model=None, responses=PREDICTED
        )
    return router


def _read(data: dict[str, Any], place: tuple[str | int, ...]) -> ChatBody | CompletionBody:
    """Reads a body with `messages` as a chat, else as a completion. Raises the same errors as their routes."""
    try:
        return (ChatBody if "messages" in data else CompletionBody).model_validate(data)
    except ValidationError as error:
        faults = [fault | {"loc": ("body", *place, *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None


async def _answer(service: Service, body: ChatBody | CompletionBody, request: Request) -> Response:
    if isinstance(body, ChatBody):
        return await answer_chat(service, body, request, ChatAnswers)
    return await answer_completion(service, body, request)
