"""Workloads: the same on every machine, and as many as asked."""

import json
from pathlib import Path

import jsonschema
import pytest

from aerie.bench.loads.workloads import WORKLOADS, UnknownWorkload, find


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_again_and_never_ends(name: str) -> None:
    once, again = (find(name).conversations(300, max_tokens=5, seed=1) for _ in range(2))
    assert once == again and len(once) == 300
    assert find(name).conversations(20, max_tokens=5, seed=2) != once[:20]
    assert len(set(once)) >= 40, "enough different ones"


def test_kinds_are_what_they_say() -> None:
    assert all(len(set(talk.turns)) == 3 and talk.system for talk in find("multi-turn").conversations(5, max_tokens=5))
    assert all(len(talk.turns[0]) > 2000 for talk in find("long-prompt").conversations(5, max_tokens=5))
    assert "misleading" in find("random-words").caution or "worse" in find("random-words").caution


def test_forms_are_schemas_that_end() -> None:
    for talk in find("schemas").conversations(50, max_tokens=5):
        format = json.loads(talk.fields)["response_format"]
        schema = format["json_schema"]["schema"]
        jsonschema.Draft202012Validator.check_schema(schema)
        assert format["type"] == "json_schema"
        bounds = talk.fields.count('"enum"') + talk.fields.count('"maxLength"')
        assert talk.fields.count('"type": "string"') == bounds, "strings are bounded"
    for talk in find("tools").conversations(50, max_tokens=5):
        fields = json.loads(talk.fields)
        assert fields["tool_choice"] == "required"
        for tool in fields["tools"]:
            jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])


def test_some_exercises_bring_tools() -> None:
    talks = find("demo").conversations(88, max_tokens=5)
    tools = [json.loads(talk.fields)["tools"] for talk in talks if talk.fields]
    assert len(set(talks)) > 80 and len(tools) == 8
    assert all(tool["function"]["parameters"]["properties"] for listed in tools for tool in listed)


def test_a_file_of_messages(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    talk = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}
    file.write_text(f"{json.dumps(talk)}\n\n{json.dumps(talk)}\n")
    found = find(str(file)).conversations(3, max_tokens=5)
    assert len(found) == 3 and found[0].turns == ("a",) and found[0].system == "s"


@pytest.mark.parametrize("line", ["{", "[]", '{"messages": []}', '{"messages": [{"role": "user"}]}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(f'{{"messages": [{{"role": "user", "content": "a"}}]}}\n{line}\n')
    with pytest.raises(UnknownWorkload, match="line 2"):
        find(str(file)).conversations(2, max_tokens=5)
    with pytest.raises(UnknownWorkload, match="cannot read"):
        find(str(tmp_path / "none.jsonl")).conversations(1, max_tokens=5)
