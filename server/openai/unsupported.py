"""Unsupported fields that would change the answer: rejected by name unless set to a neutral value.

Called by the routes with a body that pydantic has validated.
"""

import json
from typing import Any

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling import REFUSED
from aerie.server.openai.body import Body

NEUTRAL_ZERO = (None, 0)
NEUTRAL_ONE = (None, 1)
NEUTRAL_LIST: tuple[Any, ...] = (None, [])
NEUTRAL_FLAG = (None, False)
NOTHING = (None,)

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": NEUTRAL_LIST,
    "tool_choice": (None, "none", "auto"),
    "functions": NEUTRAL_LIST,
    "function_call": (None, "none", "auto"),
    "regex": NOTHING,
    "ebnf": NOTHING,
    "json_schema": NOTHING,
    **{name: (None, neutral) for name, neutral in REFUSED.items()},
    "logits_processors": NEUTRAL_LIST,
    "custom_logit_processor": NOTHING,
    "best_of": NEUTRAL_ONE,
    "use_beam_search": NEUTRAL_FLAG,
    "suffix": (None, ""),
    "echo": NEUTRAL_FLAG,
    "prompt_logprobs": NOTHING,
    "truncate_prompt_tokens": NOTHING,
    "prompt_embeds": NOTHING,
    "stop_regex": NEUTRAL_LIST,
    "no_stop_trim": NEUTRAL_FLAG,
    "priority": NEUTRAL_ZERO,
    "chat_template": NOTHING,
    "continue_final_message": NEUTRAL_FLAG,
    "add_generation_prompt": (None, True),
    "documents": NEUTRAL_LIST,
    "audio": NOTHING,
    "modalities": (None, ["text"]),
    "prediction": NOTHING,
    "web_search_options": NOTHING,
    "reasoning_effort": NOTHING,
    "verbosity": NOTHING,
    "store": NEUTRAL_FLAG,
}


def refuse_unsupported(body: Body) -> None:
    """Raises a BadRequest that names every field that Aerie would have to ignore."""
    given = body.model_extra or {}
    names = [name for name, neutral in UNSUPPORTED.items() if name in given and given[name] not in neutral]
    if not names:
        return
    hints = [f"{name}: {json.dumps(UNSUPPORTED[name][-1])}" for name in names if UNSUPPORTED[name] != NOTHING]
    one = len(names) == 1
    advice = f"leave {'it' if one else 'them'} out" + (f", or send {', '.join(hints)}" if hints else "")
    message = f"{', '.join(names)} {'is' if one else 'are'} not supported: {advice}"
    raise BadRequest(message, param=names[0], code="unsupported_field")
