"""Fields that Aerie does not serve yet: a neutral value passes, any other is refused by name and never ignored."""

from typing import Any

from contracts.errors import BadRequest

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": (),
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "prompt_logprobs": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "regex": (),
    "json_schema": (),
    "ebnf": (),
    "bad_words": (),
    "logits_processors": (),
    "custom_logit_processor": (),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "modalities": (["text"],),
    "audio": (),
}


def refuse_unsupported(fields: dict[str, Any]) -> None:
    """Raises BadRequest for the first field of `fields` that would have to be ignored."""
    for name, value in fields.items():
        if name in _NEUTRAL and not _is_neutral(value, _NEUTRAL[name]):
            shown = repr(value)
            raise BadRequest(
                f"{name} is not supported yet; got {shown[:80]}{'...' if shown[80:] else ''}. Leave the field out",
                param=name,
                code="unsupported_field",
            )


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is None or (isinstance(value, dict | list) and not value) or value in neutral
