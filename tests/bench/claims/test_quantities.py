"""What counts as a measured quantity, and what is set or named instead."""

import pytest

from aerie.bench.claims.quantities import unsourced


@pytest.mark.parametrize(
    "text",
    [
        "a step takes 3 ms",
        "1.6x faster",
        "at 98 % of it",
        "12 times as fast",
        "a length of 2.93 tokens",
        "1,864 tokens/s",
        "5 tokens a second",
        "a wheel of 33 MB",
        "in 4 minutes",
        "half a millisecond",
        "three microseconds",
        "| rows | speed |\n|---|---|\n| 1 | 388 |",
        "| a | 1.3 / 2 |",
        "Aerie needs 0.5 of it",
    ],
)
def test_a_measured_quantity_needs_a_source(text: str) -> None:
    assert list(unsourced(f"Aerie:\n\n{text}\n"))


def test_its_line_is_said() -> None:
    assert list(unsourced("one\n\ntwo\nis 2.5 wide\n\n```\n9 ms\n```\n\n3 ms")) == [(4, "2.5"), (10, "3")]


@pytest.mark.parametrize(
    "text",
    [
        "at T = 0.8 and T=0.8",
        "Python 3.11, Llama-3.1, release 0.5.23 and arXiv 2602.01469",
        "96 cells of 25 prompts, at most 64 tokens",
        "a Xeon at 2.5 GHz",
        "it waits `30` s, `0.5` at most",
        "```\nsleeps 30 s\n```",
        "[a](b-1.5.md)",
        "<!-- given: settings -->\n| rows | limit |\n|---|---|\n| 1 | 388 |",
        "| 400 | bad input |",
    ],
)
def test_what_is_set_or_named_is_no_claim(text: str) -> None:
    assert not list(unsourced(text))
