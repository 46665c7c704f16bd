"""One JSON log line per finished request: ids, times, counts, acceptance. Contains prompts only if configured.

`generation` calls `log_request`; the composition root calls `write_lines_bare` once, so that each line is pure JSON.
Times are in seconds.
"""

import datetime
import json
import logging
import sys
from typing import Any, TextIO

from aerie.server.telemetry.account import Account, acceptance_length, total

logger = logging.getLogger("aerie.requests")


def write_lines_bare(stream: TextIO = sys.stderr) -> None:
    """Writes the lines to `stream` without the prefix of other log lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers = [handler]
    logger.propagate = False


def log_request(account: Account, prompts: list[str] | None) -> None:
    """`prompts` holds the texts to log; with None the line contains no text of prompts or answers."""
    if logger.isEnabledFor(logging.INFO):
        extra = {} if prompts is None else {"prompts": prompts}
        # ASCII, so that no character of a prompt breaks the line or fails to encode in the locale.
        logger.info(json.dumps(_line(account) | extra))


def _line(account: Account) -> dict[str, Any]:
    usage = total(account.usage)
    length = acceptance_length(usage)
    sampling = account.requests[0].sampling
    return {
        "event": "request",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "request": account.id,
        "model": account.model,
        "outcome": account.outcome,
        "finish": account.finish,
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "prompt_tokens": [part.prompt_tokens for part in account.usage],
        "completion_tokens": [part.completion_tokens for part in account.usage],
        "cached_tokens": usage.cached_tokens,
        "steps": usage.steps,
        "drafted": usage.drafted,
        "accepted": usage.accepted,
        "accepted_per_position": usage.accepted_per_position,
        "acceptance_length": None if length is None else round(length, 3),
        "preemptions": usage.preemptions,
        "queue_seconds": round(usage.queue_seconds, 4),
        "prefill_seconds": round(usage.prefill_seconds, 4),
        "first_seconds": None if account.first is None else round(account.first - account.began, 4),
        "decode_seconds": None if account.first is None else round(account.last - account.first, 4),
        "seconds": round(account.ended - account.began, 4),
    }
