"""One answer as it grows: takes committed tokens as they arrive, returns text and its metadata.

Made by the routes, one per choice, and fed by `generation`. It decides where the answer ends (stop strings, stop ids).
The end may lie inside a run of tokens committed together; tokens after the end are dropped and not counted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aerie.contracts.messages import DraftTree, Finished, TokenLogprobs, Usage
from aerie.server.dispatch.mailbox import Run
from aerie.server.parsing.regions import AnswerParser, Event, add
from aerie.server.text.stops import StopScanner
from aerie.server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules for decoding tokens to text and for ending the text."""

    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the answer. Includes the model's EOS tokens unless the request ignores them."""
    end_ids: frozenset[int] = frozenset()
    """The model's EOS tokens: an answer that ends with one has no stop reason from the request."""
    include_stop: bool = False
    min_tokens: int = 0
    """Tokens whose text no stop string may touch."""
    skip_special: bool = True
    kept_ids: frozenset[int] = frozenset()
    """Special tokens whose text the parser needs; they are not skipped."""
    parser: Callable[[], AnswerParser] = AnswerParser
    """Makes the parser of one answer."""


@dataclass(slots=True)
class Delta:
    """What one step added to a choice. `spans` holds its text in pieces, each marked as drafted or not."""

    text: str = ""
    """The text as the model wrote it; with reasoning and calls, their markers included."""
    events: list[Event] = field(default_factory=list)
    """The same text as regions: reasoning, content, tool calls."""
    ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Character offset of each token's text in the answer."""
    spans: list[tuple[str, bool]] = field(default_factory=list)
    trees: list[tuple[DraftTree, list[int]]] = field(default_factory=list)
    """Each step's draft with its accepted tokens."""

    def extend(self, other: "Delta") -> None:
        self.text += other.text
        self.add_events(other.events)
        self.ids += other.ids
        self.drafted += other.drafted
        self.logprobs += other.logprobs
        self.offsets += other.offsets
        self.trees += other.trees
        for text, drafted in other.spans:
            self.add_span(text, drafted)

    def add_events(self, events: list[Event]) -> None:
        for event in events:
            add(self.events, event)

    def add_span(self, text: str, drafted: bool) -> None:
        """Merges the text into the last span if both are of one kind."""
        if self.spans and self.spans[-1][1] == drafted:
            text = self.spans.pop()[0] + text
        self.spans.append((text, drafted))


class Choice:
    def __init__(self, index: int, rules: TextRules, tokenizer: Tokenizer) -> None:
        self.index = index
        self.tokens = 0
        """Tokens of the answer, up to the one that ends it."""
        self.reasoning_tokens = 0
        """Those of them that began or ended inside reasoning."""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        """The request's stop string or stop id that ended the answer; None if the model ended it."""
        self.ended_by_text = False
        """Whether the answer ended in its text, which the scheduler does not see."""
        self.usage: Usage | None = None
        """The scheduler's usage record, once it has ended the request."""
        self._rules = rules
        self._parser = rules.parser()
        self._text = tokenizer.start_text(skip_special=rules.skip_special, kept=rules.kept_ids)
        self._pieces = tokenizer.pieces
        self._scanner = StopScanner(rules.stops, include=rules.include_stop)
        self._decoded = 0
        self._unsent: deque[tuple[int, bool]] = deque()
        """Characters decoded but not sent yet, by the token that they came with."""

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def calls(self) -> int:
        """Tool calls so far."""
        return self._parser.calls

    @property
    def parse_failures(self) -> int:
        return self._parser.failures

    def take(self, run: Run) -> Delta:
        """Takes committed tokens. Ignores them once the answer has ended."""
        delta = Delta(trees=[] if self.ended else run.trees)
        for place, token in enumerate(run.ids):
            if self.ended:
                break
            drafted = run.drafted[place]
            delta.offsets.append(self._decoded)
            self._add(delta, token, drafted)
            delta.ids.append(token)
            delta.drafted.append(drafted)
            if run.logprobs:
                delta.logprobs.append(run.logprobs[place])
        return delta

    def finish(self, message: Finished) -> Delta:
        """Takes the scheduler's ending and returns the text held back until then."""
        self.usage = message.usage
        delta = Delta()
        if not self.ended:
            self._close(delta, "stop" if message.reason == "stop" else "length", message.stop_id)
        return delta

    def _add(self, delta: Delta, token: int, drafted: bool) -> None:
        self.tokens += 1
        reasoned = self._parser.reasoning
        self._take_token(delta, token, drafted)
        self.reasoning_tokens += reasoned or self._parser.reasoning

    def _take_token(self, delta: Delta, token: int, drafted: bool) -> None:
        if token in self._rules.stop_ids:
            if self._rules.include_stop and not self._pieces.special(token):
                self._send(delta, self._scan(self._decode(self._text.push(token), drafted)))
            self._close(delta, "stop", token)
            return
        self._send(delta, self._scan(self._decode(self._text.push(token), drafted)))
        if self._scanner.found is not None or self._parser.ended:
            self.ended_by_text = True
            self._end(delta, "stop", self._scanner.found)

    def _close(self, delta: Delta, reason: str, stop_id: int | None) -> None:
        if self._scanner.found is None:
            self._send(delta, self._scan(self._decode(self._text.flush(), False)))
        if self._scanner.found is None:
            self._send(delta, self._scanner.flush())
            self._end(delta, reason, None if stop_id in self._rules.end_ids else stop_id)
        else:
            self._end(delta, "stop", self._scanner.found)

    def _end(self, delta: Delta, reason: str, stop: str | int | None) -> None:
        self.finish_reason, self.stop_reason = reason, stop
        delta.add_events(self._parser.finish())

    def _decode(self, text: str, drafted: bool) -> str:
        self._decoded += len(text)
        if text:
            self._unsent.append((len(text), drafted))
        return text

    def _scan(self, text: str) -> str:
        return self._scanner.push(text) if self.tokens > self._rules.min_tokens else text

    def _send(self, delta: Delta, text: str) -> None:
        delta.text += text
        delta.add_events(self._parser.feed(text))
        while text:
            length, drafted = self._unsent.popleft()
            if length > len(text):
                self._unsent.appendleft((length - len(text), drafted))
            delta.add_span(text[:length], drafted)
            text = text[length:]
