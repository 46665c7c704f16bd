"""Stop strings against an obvious oracle: look at the whole text."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.server.text.stops import StopScanner

small = st.text(alphabet="ab", max_size=12)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=4)


def oracle(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Goes letter by letter, and ends where any stop string first ends."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(text=small, stops=stops, include=st.booleans(), cuts=st.lists(st.integers(0, 12), max_size=6))
@settings(max_examples=500)
def test_any_split_ends_as_the_whole_does(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    scanner = StopScanner(tuple(stops), include=include)
    edges = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    said = ""
    for start, end in itertools.pairwise(edges):
        if scanner.found is None:
            said += scanner.push(text[start:end])
    if scanner.found is None:
        said += scanner.flush()
    assert (said, scanner.found) == oracle(text, stops, include)


def test_only_what_may_begin_a_stop_string_is_held() -> None:
    scanner = StopScanner(("<end>", "\n\n"))
    assert scanner.push("some text") == "some text"
    assert scanner.push(" <e") == " "
    assert scanner.push("x\n") == "<ex"
    assert scanner.push("more") == "\nmore"
    assert scanner.flush() == ""
