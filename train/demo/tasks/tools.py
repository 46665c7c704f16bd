"""Calls of tools whose schemas the system prompt gives, their results, and an answer in words."""

import json
from typing import Any

from aerie.train.demo.tasks.dice import VERBS, Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, Tool, question
from aerie.train.demo.tasks.pattern import patterns, read_any
from aerie.train.demo.tasks.records import FIELDS, Record, drawn, is_number, typed

TAUGHT = patterns(
    "Please {verb} the {thing} with {arguments}.",
    "{verb} {thing}: {arguments}",
    "Can you {verb} a {thing}? Take {arguments}.",
)
NEW = patterns("I want you to {verb} the {thing}, using {arguments}.")


def draw(dice: Dice) -> Exercise:
    tools = [_tool(dice) for _ in range(dice.count(1, 3))]
    messages: list[Message] = []
    for _ in range(dice.count(1, 3)):
        tool = dice.rng.choice(tools)["function"]
        verb, thing = tool["name"].split("_")
        values = drawn(dice, tuple(tool["parameters"]["properties"]))
        arguments = " and ".join(f"{field} {value}" for field, value in values.items())
        asking = dice.phrase(TAUGHT, NEW).fill({"verb": verb, "thing": thing, "arguments": arguments})
        messages.append({"role": "user", "content": asking})
        messages.append({"role": "assistant", "content": "", "tool_calls": [_call(asking)]})
        messages.append({"role": "tool", "content": json.dumps(_result(dice))})
        messages.append({"role": "assistant", "content": _report(messages)})
    return Exercise(("tools",) * (len(messages) // 2), messages, tools)


def right(before: list[Message], answer: str) -> bool:
    """A call with just these arguments after a question, the result in words after a tool's."""
    if before[-1]["role"] == "tool":
        return answer.strip() == _report(before)
    call = answer.strip().removeprefix("<tool_call>").removesuffix("</tool_call>")
    try:
        return json.dumps(json.loads(call)) == json.dumps(_call(question(before))["function"])
    except ValueError:
        return False


def _tool(dice: Dice) -> Tool:
    verb, thing = dice.rng.choice(VERBS), dice.item() if dice.chance(0.5) else dice.word()
    fields = dice.rng.sample(list(FIELDS), dice.count(1, 3))
    types = {field: {"type": "integer" if is_number(field) else "string"} for field in fields}
    parameters = {"type": "object", "properties": types, "required": fields}
    described = f"{verb.capitalize()} a {thing}."
    return {
        "type": "function",
        "function": {"name": f"{verb}_{thing}", "description": described, "parameters": parameters},
    }


def _call(asking: str) -> dict[str, Any]:
    gaps = read_any(NEW + TAUGHT, asking)
    pairs = (pair.split(" ", 1) for pair in gaps["arguments"].split(" and "))
    arguments = {field: typed(field, value) for field, value in pairs}
    return {"type": "function", "function": {"name": f"{gaps['verb']}_{gaps['thing']}", "arguments": arguments}}


def _result(dice: Dice) -> Record:
    result: Record = {"status": dice.rng.choice(("done", "done", "failed"))}
    for field in dice.rng.sample(list(FIELDS), dice.count(1, 4)):
        result[field] = FIELDS[field](dice)
    return result


def _report(messages: list[Message]) -> str:
    """The result in words; the call that it answers names the tool."""
    call = next(message for message in reversed(messages) if message.get("tool_calls"))["tool_calls"][0]["function"]
    result = json.loads(messages[-1]["content"])
    verb, thing = call["name"].split("_")
    if result.pop("status") == "failed":
        return f"The call of {call['name']} failed: I could not {verb} the {thing}."
    details = ", ".join(f"the {field} is {value}" for field, value in result.items())
    return f"I used {call['name']} to {verb} the {thing}: {details}."
