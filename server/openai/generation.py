"""One HTTP request in flight: its choices, its places in the queue, its mailbox, its clock.

Made by `respond`. However the request ends (an answer, an error, a client that disconnects), `close` is called: it
aborts what still runs, gives the places back and writes the request's log line.
"""

import time
from collections.abc import AsyncIterator

from aerie.contracts.errors import AerieError, BadRequest, DeadlineExceeded, EngineDead, Overloaded, QueueTimeout
from aerie.contracts.messages import Failed, Finished, Generate, Usage
from aerie.server.dispatch.mailbox import Run
from aerie.server.openai.choice import Choice, Delta
from aerie.server.service import Service
from aerie.server.telemetry.account import LEFT, Account
from aerie.server.telemetry.request_log import log_request

GRACE_SECONDS = 5.0
"""The scheduler enforces deadlines; this long after a deadline the server stops waiting for it."""
ACCOUNT_SECONDS = 1.0
"""How long a choice that ended in its text waits for the scheduler's usage record."""

News = list[tuple[Choice, Delta]]

_ERRORS: dict[str | None, type[AerieError]] = {
    error.code: error for error in (EngineDead, DeadlineExceeded, QueueTimeout)
}


class Generation:
    """`requests` and `choices` correspond one to one; `arrived` is when work on them began.

    Take their places before; `close` gives them back.
    """

    def __init__(
        self, service: Service, id: str, requests: list[Generate], choices: list[Choice], arrived: float
    ) -> None:
        self.id = id
        self.requests = requests
        self.choices = choices
        self.parent: str | None = None
        """The caller's `traceparent`."""
        self.held_by: str | None = None
        """The field that the answer has to match, which is named if its grammar fails."""
        self._service = service
        self._by_id = {request.id: choice for request, choice in zip(requests, choices, strict=True)}
        self._clocks = {request.id: _Clock(request, arrived) for request in requests}
        self._unaccounted = set(self._by_id)
        """Ids whose ending has not been read yet; it may be in the mailbox already."""
        self._closed = False
        self._error: AerieError | None = None
        self._mailbox = service.engine.open(requests)

    async def news(self) -> AsyncIterator[News]:
        """Yields news as it arrives until every choice has ended; an empty list after `ping_seconds` of silence.

        Raises the error that ended any of the choices.
        """
        try:
            while not all(self._settled(id) for id in self._unaccounted):
                yield await self._next()
        except AerieError as error:
            self._error = error
            raise

    def usage(self) -> list[Usage]:
        """For each choice, the scheduler's usage record with the server's count of the answer's tokens."""
        return [
            choice.usage or Usage(prompt_tokens=len(request.prompt), completion_tokens=choice.tokens)
            for request, choice in zip(self.requests, self.choices, strict=True)
        ]

    def close(self) -> None:
        """Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._service.engine.drop(self._mailbox)
        self._service.admission.give_back(len(self.choices))
        self._service.metrics.unparsed(sum(choice.parse_failures for choice in self.choices))
        for id, choice in self._by_id.items():
            if choice.finish_reason is not None:
                self._clocks[id].report(self._service, choice, choice.finish_reason)
            elif self._error is None:
                self._service.metrics.left()
        if self._error is not None:
            self._service.metrics.failed(self._error.code or self._error.kind)
        elif all(choice.ended for choice in self.choices):
            count = 1 + max(request.choice for request in self.requests)
            for first in range(0, len(self.choices), count):
                self._service.metrics.answered([one.tokens for one in self.choices[first : first + count]])
        self._tell()

    def _tell(self) -> None:
        """Writes the log line and the trace."""
        ended = all(choice.ended for choice in self.choices)
        clocks = self._clocks.values()
        account = Account(
            id=self.id,
            model=self._service.model,
            outcome=self._error.code or self._error.kind if self._error else "finished" if ended else LEFT,
            requests=self.requests,
            finish=[choice.finish_reason for choice in self.choices],
            usage=self.usage(),
            parent=self.parent,
            began=min(clock.began for clock in clocks),
            first=min((clock.first for clock in clocks if clock.first is not None), default=None),
            last=max(clock.last for clock in clocks),
            ended=time.monotonic(),
        )
        settings = self._service.config.server
        if settings.log_requests:
            decode = self._service.tokenizer.decode
            prompts = (
                [decode(one.prompt, skip_special=False) for one in self.requests] if settings.log_prompts else None
            )
            log_request(account, prompts)
        if self._service.tracing is not None:
            self._service.tracing.record(account)

    async def _next(self) -> News:
        now = time.monotonic()
        arrived = await self._mailbox.take(max(0.0, min(self._patience(), self._deadline() - now)))
        if not arrived and time.monotonic() >= self._deadline():
            raise DeadlineExceeded("the engine did not answer by the request's deadline (limits.total_seconds)")
        news: News = []
        for id, arrival in arrived:
            choice = self._by_id[id]
            if not isinstance(arrival, Run):
                self._unaccounted.discard(id)
            if isinstance(arrival, Failed):
                if not choice.ended:
                    raise _error_of(arrival, self.held_by)
            elif isinstance(arrival, Finished):
                if arrival.reason == "abort" and not choice.ended:
                    raise AerieError("the engine gave the request up", code="aborted")
                news.append((choice, choice.finish(arrival)))
            else:
                news.append((choice, self._take(id, choice, arrival)))
        return news

    def _take(self, id: str, choice: Choice, run: Run) -> Delta:
        delta = choice.take(run)
        self._clocks[id].note(self._service, run, len(delta.ids))
        if choice.ended and id in self._mailbox.open:
            self._clocks[id].ended = time.monotonic()
            if choice.ended_by_text:  # the scheduler ends an answer at a stop token itself
                self._service.engine.abort(id)
        return delta

    def _settled(self, id: str) -> bool:
        """Whether a choice that ended in its text has waited long enough for the scheduler's usage record."""
        ended = self._clocks[id].ended
        return ended is not None and time.monotonic() - ended > ACCOUNT_SECONDS

    def _patience(self) -> float:
        waits_for_account = all(choice.ended for choice in self.choices)
        return ACCOUNT_SECONDS if waits_for_account else self._service.config.server.ping_seconds

    def _deadline(self) -> float:
        return (self.requests[0].deadline or float("inf")) + GRACE_SECONDS


