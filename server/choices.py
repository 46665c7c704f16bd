"""Runs the choices of an order side by side and tells their text as it comes; what every kind of reply is made from."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from contracts.errors import AerieError
from contracts.messages import Finished, Generate, TokenLogprobs, Tokens, Usage
from server.detokenize import Detokenizer
from server.engine_client import EngineClient
from server.metrics import Metrics
from server.order import Order
from server.prompt import Prompts
from server.protocol import FinishReason


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to a choice; the last one of a choice has a reason and the usage."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    tokens_so_far: int
    reason: FinishReason | None = None
    usage: Usage | None = None


async def run_choices(
    order: Order, engine: EngineClient, prompts: Prompts, metrics: Metrics
) -> AsyncIterator[Delta]:
    """Deltas of all choices as they come. The first error ends all of them, and so does leaving early."""
    deltas: asyncio.Queue[Delta | AerieError | None] = asyncio.Queue()

    async def pump(index: int, request: Generate) -> None:
        try:
            async with aclosing(_run(index, request, order, engine, prompts, metrics)) as stream:
                async for delta in stream:
                    deltas.put_nowait(delta)
            deltas.put_nowait(None)
        except AerieError as error:
            deltas.put_nowait(error)

    tasks = [asyncio.create_task(pump(index, request)) for index, request in enumerate(order.requests)]
    try:
        left = len(tasks)
        while left:
            item = await deltas.get()
            if isinstance(item, AerieError):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(
    index: int, request: Generate, order: Order, engine: EngineClient, prompts: Prompts, metrics: Metrics
) -> AsyncIterator[Delta]:
    detokenizer = Detokenizer(prompts.tokenizer, order.stops, include_stop=order.include_stop)
    timing = metrics.begin(len(request.prompt))
    counted = steps = accepted = 0
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            if isinstance(event, Tokens):
                piece = detokenizer.push(event.ids)
                counted += piece.used
                steps, accepted = steps + 1, accepted + min(event.accepted, piece.used)
                timing.tokens(piece.used, time.monotonic())
                logprobs = None if event.logprobs is None else event.logprobs[: piece.used]
                ids = event.ids[: piece.used]
                if piece.stopped is None:
                    yield Delta(index, piece.text, ids, logprobs, counted)
                    continue
                usage = Usage(
                    prompt_tokens=len(request.prompt),
                    completion_tokens=counted,
                    steps=max(steps - 1, 0),
                    accepted=accepted,
                )
                timing.finish("stop", usage, request.id)
                yield Delta(index, piece.text, ids, logprobs, counted, "stop", usage)
                return
            elif isinstance(event, Finished):
                last = detokenizer.finish()
                reason: FinishReason = "length" if event.reason == "length" and last.stopped is None else "stop"
                timing.finish(reason, event.usage, request.id)
                yield Delta(index, last.text, [], None, counted, reason, event.usage)
