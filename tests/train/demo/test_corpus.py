"""The pinned corpus is what it was, and collecting gives entries of its form."""

import hashlib
from pathlib import Path

from aerie.train.demo.corpus import LONGEST, Entry, read, write
from tests.train.conftest import CORPUS

_TEXT = "b9baab95dde6aa8d86dc5f37fd9a22c9dc78963784cce5effc8886d12abf01d3"


def test_the_pinned_corpus_is_whole() -> None:
    entries = read(CORPUS)
    digest = hashlib.sha256("".join(f"{e.name}\0{e.kind}\0{e.text}\0" for e in entries).encode()).hexdigest()
    assert (len(entries), digest) == (5789, _TEXT)


def test_entries_are_named_documented_and_short() -> None:
    for entry in read(CORPUS):
        assert entry.kind in {"module", "class", "method", "function"}
        assert entry.name and 0 < len(entry.text) <= LONGEST and entry.text == entry.text.strip()


def test_equal_entries_write_equal_bytes(tmp_path: Path) -> None:
    entries = [Entry("a.b", "function", "Does Ω.\n\nMore."), Entry("c", "module", "Is c.")]
    for name in ("one", "two"):
        write(tmp_path / name, entries)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read(tmp_path / "one") == entries
