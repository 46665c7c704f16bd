"""The response object, with every key that the API requires, and its answer whole or as a stream of events.

Made by the route, one per request; `respond` asks it as it asks the dialects of chats and completions.
"""

import time

from aerie.contracts.errors import AerieError
from aerie.contracts.messages import Usage
from aerie.server.openai.answers import Wanted, usage_data
from aerie.server.openai.choice import Choice, Delta
from aerie.server.openai.generation import Generation
from aerie.server.openai.logprobs import chat_logprobs
from aerie.server.responses.bodies import ResponseBody
from aerie.server.responses.conversation import functions
from aerie.server.responses.items import Items, Json
from aerie.server.responses.stream import ResponseEncoder
from aerie.server.text.tokenizer import Tokenizer

_NEUTRAL: Json = {
    "instructions": None,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""Fields of the request that the response repeats, and what holds where they are absent."""
_ALWAYS: Json = {
    "previous_response_id": None,
    "store": False,
    "background": False,
    "truncation": "disabled",
    "service_tier": "default",
}
"""The truth, whatever the request asks for."""


class ResponseAnswer:
    """`body` is what the caller asked for; the rest is as in `Answers`."""

    def __init__(
        self,
        body: ResponseBody,
        *,
        id: str,
        model: str,
        fingerprint: str,
        wanted: Wanted,
        tokenizer: Tokenizer,
        prompts: list[list[int]],
    ) -> None:
        self._body = body
        self._wanted = wanted
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._head = {"id": f"resp_{id}", "object": "response", "created_at": int(time.time()), "model": model}

    def whole(self, answers: list[tuple[Choice, Delta]], usage: list[Usage]) -> Json:
        (choice, delta), items = answers[0], Items()
        items.take(delta.events, self.logprobs(delta))
        items.end(cut=choice.finish_reason == "length")
        return self.ended(items, choice, usage)

    def encoder(self, generation: Generation) -> ResponseEncoder:
        return ResponseEncoder(self, generation)

    def logprobs(self, delta: Delta) -> list[Json]:
        """Of the tokens of a step, if the caller asked for them."""
        if not self._wanted.logprobs:
            return []
        content: list[Json] = chat_logprobs(self._tokenizer, delta, self._wanted.ranks)["content"]
        return content

    def begun(self) -> Json:
        return self._data("in_progress", [])

    def ended(self, items: Items, choice: Choice, usage: list[Usage]) -> Json:
        cut = choice.finish_reason == "length"
        data = self._data("incomplete" if cut else "completed", items.output())
        data["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        data["completed_at"] = None if cut else int(time.time())
        return data | {"usage": self._usage(choice, usage)}

    def failed(self, items: Items, error: AerieError) -> Json:
        reason = {"code": "server_error", "message": error.message, "type": error.code or error.kind}
        return self._data("failed", items.output()) | {"error": reason}

    def _usage(self, choice: Choice, usage: list[Usage]) -> Json:
        counts = usage_data(usage, [choice], self._prompts)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": choice.reasoning_tokens},
            "total_tokens": counts["total_tokens"],
            "speculation": counts["speculation"],
        }

    def _data(self, status: str, output: list[Json]) -> Json:
        body = self._body
        given = {name: getattr(body, name, None) for name in _NEUTRAL}
        return {
            **self._head,
            "status": status,
            "completed_at": None,
            "incomplete_details": None,
            "error": None,
            "output": output,
            "usage": None,
            **{name: neutral if given[name] is None else given[name] for name, neutral in _NEUTRAL.items()},
            "tools": functions(body.tools),
            "text": {"format": _format(body)},
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            **_ALWAYS,
        }


def _format(body: ResponseBody) -> Json:
    wanted = None if body.text is None else body.text.format
    if wanted is None or wanted.type != "json_schema":
        return {"type": "text" if wanted is None else wanted.type}
    given = wanted.model_extra or {}
    named = {name: given.get(name) for name in ("name", "description", "schema")}
    return {"type": "json_schema", **named, "strict": bool(given.get("strict"))}
