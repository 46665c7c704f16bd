"""Several system turns become what the model's template takes, or are refused by name; none is lost."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aerie.contracts.errors import BadRequest
from aerie.server.text.template import ChatTemplate
from tests.server.conftest import ANSWER
from tests.server.openai.test_tools import serving

ANYWHERE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
FIRST_ONLY = (
    "{% if messages[0].role == 'system' %}system:{{ messages[0].content }};{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
)
STRICT = FIRST_ONLY + (
    "{% if m.role == 'system' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)
LOSING = FIRST_ONLY + "{% if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"
WITHOUT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)
DEVELOPER = (
    "{% if messages[0].role in ['developer', 'system'] %}developer:{{ messages[0].content }};"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role in ['user', 'assistant'] %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"
)


def chat(*turns: str) -> list[dict[str, Any]]:
    """`system:a`, `user:b` and so on."""
    return [{"role": turn.partition(":")[0], "content": turn.partition(":")[2]} for turn in turns]


@pytest.mark.parametrize(
    ("source", "turns", "prompt"),
    [
        (ANYWHERE, ("system:a", "system:b", "user:c"), "system:a;system:b;user:c;"),
        (ANYWHERE, ("system:a", "developer:b", "user:c"), "system:a;system:b;user:c;"),
        (ANYWHERE, ("user:a", "system:b", "user:c"), "user:a;system:b;user:c;"),
        (STRICT, ("system:a", "system:b", "user:c"), "system:a\n\nb;user:c;"),
        (STRICT, ("system:a", "developer:b", "system:d", "user:c"), "system:a\n\nb\n\nd;user:c;"),
        (STRICT, ("system:a", "user:c"), "system:a;user:c;"),
        (LOSING, ("system:a", "system:b", "user:c"), "system:a\n\nb;user:c;"),
        (DEVELOPER, ("system:a", "developer:b", "user:c"), "developer:a\n\nb;user:c;"),
        (WITHOUT, ("user:c",), "user:c;"),
    ],
)
def test_leading_turns_are_as_many_as_the_template_takes(source: str, turns: tuple[str, ...], prompt: str) -> None:
    given = chat(*turns)
    assert ChatTemplate(source, {}).render(given, {}) == prompt
    assert given == chat(*turns), "the caller's messages stay as they are"


@pytest.mark.parametrize("source", [LOSING, DEVELOPER])
def test_a_later_turn_that_would_be_lost_is_refused_by_name(source: str) -> None:
    with pytest.raises(BadRequest, match="at the beginning only") as refusal:
        ChatTemplate(source, {}).render(chat("system:a", "user:c", "assistant:d", "system:b", "user:c"), {})
    assert refusal.value.param == "messages[3].role"


@pytest.mark.parametrize(
    ("source", "turns", "reason"),
    [
        (STRICT, ("user:c", "assistant:d", "system:b", "user:c"), "roles must alternate"),
        (WITHOUT, ("system:a", "system:b", "user:c"), "no system role"),
    ],
)
def test_what_the_template_refuses_keeps_its_reason(source: str, turns: tuple[str, ...], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as refusal:
        ChatTemplate(source, {}).render(chat(*turns), {})
    assert refusal.value.param == "messages"


async def test_instructions_and_developers_share_a_turn_over_both_routes(
    folder: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with serving(folder, tmp_path, ANSWER, STRICT) as live:
        bodies: dict[str, dict[str, Any]] = {
            "chat/completions": {"messages": chat("system:a", "developer:<|end|>", "user:c")},
            "responses": {"instructions": "a", "input": chat("developer:<|end|>", "user:c")},
        }
        for path, body in bodies.items():
            async with http.post(f"{live.url}/v1/{path}", json=body) as answer:
                assert answer.status == 200, await answer.text()
        first, second = (one.prompt for one in live.fake.seen)
        assert first == second and live.tokenizer.decode(first, skip_special=False) == "system:a\n\n<|end|>;user:c;"
        assert 1 not in first, "what a user types stays text"
        late = {"input": chat("user:c", "assistant:d", "system:b", "user:c")}
        async with http.post(f"{live.url}/v1/responses", json=late) as answer:
            error = json.loads(await answer.text())["error"]
            assert (answer.status, error["param"]) == (400, "input")
