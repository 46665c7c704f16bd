"""/v1/chat/completions, /v1/completions and /v1/models."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import Response

from aerie.contracts.errors import BadRequest
from aerie.server.openai.answer_form import AnswerForm
from aerie.server.openai.answers import ChatAnswers, CompletionAnswers
from aerie.server.openai.bodies import ChatBody, CompletionBody
from aerie.server.openai.chats import answer_chat
from aerie.server.openai.requests import StrictRoute
from aerie.server.openai.respond import answer
from aerie.server.openai.shapes import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    CompletionChunk,
    Model,
    ModelList,
    answered,
)
from aerie.server.service import Service


def openai_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=StrictRoute, tags=["openai"])

    @router.post("/v1/chat/completions", responses=answered(ChatAnswer, ChatChunk), response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answers a conversation, whole or as a stream of server-sent events."""
        return await answer_chat(service, body, request, ChatAnswers)

    @router.post("/v1/completions", responses=answered(CompletionAnswer, CompletionChunk), response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continues one prompt or several, given as text or as token ids."""
        return await answer_completion(service, body, request)

    @router.get("/v1/models", response_model=ModelList)
    async def models() -> dict[str, Any]:
        """Lists the one model that is served."""
        return {"object": "list", "data": [_card(service)]}

    @router.get("/v1/models/{name:path}", response_model=Model)
    async def model(name: str) -> dict[str, Any]:
        if not name:
            raise HTTPException(404)
        service.check_model(name)
        return _card(service)

    return router


async def answer_completion(service: Service, body: CompletionBody, request: Request) -> Response:
    written = _split_prompts(body)
    add = True if body.add_special_tokens is None else body.add_special_tokens

    async def prompts() -> list[list[int]]:
        encode, context = service.tokenizer.encode, service.ready().max_length
        return [
            await encode(one, add_special_tokens=add, context=context) if isinstance(one, str) else one
            for one in written
        ]

    return await answer(service, body, request, CompletionAnswers, len(written), prompts, AnswerForm(service.tokenizer))


def _split_prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """Splits `prompt` into prompts: a string or a list of ids is one prompt, a list of either is several."""
    prompt: Any = body.prompt
    if not prompt:
        raise BadRequest("prompt is empty; it needs at least one token", param="prompt")
    split: list[Any] = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return split


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model,
        "object": "model",
        "created": service.started,
        "owned_by": "aerie",
        "root": service.config.model.path,
        "parent": None,
        "max_model_len": service.ready().max_length,
    }
