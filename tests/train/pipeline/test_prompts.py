"""Prompts from every form of file get one form and stable ids; bad lines are counted, shown and limited."""

import json
from pathlib import Path

import pytest

from aerie.contracts.errors import AerieError
from aerie.train.pipeline.config import PipelineConfig, Source
from aerie.train.pipeline.data.lines import BadLines, mend, read_own
from aerie.train.pipeline.prompts import make_prompts, prompt_id, read_records
from tests.train.pipeline.tiny import changed


def records_of(path: Path, limit: int = 0) -> list[dict]:
    bad = BadLines(limit)
    found = list(read_records(Source(path=str(path)), path, bad))
    bad.check()
    return found


def test_openai_and_sharegpt_say_the_same(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    shared = [{"from": names[m["role"]], "value": m["content"]} for m in messages]
    path = tmp_path / "both.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n\n" + json.dumps({"conversations": shared, "id": 7}) + "\n")
    first, second = records_of(path)
    assert first["turns"] == second["turns"] == [m for m in messages if m["role"] != "assistant"]
    assert first["id"] == second["id"] == prompt_id(first["turns"])
    assert (first["line"], second["line"]) == (1, 3)


def test_an_id_is_of_the_turns_and_their_roles() -> None:
    one = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert prompt_id(one) != prompt_id([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}])
    assert prompt_id(one) != prompt_id([{"role": "user", "content": "ab"}])
    assert prompt_id([{"role": "user", "content": "naïve"}]) == "108227b8e0db6bd26233"  # must not change, ever


def test_paragraphs_of_a_text_are_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\nOne\nmore line\n\n\nTwo\n")
    found = records_of(tmp_path / "a.txt")
    assert [record["turns"][0]["content"] for record in found] == ["One\nmore line", "Two"]
    assert [record["line"] for record in found] == [2, 6]


BAD = [
    (b"{", "no JSON"),
    (b"[1]", "no object but a list"),
    (b'{"text": "x"}', "neither `messages`"),
    (b'{"messages": [{"role": "robot", "content": "x"}]}', "message 0 has no known role"),
    (b'{"messages": [{"role": "user", "content": ""}]}', "has no text"),
    (b'{"messages": [{"role": "assistant", "content": "x"}]}', "no message of a user"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', "no UTF-8"),
    (b"[" * 100_000, "no JSON"),
]


def test_bad_lines_are_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = b'{"messages": [{"role": "user", "content": "x"}]}'
    path.write_bytes(b"\n".join(part for line, _ in BAD for part in (line, good)) + b"\n")
    bad = BadLines(len(BAD))
    assert len(list(read_records(Source(path=str(path)), path, bad))) == len(BAD)
    bad.check()
    assert [number for _, number, _ in bad.found] == list(range(1, 2 * len(BAD), 2))
    for (_, _, reason), (_, expected) in zip(bad.found, BAD, strict=True):
        assert expected in reason
    with pytest.raises(AerieError, match=r"9 bad lines; at most 8 .*\n.*bad.jsonl:1: no JSON") as failed:
        BadLines(8, bad.found).check()
    assert "bad.jsonl:17:" in failed.value.message


def test_too_many_bad_lines_fail_the_stage_and_leave_nothing_to_read(pipeline: PipelineConfig, tmp_path: Path) -> None:
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(AerieError, match=r"prompts.jsonl:9: no JSON"):
        make_prompts(changed(pipeline, prompts={"bad_lines": 0}))
    assert not (Path(pipeline.work) / "prompts").exists()
    folder = make_prompts(changed(pipeline, work=str(tmp_path / "other")))
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    assert counts == {"prompts": 8, "domains": {"chat": 8}, "bad_lines": 1}
    assert [line["line"] for line in read_own(folder / "bad_lines.jsonl")] == [9]


def test_a_source_without_files_is_named(pipeline: PipelineConfig) -> None:
    with pytest.raises(AerieError, match="nowhere"):
        make_prompts(changed(pipeline, prompts={"sources": [{"path": "nowhere/*.jsonl"}]}))


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xe2\x80\xa8"}\n{"a": ')
    assert mend(path) == [{"a": 1}, {"a": "\u2028"}]
    assert path.read_bytes() == b'{"a": 1}\n{"a": "\xe2\x80\xa8"}\n'
