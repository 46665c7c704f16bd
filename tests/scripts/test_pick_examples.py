"""Examples are picked whose answers are right: calls, results and questions are played in the page's order."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from aerie.train.demo.tasks import TASKS
from scripts import pick_examples
from scripts.pick_examples import FIXED, KINDS, Kind, NotRight, drawn, picked, play, with_schema

TOOLS, JSON = KINDS[0], KINDS[1]


class Knowing:
    """A client whose server answers every drawn example as its exercise does, but for the answers `spoilt`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *spoilt: int, tokens: int = 100) -> None:
        self.asked: list[dict[str, Any]] = []
        self._spoilt, self._tokens = spoilt, tokens
        self._answers: dict[str, dict[str, Any]] = {}
        self.models = SimpleNamespace(list=lambda: SimpleNamespace(data=[SimpleNamespace(id="demo")]))
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        for name, task in TASKS.items():
            monkeypatch.setattr(task, "draw", lambda dice, name=name, draw=task.draw: self._learn(draw(dice)))

    def _learn(self, exercise: Any) -> Any:
        for before, message in zip(exercise.messages, exercise.messages[1:], strict=False):
            if message["role"] == "assistant":
                self._answers[before["content"]] = message
        return exercise

    def _create(self, **fields: Any) -> ChatCompletion:
        self.asked.append(json.loads(json.dumps(fields)))
        known = self._answers[fields["messages"][-1]["content"]]
        calls = [
            {"id": f"call-{len(self.asked)}", "type": "function"}
            | {"function": {"name": one["function"]["name"], "arguments": json.dumps(one["function"]["arguments"])}}
            for one in known.get("tool_calls", ())
        ]
        text = "x" if len(self.asked) in self._spoilt else known["content"]
        message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
        usage = {"prompt_tokens": 1, "completion_tokens": self._tokens, "total_tokens": 1}
        return ChatCompletion.model_validate(
            {"id": "1", "created": 0, "model": "demo", "object": "chat.completion", "usage": usage}
            | {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        )


def test_a_tool_s_result_stands_behind_its_call_and_before_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Knowing(monkeypatch)
    example = next(drawn(TOOLS))
    assert len(example["says"]) == 3 == len(example["returns"])
    assert play(client, example) == 100
    assert [one["messages"][-1]["role"] for one in client.asked] == ["user", "tool"] * 3
    last = client.asked[-1]["messages"]
    assert [one["role"] for one in last[:4]] == ["user", "assistant", "tool", "assistant"]
    assert last[2]["tool_call_id"] == last[1]["tool_calls"][0]["id"] and last[2]["content"] == example["returns"][0]
    assert [tool["function"] for tool in client.asked[0]["tools"]] == example["tools"]


def test_one_wrong_answer_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(1, 7):
        client = Knowing(monkeypatch, place)
        with pytest.raises(NotRight, match="is wrong after"):
            play(client, next(drawn(TOOLS)))
        assert len(client.asked) == place


def test_the_first_that_is_right_and_as_long_as_asked_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (example for _, example in zip(range(2), drawn(JSON), strict=False))
    assert picked(Knowing(monkeypatch), JSON, 2) == first
    assert picked(Knowing(monkeypatch, 1), JSON, 2) == second
    for client, tries in ((Knowing(monkeypatch, tokens=10), 3), (Knowing(monkeypatch, 1, 2), 2)):
        with pytest.raises(NotRight, match=f"none of {tries}"):
            picked(client, JSON, tries)


def test_a_schema_holds_the_same_question(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Knowing(monkeypatch)
    example = with_schema(next(drawn(JSON)))
    assert json.dumps(example["schema"]) in example["says"][0]
    play(client, example)
    assert client.asked[0]["response_format"]["json_schema"]["schema"] == example["schema"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_can_be_drawn(kind: Kind) -> None:
    """About as long as asked: a token has two to five characters."""
    for _, example in zip(range(20), drawn(kind), strict=False):
        assert len(example["says"]) == kind.turns and example["task"] == kind.task
        if kind.least > 200:
            assert example["max_tokens"] > kind.most
    lengths = [len(example["says"][0]) for _, example in zip(range(200), drawn(kind), strict=False)]
    assert any(2 * kind.least < length < 5 * kind.most for length in lengths)


def test_the_command_writes_what_is_right_and_checks_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Knowing(monkeypatch)
    client._answers[FIXED["says"][0]] = {"role": "assistant", "content": ", ".join(map(str, range(20, 61, 2)))}
    monkeypatch.setattr(pick_examples, "OpenAI", lambda **fields: client)
    monkeypatch.setattr(pick_examples, "KINDS", (TOOLS, JSON))
    out = tmp_path / "examples.json"
    monkeypatch.setattr("sys.argv", ["pick_examples.py", "http://server", "--file", str(out)])
    assert pick_examples.main() == 0
    written = json.loads(out.read_text())
    assert [one["name"] for one in written] == [FIXED["name"], TOOLS.name, JSON.name, "JSON under a schema"]
    monkeypatch.setattr("sys.argv", ["pick_examples.py", "http://server", "--file", str(out), "--check"])
    assert pick_examples.main() == 0 and "JSON under a schema: right" in capsys.readouterr().out
    client._answers[FIXED["says"][0]] = {"role": "assistant", "content": "20, 22"}
    assert pick_examples.main() == 1 and "'20, 22' is wrong" in capsys.readouterr().err
