"""One request in SGLang's engine: converts its growing outputs into wire messages. Made by the bridge.

Each output of SGLang repeats the whole request so far: all token ids, and a `meta_info`. Only the last output counts
drafts, so drafted tokens are recognized by their arrival: one output is one step, whose last token is the bonus.
"""

import math
import time
from typing import Any

from aerie.contracts.errors import AerieError
from aerie.contracts.messages import Failed, Finished, Generate, TokenLogprobs, Tokens, Usage


class TokenStream:
    """`depth`: the most drafted tokens that a step can commit; 0 without a head. `now` is by `time.monotonic()`."""

    def __init__(self, request: Generate, *, depth: int, now: float | None = None) -> None:
        self.id = request.id
        self.usage = Usage(prompt_tokens=len(request.prompt), completion_tokens=0)
        self.ended: Finished | Failed | None = None
        self._request = request
        self._depth = depth
        self._sent = 0
        self._began = time.monotonic() if now is None else now
        self._first: float | None = None

    @property
    def started(self) -> bool:
        """Whether a token has arrived."""
        return self._first is not None

    def take(self, output: dict[str, Any], now: float | None = None) -> list[Tokens]:
        """Returns the new tokens of an output; sets `ended` with the last output."""
        now = time.monotonic() if now is None else now
        ids = [int(token) for token in output["output_ids"][self._sent :]]
        meta = output["meta_info"]
        messages = []
        if ids:
            logprobs = self._logprobs(meta, len(ids))
            # The first token comes from the prefill and is not drafted.
            cut = 1 if self._first is None else 0
            self._first = now if self._first is None else self._first
            for low, high in ((0, cut), (cut, len(ids))):
                if high > low:
                    accepted = 0 if cut and low == 0 else _accepted(high - low, self._depth)
                    part = None if logprobs is None else logprobs[low:high]
                    messages.append(Tokens(id=self.id, ids=ids[low:high], accepted=accepted, logprobs=part))
            self._sent += len(ids)
        self.usage = self._account(meta)
        if meta.get("finish_reason") is not None:
            self.ended = self._ending(meta["finish_reason"])
        return messages

    def _ending(self, reason: dict[str, Any]) -> Finished | Failed:
        kind, matched = reason.get("type"), reason.get("matched")
        if kind == "abort":
            status = int(reason.get("status_code") or 0)
            if status >= 400:
                message = str(reason.get("message") or "SGLang's engine gave the request up")
                return Failed(id=self.id, code="engine_refused", message=message, status=status)
            return Finished(id=self.id, reason="abort", usage=self.usage)
        stop_id = matched if isinstance(matched, int) else None
        return Finished(id=self.id, reason="stop" if kind == "stop" else "length", usage=self.usage, stop_id=stop_id)

    def _account(self, meta: dict[str, Any]) -> Usage:
        """The request's usage so far; only the last output has counts of drafts."""
        exact = [int(count) for count in meta.get("spec_correct_drafts_histogram") or ()]
        return Usage(
            prompt_tokens=len(self._request.prompt),
            completion_tokens=self._sent,
            cached_tokens=int(meta.get("cached_tokens") or self.usage.cached_tokens),
            steps=int(meta.get("spec_verify_ct") or (0 if self._depth else max(0, self._sent - 1))),
            drafted=int(meta.get("spec_num_proposed_drafts") or 0),
            accepted=int(meta.get("spec_num_correct_drafts") or 0),
            accepted_per_position=[sum(exact[depth:]) for depth in range(1, len(exact))],
            preemptions=int(meta.get("num_retractions") or 0),
            # SGLang does not separate queue time from prefill: both precede the first token.
            prefill_seconds=max(0.0, (self._first or time.monotonic()) - self._began),
        )

    def _logprobs(self, meta: dict[str, Any], count: int) -> list[TokenLogprobs] | None:
        wanted = self._request.sampling.logprobs
        if wanted < 0:
            return None
        own = meta["output_token_logprobs"][self._sent : self._sent + count]
        best = meta["output_top_logprobs"][self._sent : self._sent + count] if wanted else [()] * count
        return [
            TokenLogprobs(
                logprob=float(chosen[0]),
                rank_ids=[int(entry[1]) for entry in ranks[:wanted]],
                rank_logprobs=[float(entry[0]) for entry in ranks[:wanted]],
            )
            for chosen, ranks in zip(own, best, strict=True)
        ]


def failed(id: str, error: AerieError) -> Failed:
    return Failed(id=id, code=error.code or error.kind, message=error.message, status=error.status)


def _accepted(count: int, depth: int) -> int:
    """Drafted tokens among `count` that arrived together: all but one bonus token per step, for the fewest steps."""
    return count - math.ceil(count / (depth + 1))
