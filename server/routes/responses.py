"""/v1/responses. Nothing is kept: what names an earlier response gets an error, and each answer is whole in itself."""

import functools
import logging

from fastapi import APIRouter, Request
from fastapi.responses import Response

from aerie.contracts.errors import BadRequest, NotFound
from aerie.server.openai.chats import answer_chat
from aerie.server.openai.requests import StrictRoute
from aerie.server.openai.shapes import answered
from aerie.server.responses import conversation
from aerie.server.responses.bodies import ResponseBody, refuse
from aerie.server.responses.resource import ResponseAnswer
from aerie.server.responses.shapes import EVENTS, ResponseResource
from aerie.server.service import Service

logger = logging.getLogger("aerie.server")


def response_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=StrictRoute, tags=["openai"])

    @router.post("/v1/responses", responses=answered(ResponseResource, *EVENTS), response_model=None)
    async def create(body: ResponseBody, request: Request) -> Response:
        """Answers a conversation of items, whole or as a stream of events. Keeps nothing."""
        return await _answer(service, body, request)

    @router.get("/v1/responses/{id:path}", include_in_schema=False)
    @router.delete("/v1/responses/{id}", include_in_schema=False)
    @router.post("/v1/responses/{id}/cancel", include_in_schema=False)
    async def kept(id: str) -> Response:
        """Always 404: this server keeps no responses."""
        raise NotFound(
            "this server keeps no responses; an answer is only in the reply to its request", code="response_not_found"
        )

    return router


async def _answer(service: Service, body: ResponseBody, request: Request) -> Response:
    refuse(body)
    chat, origin = conversation.read(body)
    if origin.ignored:
        kinds = ", ".join(sorted(set(origin.ignored)))[:200]
        logger.info("request %s: left out tools of types that this server lacks: %s", request.state.request_id, kinds)

    try:
        return await answer_chat(service, chat, request, functools.partial(ResponseAnswer, body))
    except BadRequest as error:
        raise origin.renamed(error) from None