class _Clock:
    """Times of one choice, by `time.monotonic()` in seconds."""

    def __init__(self, request: Generate, began: float) -> None:
        self.began = began
        self.first: float | None = None
        self.last = self.began
        self.ended: float | None = None
        self._prompt = len(request.prompt)
        self._allowed = request.sampling.max_tokens

    def note(self, service: Service, run: Run, tokens: int) -> None:
        service.metrics.tokens(tokens)
        if self.first is None:
            self.first = run.first_arrival
            service.metrics.first_token(self.first - self.began, self._prompt)
        else:
            service.metrics.between_tokens(run.first_arrival - self.last)
        self.last = run.last_arrival

    def report(self, service: Service, choice: Choice, reason: str) -> None:
        service.metrics.finished(
            reason,
            seconds=time.monotonic() - self.began,
            decode=self.last - (self.first or self.last),
            prompt=self._prompt,
            tokens=choice.tokens,
            allowed=self._allowed,
            usage=choice.usage,
        )


def _error_of(failed: Failed, held_by: str | None) -> AerieError:
    if failed.status == 503 and failed.code not in _ERRORS:
        return Overloaded(failed.message, code=failed.code)
    asked = 400 <= failed.status < 500
    kind = BadRequest if asked else _ERRORS.get(failed.code, AerieError)
    error = kind(failed.message, param=held_by if failed.code == "invalid_grammar" else None, code=failed.code)
    error.status = failed.status
    return error
