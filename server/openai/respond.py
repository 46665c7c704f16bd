"""Turns a body into its answer, whole or streamed, for chats and completions alike. Called by their routes."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from fastapi import Request
from fastapi.responses import Response

from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Generate, Ready, Usage
from aerie.server.http.connection import CLIENT_CLOSED, CallerGone, while_connected
from aerie.server.openai.answer_form import AnswerForm
from aerie.server.openai.answers import Wanted
from aerie.server.openai.bodies import ChatBody, CompletionBody
from aerie.server.openai.choice import Choice, Delta
from aerie.server.openai.events import Encoder, EventStream
from aerie.server.openai.generation import Generation, News
from aerie.server.openai.parameters import Parameters, check_prompt, fit, read_parameters
from aerie.server.openai.structured import constraint_of, schema_of
from aerie.server.openai.unsupported import refuse_unsupported
from aerie.server.service import Service
from aerie.server.text.grammars import Constraint


class Dialect(Protocol):
    """How one route writes the answer to one request."""

    def whole(self, answers: list[tuple[Choice, Delta]], usage: list[Usage]) -> dict[str, Any]: ...

    def encoder(self, generation: Generation) -> Encoder: ...


async def answer(
    service: Service,
    body: ChatBody | CompletionBody,
    request: Request,
    dialect: Callable[..., Dialect],
    count: int,
    prompts: Callable[[], Awaitable[list[list[int]]]],
    form: AnswerForm,
) -> Response:
    """Serves `count` prompts. Tokenizes them only once the request has its places."""
    ready = service.ready()
    service.check_model(body.model)
    refuse_unsupported(body)
    parameters = read_parameters(body, service.config.limits, ready, service.tokenizer)
    constraint = form.constraint(constraint_of(body), schema_of(body))
    if constraint is not None and not ready.grammars:
        raise BadRequest(
            f"{constraint.param} is not supported by this deployment's engine; leave it out", param=constraint.param
        )
    _check_fan_out(service, parameters, count)
    request_id: str = request.state.request_id
    try:
        generation = await while_connected(
            request.receive,
            service.cut,
            _begin(service, body, request_id, parameters, constraint, ready, count, prompts, form),
        )
    except CallerGone:
        return Response(status_code=CLIENT_CLOSED)
    generation.parent = request.headers.get("traceparent")
    answers = dialect(
        id=request_id,
        model=service.model,
        fingerprint=service.fingerprint(),
        wanted=_wanted(body, parameters),
        tokenizer=service.tokenizer,
        prompts=[one.prompt for one in generation.requests],
    )
    return await (_stream if body.stream else _whole)(service, request, generation, answers)


async def _begin(
    service: Service,
    body: ChatBody | CompletionBody,
    request_id: str,
    parameters: Parameters,
    constraint: Constraint | None,
    ready: Ready,
    count: int,
    prompts: Callable[[], Awaitable[list[list[int]]]],
    form: AnswerForm,
) -> Generation:
    places = count * parameters.choices
    service.admission.take(places)
    try:
        arrived = time.monotonic()
        param = "messages" if isinstance(body, ChatBody) else "prompt"
        requests: list[Generate] = []
        choices: list[Choice] = []
        for prompt in await prompts():
            check_prompt(prompt, ready, param)
            grammar = await _grammar(service, constraint, form, prompt, ready)
            rules = form.rules(parameters.rules, prompt)
            sampling = replace(parameters.sampling, max_tokens=fit(parameters, len(prompt), ready))
            requests += [
                Generate(
                    id=uuid.uuid4().hex,  # the caller's id may not be unique
                    prompt=prompt,
                    sampling=sampling,
                    speculation=parameters.speculation,
                    grammar=grammar,
                    choice=choice,
                    cache_salt=body.cache_salt or "",
                    queue_deadline=arrived + service.config.limits.queue_seconds,
                    deadline=arrived + service.config.limits.total_seconds,
                )
                for choice in range(parameters.choices)
            ]
            first = len(choices)
            choices += [Choice(first + one, rules, service.tokenizer) for one in range(parameters.choices)]
        generation = Generation(service, request_id, requests, choices, arrived)
        generation.held_by = None if constraint is None else constraint.param
        return generation
    except BaseException:  # gives the places back, whatever ends this request
        service.admission.give_back(places)
        raise


async def _grammar(
    service: Service, constraint: Constraint | None, form: AnswerForm, prompt: list[int], ready: Ready
) -> Grammar | None:
    if constraint is None:
        return None
    return await service.grammars.checked(form.placed(constraint, prompt), ready.end_ids)


async def _stream(service: Service, request: Request, generation: Generation, answers: Dialect) -> Response:
    """Waits for the first news, so that a request that fails early gets an HTTP status on which clients retry."""
    news = generation.news()
    try:
        first = await while_connected(request.receive, service.cut, _next(news))
        return EventStream(generation, answers.encoder(generation), first, news, service.cut)
    except CallerGone:
        generation.close()
        return Response(status_code=CLIENT_CLOSED)
    except BaseException:
        generation.close()
        raise


async def _next(news: AsyncIterator[News]) -> News:
    return await anext(news)


async def _whole(service: Service, request: Request, generation: Generation, answers: Dialect) -> Response:
    async def collect() -> list[tuple[Choice, Delta]]:
        deltas = [Delta() for _ in generation.choices]
        async for news in generation.news():
            for choice, delta in news:
                deltas[choice.index].extend(delta)
        return list(zip(generation.choices, deltas, strict=True))

    try:
        collected = await while_connected(request.receive, service.cut, collect())
        answer = answers.whole(collected, generation.usage())
        return Response(msgspec.json.encode(answer), media_type="application/json")
    except CallerGone:
        return Response(status_code=CLIENT_CLOSED)
    finally:
        generation.close()


def _wanted(body: ChatBody | CompletionBody, parameters: Parameters) -> Wanted:
    options = body.stream_options
    return Wanted(
        logprobs=parameters.sampling.logprobs >= 0,
        ranks=max(parameters.sampling.logprobs, 0),
        token_ids=bool(body.return_token_ids),
        spans=body.speculation is not None and body.speculation.spans,
        trees=body.speculation is not None and body.speculation.trees,
        usage=options is not None and bool(options.include_usage),
        usage_always=options is not None and bool(options.continuous_usage_stats),
    )


def _check_fan_out(service: Service, parameters: Parameters, count: int) -> None:
    most = service.config.limits.max_choices
    if count * parameters.choices > most:
        raise BadRequest(
            f"{count} prompts with n {parameters.choices} make {count * parameters.choices} choices; at most {most} "
            "are allowed (limits.max_choices)",
            param="prompt",
        )
