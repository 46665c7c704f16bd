"""Bodies of requests that no sane program sends: schemas, grammars, tools and messages, right, nearly right and wrong.

Drawn from a seed, so that what one finds can be sent again. Used by `aerie.bench.fuzz`.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Json = dict[str, Any]
_V = TypeVar("_V")

_TYPES: tuple[str, ...] = ("string", "integer", "number", "boolean", "null", "array", "object")
_WORDS: tuple[str, ...] = (
    "type",
    "properties",
    "required",
    "enum",
    "const",
    "items",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
)
_WORDS += ("minLength", "maxLength", "pattern", "format", "anyOf", "oneOf", "allOf", "not", "if", "$ref", "$defs")
_WORDS += ("additionalProperties", "patternProperties", "uniqueItems", "multipleOf", "prefixItems", "contains")
_TEXTS: tuple[str, ...] = (
    "",
    "a",
    "city",
    "x y",
    "é",
    "日本",
    "🦅",
    "</tool_call>",
    "<|end|>",
    "</parameter>",
    '"',
    "\\",
    "\n",
    "$ref",
)
_PATTERNS = ("a+", "(", "[a-z]{1,4}", "(a|b)*c", "a{1,100000}", "(?=a)", "\\d+/\\d+", "^.*$", "[", "(a*)*b")
_GRAMMARS = ("start: /a+/", 'root ::= "a" | "b"', "start:", 'start: "a" start', "start: %json {}", "start: <[7]>", "{")
_NUMBERS = (0, -1, 1, 2, 7, 0.5, -1e300, 1e308, 2**53, 2**70)


class Hostile:
    """`make[kind]()` is the next body of a chat; the same seed makes the same bodies."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.make: dict[str, Callable[[], Json]] = {"schemas": self.schemas, "tools": self.tools}

    def schemas(self) -> Json:
        """A chat whose answer must match something."""
        forms: tuple[Callable[[], Json], ...] = (
            lambda: {"response_format": {"type": "json_schema", "json_schema": self._wrapped()}},
            lambda: {"response_format": self._broken({"type": "json_schema", "json_schema": self._wrapped()})},
            lambda: {"structured_outputs": {"json": self._schema(4)}},
            lambda: {"guided_json": self._schema(5)},
            lambda: {"guided_regex": self._pattern()},
            lambda: {"guided_choice": [self._text() for _ in range(self._few(2000))]},
            lambda: {"guided_grammar": self._one(_GRAMMARS)},
        )
        return self._chat(self._messages(history=False)) | self._one(forms)()

    def tools(self) -> Json:
        """A chat with tools, and with calls in its history."""
        tools: Any = [self._tool() for _ in range(self._few(130))]
        body = self._chat(self._messages(history=True)) | {
            "tools": tools if self._dice.random() < 0.95 else self._any(2)
        }
        if self._dice.random() < 0.7:
            body["tool_choice"] = self._choice(tools)
        if self._dice.random() < 0.3:
            body["parallel_tool_calls"] = self._dice.choice((True, False, None, "no"))
        return body

    def _chat(self, messages: Any) -> Json:
        return {"messages": messages, "max_tokens": self._dice.choice((1, 2, 4)), "temperature": 1, "seed": 1}

    def _messages(self, *, history: bool) -> Any:
        asked: Json = {"role": "user", "content": "How is it?"}
        if not history or self._dice.random() < 0.5:
            return [asked]
        id = self._dice.choice(("call_1", "abcdefghi", self._text()))
        function = {"name": self._name(), "arguments": self._dice.choice(("{}", '{"a": 1}', "{", "[]", self._any(3)))}
        call: Json = {"id": id, "type": "function", "function": function}
        turn = {
            "role": "assistant",
            "content": self._dice.choice((None, "", "Hm.")),
            "tool_calls": [self._broken(call)],
        }
        result = {"role": "tool", "tool_call_id": self._dice.choice((id, "other")), "content": self._text()}
        turns = [asked, self._broken(turn), self._broken(result)]
        if self._dice.random() < 0.2:
            turns.insert(
                self._dice.randrange(4), {"role": self._dice.choice(("system", "developer", "")), "content": "x"}
            )
        return turns if self._dice.random() < 0.95 else self._any(3)

    def _tool(self) -> Any:
        function: Json = {"name": self._name()}
        if self._dice.random() < 0.9:
            function["parameters"] = self._parameters()
        if self._dice.random() < 0.4:
            function["strict"] = self._dice.choice((True, True, False, None, 1))
        if self._dice.random() < 0.3:
            function["description"] = self._text() * self._dice.choice((1, 500))
        return self._broken({"type": "function", "function": function})

    def _parameters(self) -> Any:
        if self._dice.random() < 0.15:
            return self._schema(4)
        names = [self._name() for _ in range(self._few(60))]
        schema: Json = {"type": "object", "properties": {name: self._schema(2) for name in names}}
        if self._dice.random() < 0.6:
            schema["required"] = self._dice.choice((names, names[:1], ["absent"], "city"))
        if self._dice.random() < 0.5:
            schema["additionalProperties"] = self._dice.choice((False, True, {"type": "string"}))
        return schema

    def _choice(self, tools: Any) -> Any:
        names = [tool["function"]["name"] for tool in tools if _has_name(tool)]
        named = {"type": "function", "function": {"name": self._one((*names, "none"))}}
        allowed = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": self._one(("auto", "required")), "tools": [named]},
        }
        return self._one(
            ("auto", "none", "required", "required", named, named, allowed, self._broken(allowed), "always")
        )

    def _wrapped(self) -> Json:
        return {"name": self._name(), "schema": self._schema(self._few(90)), "strict": True}

    def _schema(self, depth: int) -> Any:
        """A schema that nests up to `depth` levels, sane or not."""
        roll = self._dice.random()
        if roll < 0.15:
            return self._soup(min(depth, 3))
        if roll < 0.2:
            return self._one(({"$ref": "#"}, {"$ref": "#/$defs/none"}, True, {}))
        if roll < 0.22:
            return {"enum": [str(value) for value in range(self._few(5000))]}
        kind = self._one(_TYPES) if depth < 10 else "object"
        if kind == "object" and depth > 0:
            name = self._name()
            return {"type": kind, "properties": {name: self._schema(depth - 1)}, "required": [name]}
        if kind == "array" and depth > 0:
            return {"type": kind, "items": self._schema(depth - 1), "maxItems": self._one((0, 1, 3, 10**6))}
        limits = {"string": ("minLength", "maxLength", "pattern", "format"), "integer": ("minimum", "maximum")}
        chosen = self._one(limits.get(kind, ("title",)))
        value = {"pattern": self._pattern(), "format": self._one(("date", "email", "uuid", "nonsense")), "title": "t"}
        return {"type": kind} | ({chosen: value.get(chosen, self._one(_NUMBERS))} if self._dice.random() < 0.5 else {})

    def _soup(self, depth: int) -> Json:
        """Keywords with any values."""
        return {self._one(_WORDS): self._any(depth) for _ in range(self._dice.randrange(5))}

    def _any(self, depth: int) -> Any:
        kind = self._dice.randrange(6 if depth else 4)
        if kind == 4:
            return [self._any(depth - 1) for _ in range(self._dice.randrange(4))]
        if kind == 5:
            return {self._one(_WORDS + _TEXTS): self._any(depth - 1) for _ in range(self._dice.randrange(4))}
        return (None, self._dice.random() < 0.5, self._one(_NUMBERS), self._text())[kind]

    def _broken(self, data: Json) -> Json:
        """One time in fifteen with a part that is gone, or is something else."""
        if self._dice.random() > 1 / 15:
            return data
        key = self._one(tuple(data))
        rest = {name: value for name, value in data.items() if name != key}
        return rest if self._dice.random() < 0.5 else {**data, key: self._any(2)}

    def _few(self, many: int) -> int:
        """A small number, and once in fifty a large one."""
        return many if self._dice.random() < 0.02 else self._one((0, 1, 1, 2, 3))

    def _pattern(self) -> str:
        return self._one(_PATTERNS) * self._dice.choice((1, 1, 1, 40))

    def _name(self) -> str:
        return (
            self._one((*"abcdefgh", "get_weather", "city", "days", "x" * 64))
            if self._dice.random() < 0.96
            else self._text()
        )

    def _text(self) -> str:
        return self._one(_TEXTS)

    def _one(self, values: Sequence[_V]) -> _V:
        return self._dice.choice(values)


def _has_name(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and "name" in function
