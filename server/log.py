"""One JSON line per finished request: ids, times, counts, acceptance; never a word of a prompt or an answer."""

import json
import logging

from contracts.messages import Generate, Usage
from server.choice import Choice

logger = logging.getLogger("aerie.requests")


def log_request(
    id: str,
    outcome: str,
    requests: list[Generate],
    choices: list[Choice],
    usage: list[Usage],
    seconds: float,
    first_seconds: float | None,
) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    steps = sum(part.steps for part in usage)
    accepted = sum(part.accepted for part in usage)
    line = {
        "request": id,
        "outcome": outcome,
        "finish": [choice.finish_reason for choice in choices],
        "seed": requests[0].sampling.seed,
        "temperature": requests[0].sampling.temperature,
        "prompt_tokens": [len(request.prompt) for request in requests],
        "completion_tokens": [choice.tokens for choice in choices],
        "cached_tokens": usage[0].cached_tokens,
        "acceptance_length": round(1 + accepted / steps, 3) if steps else None,
        "preemptions": sum(part.preemptions for part in usage),
        "queue_seconds": round(usage[0].queue_seconds, 4),
        "first_seconds": None if first_seconds is None else round(first_seconds, 4),
        "seconds": round(seconds, 4),
    }
    logger.info(json.dumps(line))
