"""Stand-ins for models with tools: their chat templates, and one that writes any tokens that its grammar allows."""

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from aerie.contracts.grammar import vocabulary_of, written
from aerie.contracts.messages import Generate
from aerie.server.text.tokenizer import Tokenizer
from tests.server.fake_scheduler import END_ID, Said, Script

TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    "{{ '<|end|>' }}{% endif %}{% for message in messages %}"
    "{{ '<|' + ('user' if message.role == 'tool' else message.role) + '|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '\\n<tool_call>\\n' + call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}{{ ' ' + key + '=' + value | tojson }}{% endfor %}"
    "{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
THINKING = TEMPLATE + (
    "{% if add_generation_prompt %}{{ '<think>\\n' if enable_thinking is not defined or enable_thinking else "
    "'<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """All of its parameters are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters | {"additionalProperties": False}}}


CITY = {"enum": ["Oslo", "Rome"], "type": "string"}
WEATHER = tool("get_weather", city=CITY, days={"type": "integer", "minimum": 1, "maximum": 9})
TIME = tool("get_time", zone={"enum": ["CET", "x y"], "type": "string"}, exact={"type": "boolean"})
SCHEMAS = {one["function"]["name"]: one["function"]["parameters"] for one in (WEATHER, TIME)}


def any_allowed(tokenizer: Tokenizer, seed: int = 0) -> Script:
    """A model that knows nothing: each token is any that the request's grammar allows, two a step."""
    vocabulary = LLTokenizer(vocabulary_of(tokenizer.as_json()), eos_token=[END_ID])
    dice = random.Random(seed)

    def script(request: Generate) -> Iterator[Said]:
        assert request.grammar is not None
        text = written(request.grammar, tokenizer.token_of(request.grammar.behind))
        matcher = LLMatcher(vocabulary, text, log_level=0)
        tokens: list[int] = []
        while True:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            token = int(dice.choice(allowed)) if END_ID not in allowed or dice.random() < 0.5 else END_ID
            tokens.append(token)
            if token == END_ID:
                yield tokens
                return
            assert matcher.consume_token(token) and not matcher.is_error()
            if len(tokens) == 2:
                yield tokens
                tokens = []

    return script


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
