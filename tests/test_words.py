"""One word for one thing: the second meanings that docs/glossary.md rules out do not come back."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import HOME

ANYWHERE = {"told", "twin", "twins", "wishes", "deaf"}
"""In no name: reported, reference, parameters, ignores are the words."""
IN_ROOMS = {
    "follow": ("extend: the head takes in committed tokens", ("spec", "native", "scheduler")),
    "follows": ("extend: the head takes in committed tokens", ("spec", "native", "scheduler")),
    "followed": ("extend: the head takes in committed tokens", ("spec", "native", "scheduler")),
    "turn": (
        "a turn is one message of a conversation",
        ("contracts", "engine", "spec", "native", "scheduler", "probe"),
    ),
    "turns": (
        "a turn is one message of a conversation",
        ("contracts", "engine", "spec", "native", "scheduler", "probe"),
    ),
    "turned": ("rotate: RoPE on queries and keys", ("engine", "spec", "native")),
    "settled": ("settle: take in the output of a step; round to bf16", ("native",)),
    "course": ("schedule, stream or progress", ("aerie", "bench", "bridge", "probe", "train", "server", "scheduler")),
}
"""Words that are names of something else in these rooms, and why."""
PHRASES = re.compile(
    r"\b(?:(?<!there )is no (?!longer|more\b|different|such\b)[a-z]+|spoken of|without a word|what is told|"
    r"by (?:its|their) own account|\btwins?\b)",
    re.IGNORECASE,
)
"""Phrases that a reader has to translate: "X is no Y" is "X is not a Y"."""
SKIPPED = ("bench/results/", "models/", "train/data/", "CHANGELOG.md", "tests/test_words.py")


def files(*patterns: str) -> Iterator[tuple[str, str]]:
    names = subprocess.run(["git", "ls-files", *patterns], cwd=HOME, capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        if not name.startswith(SKIPPED) and (HOME / name).is_file():
            yield name, (HOME / name).read_text(encoding="utf-8")


def words(name: str) -> list[str]:
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")


def names(place: str, text: str) -> set[str]:
    if place.endswith(".py"):
        return {
            found.string
            for found in tokenize.generate_tokens(io.StringIO(text).readline)
            if found.type == tokenize.NAME
        }
    return set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r"//[^\n]*", "", text)))


def bad_names(place: str, text: str) -> Iterator[str]:
    room = place.split("/", maxsplit=1)[0]
    if Path(place).name.startswith("test_") or room == "tests":
        wrong = {name: "" for name in names(place, text) if name.strip("_") in ANYWHERE}
    else:
        wrong = {}
        for name in names(place, text):
            for word in words(name):
                why, rooms = IN_ROOMS.get(word, ("", ()))
                if word in ANYWHERE or room in rooms:
                    wrong[name] = why
    for name, why in sorted(wrong.items()):
        yield f"{place}: {name!r} has a word that the glossary rules out{': ' if why else ''}{why}"


def bad_phrases(place: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := PHRASES.search(line):
            yield f"{place}:{number} says {found[0]!r}"


def test_names_keep_to_the_glossary() -> None:
    found = [one for place, text in files("*.py", "native/src/*") for one in bad_names(place, text)]
    assert not found, "\n".join(found)


def test_texts_keep_to_the_glossary() -> None:
    found = [one for place, text in files("*.py", "*.md", "*.yaml", "native/src/*") for one in bad_phrases(place, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("server/x.py", "told = 1"),
        ("spec/round/x.py", "def follow(): ..."),
        ("engine/model/x.py", "turned = rotate(x)"),
        ("native/src/x.cpp", "void settled(int n);"),
        ("probe/x.py", "class Course: ..."),
        ("tests/x.py", "twin = 1"),
    ],
)
def test_a_name_with_a_second_meaning_is_found(place: str, text: str) -> None:
    assert list(bad_names(place, text))


@pytest.mark.parametrize("text", ["'x' is no shape", "the twin of the loop", "it is spoken of in the log"])
def test_a_phrase_to_translate_is_found(text: str) -> None:
    assert list(bad_phrases("docs/x.md", text))


def test_ordinary_sentences_pass() -> None:
    assert not list(bad_phrases("docs/x.md", "there is no limit, and a lane is no longer needed"))
    assert not list(bad_names("bench/x.py", "turns = 3"))


WIDEST = 125


def wide_lines(text: str) -> list[str]:
    """A row of a table cannot be folded, nor can an address."""
    return [line for line in text.splitlines() if len(line) > WIDEST and not re.match(r"\s*\||\S+://", line)]


def test_documents_fold() -> None:
    assert [line for _, text in files("README.md", "CHANGELOG.md", "docs/*.md") for line in wide_lines(text)] == []


def test_a_wide_line_is_found() -> None:
    wide = "word " * (WIDEST // 5 + 1)
    assert wide_lines(f"{wide}\n| {wide} |\nshort\n") == [wide]
