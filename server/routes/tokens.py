"""/tokenize and /detokenize, with and without /v1: text to the model's token ids, and ids to text."""

from typing import Any

from fastapi import APIRouter

from aerie.contracts.errors import BadRequest
from aerie.server.openai.bodies import DetokenizeBody, TokenizeBody
from aerie.server.openai.chats import check_tools, messages
from aerie.server.openai.requests import StrictRoute
from aerie.server.openai.shapes import Ids, Text
from aerie.server.openai.unsupported import refuse_unsupported
from aerie.server.service import Service


def token_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=StrictRoute, tags=["tokens"])

    @router.post("/tokenize", response_model=Ids)
    @router.post("/v1/tokenize", response_model=Ids)
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """Returns the token ids of a text (`prompt`), or of a chat as the model's template renders it (`messages`)."""
        tokenizer = service.tokenizer
        service.check_model(body.model)
        refuse_unsupported(body)
        if (body.prompt is None) == (body.messages is None):
            raise BadRequest("send either prompt or messages", param="prompt")
        if body.messages is not None:
            if body.tools:
                check_tools(service)
            tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()] or None
            chat = messages(service, body.messages)
            ids = await tokenizer.encode_chat(chat, body.chat_template_kwargs or {}, tools=tools)
        else:
            add = True if body.add_special_tokens is None else body.add_special_tokens
            ids = await tokenizer.encode(body.prompt or "", add_special_tokens=add)
        written: list[str] | None = None
        if body.return_token_strs:
            written = await tokenizer.off_loop(len(ids), lambda: [tokenizer.written(token) for token in ids])
        length = service.ready().max_length
        return {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": written}

    @router.post("/detokenize", response_model=Text)
    @router.post("/v1/detokenize", response_model=Text)
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        """Returns the text of token ids, special tokens included unless `skip_special_tokens`."""
        service.check_model(body.model)
        highest = max(body.tokens, default=0)
        if highest >= service.ready().vocabulary:
            limit = service.ready().vocabulary - 1
            raise BadRequest(f"tokens holds id {highest}; the highest is {limit}", param="tokens")
        tokenizer, skip = service.tokenizer, bool(body.skip_special_tokens)
        return {
            "prompt": await tokenizer.off_loop(
                len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special=skip)
            )
        }

    return router
