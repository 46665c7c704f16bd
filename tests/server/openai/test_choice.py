"""Where an answer ends: at every offset inside a run of tokens that were accepted together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts.messages import Finished, TokenLogprobs, Tokens, Usage
from aerie.server.dispatch.mailbox import Run
from aerie.server.openai.choice import Choice, Delta, TextRules
from aerie.server.parsing.regions import AnswerParser, Content, Event, Reasoning
from aerie.server.text.tokenizer import Tokenizer

TEXT = "The quick 🦅 naïve café, brown fox jumps over the lazy dog"


def feed(choice: Choice, ids: list[int], lengths: list[int]) -> Delta:
    """Pushes ids in runs of these lengths (over and over), then the scheduler's ending if the answer has none."""
    delta, place, turn = Delta(), 0, 0
    while place < len(ids):
        part = ids[place : place + lengths[turn % len(lengths)]]
        run = Run()
        logprobs = [TokenLogprobs(logprob=-1.0, rank_ids=[], rank_logprobs=[]) for _ in part]
        run.add(Tokens(id="x", ids=part, accepted=len(part) - 1, logprobs=logprobs))
        delta.extend(choice.take(run))
        place, turn = place + len(part), turn + 1
    delta.extend(choice.finish(Finished(id="x", reason="length", usage=Usage(prompt_tokens=1, completion_tokens=1))))
    return delta


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(max_examples=100)
def test_any_runs_give_the_text(tokenizer: Tokenizer, lengths: list[int]) -> None:
    ids = tokenizer.ids(TEXT, add_special_tokens=False)
    choice = Choice(0, TextRules(), tokenizer)
    delta = feed(choice, ids, lengths)
    assert delta.text == TEXT == "".join(text for text, _ in delta.spans)
    assert (delta.ids, choice.tokens, choice.finish_reason) == (ids, len(ids), "length")
    assert len(delta.logprobs) == len(delta.drafted) == len(delta.offsets) == len(ids)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 100])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_at_every_offset_of_a_run(tokenizer: Tokenizer, length: int, include: bool) -> None:
    ids = tokenizer.ids(TEXT, add_special_tokens=False)
    for start in range(len(TEXT) - 1):
        stop = TEXT[start : start + 3]
        if TEXT.index(stop) != start:
            continue
        choice = Choice(0, TextRules(stops=(stop,), include_stop=include), tokenizer)
        delta = feed(choice, ids, [length])
        assert delta.text == TEXT[: start + (len(stop) if include else 0)]
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
        needed = next(n for n in range(len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
        assert choice.tokens == len(delta.ids) == len(delta.logprobs) == needed


@pytest.mark.parametrize("length", [1, 3, 7, 100])
def test_a_stop_id_at_every_offset_of_a_run(tokenizer: Tokenizer, length: int) -> None:
    ids = tokenizer.ids(TEXT, add_special_tokens=False)
    for place in range(len(ids)):
        sequence = [*ids[:place], 1, *ids[place:]]
        choice = Choice(0, TextRules(stop_ids=frozenset([1])), tokenizer)
        delta = feed(choice, sequence, [length])
        assert delta.text == tokenizer.decode(ids[:place])
        assert (choice.finish_reason, choice.stop_reason, choice.tokens) == ("stop", 1, place + 1)


def test_the_models_own_end_is_no_stop_reason(tokenizer: Tokenizer) -> None:
    ids = tokenizer.ids(TEXT, add_special_tokens=False)
    for stops, reported in ((frozenset([1, ids[3]]), ids[3]), (frozenset([1]), None)):
        choice = Choice(0, TextRules(stop_ids=stops, end_ids=frozenset([1])), tokenizer)
        feed(choice, [*ids, 1], [3])
        assert (choice.finish_reason, choice.stop_reason) == ("stop", reported)


def test_a_text_held_for_a_stop_string_comes_at_the_end(tokenizer: Tokenizer) -> None:
    choice = Choice(0, TextRules(stops=("dog!",)), tokenizer)
    assert feed(choice, tokenizer.ids(TEXT, add_special_tokens=False), [4]).text == TEXT


def test_spans_tell_drafted_text(tokenizer: Tokenizer) -> None:
    letters = tokenizer.ids("abc", add_special_tokens=False)
    assert len(letters) == 3
    assert feed(Choice(0, TextRules(), tokenizer), letters, [3]).spans == [("ab", True), ("c", False)]


def test_ignored_end_tokens_say_nothing(tokenizer: Tokenizer) -> None:
    letters = tokenizer.ids("ab", add_special_tokens=False)
    choice = Choice(0, TextRules(), tokenizer)
    assert feed(choice, [letters[0], 1, letters[1]], [2]).text == "ab"
    shown = Choice(0, TextRules(skip_special=False), tokenizer)
    assert feed(shown, [letters[0], 1, letters[1]], [2]).text == "a<|end|>b"


class Late(AnswerParser):
    """Everything is reasoning until the first comma; gives one character later than it could; ends at a `j`."""

    reasoning = True

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        final, self._held = (self._held + text)[:-1], (self._held + text)[-1:]
        events: list[Event] = [Reasoning(final)] if self.reasoning else [Content(final)]
        self.reasoning = self.reasoning and "," not in text
        self.ended = "j" in text
        return events

    def finish(self) -> list[Event]:
        return [Content(self._held)]


@pytest.mark.parametrize("length", [1, 4, 100])
@pytest.mark.parametrize("stop", [(), ("brown",), ("dog!",)])
def test_the_parser_sees_the_text_to_its_end_and_may_end_it(
    tokenizer: Tokenizer, length: int, stop: tuple[str, ...]
) -> None:
    ids = tokenizer.ids(TEXT, add_special_tokens=False)
    choice = Choice(0, TextRules(stops=stop, parser=Late), tokenizer)
    delta = feed(choice, ids, [length])
    assert "".join(event.text for event in delta.events) == delta.text
    ends = "brown" if stop == ("brown",) else "j"
    assert delta.text.startswith(TEXT[: TEXT.index(ends)]) and "over" not in delta.text
    assert (choice.finish_reason, choice.ended_by_text) == ("stop", True)
    reasoned = next(n for n in range(len(ids)) if "," in tokenizer.decode(ids[:n]))
    assert choice.reasoning_tokens == reasoned < choice.tokens


def test_events_without_a_parser_are_the_text(tokenizer: Tokenizer) -> None:
    choice = Choice(0, TextRules(stops=("dog!",)), tokenizer)
    delta = feed(choice, tokenizer.ids(TEXT, add_special_tokens=False), [3])
    assert (delta.events, choice.reasoning_tokens, choice.calls) == ([Content(TEXT)], 0, 0)


def test_kept_special_tokens_are_text(tokenizer: Tokenizer) -> None:
    a = tokenizer.ids("a", add_special_tokens=False)[0]
    choice = Choice(0, TextRules(kept_ids=frozenset([4])), tokenizer)
    assert feed(choice, [3, a, 4], [2]).text == "a<|user|>"
