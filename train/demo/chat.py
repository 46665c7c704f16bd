"""The words of the demo target: its tokenizer, its chat template, and exercises as ids with the answers marked.

A value has the same ids wherever it stands, after a space, a quote or a bracket, which makes it one thing to copy:
words that exercises draw, names and numbers take no space before them, and the syllables of an invented word are one id
each. Numbers are read in pairs of digits from their end, so that one below 100 is one id.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from aerie.train.demo.batches import Sample
from aerie.train.demo.tasks.code import NAMES, TYPES
from aerie.train.demo.tasks.dice import COLORS, CONSONANTS, ITEMS, JOBS, SYLLABLES, VERBS, VOWELS
from aerie.train.demo.tasks.exercise import Exercise, Message
from aerie.train.demo.tasks.records import FIELDS

SPECIAL = ("<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")
MARKS = (
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
CHAT_TEMPLATE = (Path(__file__).parent / "chat.jinja").read_text()
_EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
_SYLLABLE = f"[{CONSONANTS}][{VOWELS}]"
_DRAWN = f"(?:{'|'.join([*ITEMS, *JOBS, *COLORS, *VERBS, *NAMES, *TYPES, *FIELDS])})(?=s?(?![a-z]))"
_WORDS = Regex(
    "|".join(
        (
            _DRAWN,
            f"(?i:{_SYLLABLE})(?=(?:{_SYLLABLE})*(?![A-Za-z]))",
            rf" ?(?!{_DRAWN}|(?:{_SYLLABLE}){{2,}}(?![a-z]))[a-z]+",
            "[A-Z]+(?![a-z])",
            "[A-Z][a-z]*",
            "[0-9](?=(?:[0-9]{2})+(?![0-9]))",
            "[0-9]{1,2}",
            r"(?: ?[^\sA-Za-z0-9])+(?: |\n*)",
            r"\s+",
        )
    )
)
_SYLLABLE_WEIGHT = 10_000


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` ids whose first merges are the syllables of invented names."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(_WORDS, behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([*_syllables(), *texts], _trainer(vocabulary - len(MARKS)))
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])  # clients see these
    return _with_template(tokenizer)


def kept_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The one that `train_tokenizer` made and a run left in `folder`."""
    return _with_template(Tokenizer.from_file(str(folder / "tokenizer.json")))


def _with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        pad_token=SPECIAL[2],
        additional_special_tokens=list(SPECIAL[3:]),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _trainer(vocabulary: int) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _syllables() -> Iterable[str]:
    """Each often enough to be merged before any pair that crosses syllables."""
    for syllable in SYLLABLES:
        yield "\n".join([syllable, syllable.capitalize()] * _SYLLABLE_WEIGHT)


class Chat:
    """Renders exercises with the chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._start, self._end = (self.encode(mark)[0] for mark in ("<|assistant|>", "<|end|>"))
        self._empty = len(self.encode(_EMPTY_THOUGHT))

    @classmethod
    def of(cls, folder: Path) -> "Chat":
        """With the tokenizer and the template of a finished target."""
        return cls(PreTrainedTokenizerFast.from_pretrained(folder))

    def sample(self, exercise: Exercise) -> Sample:
        """The whole conversation; the tokens of every answer count, its `<|end|>` included."""
        text = self._text(exercise, exercise.messages, ask=False)
        if not exercise.thinking:
            before, after = text.rsplit("<|assistant|>", 1)
            text = f"{before}<|assistant|>{_EMPTY_THOUGHT}{after}"
        ids = self.encode(text)
        answer, inside = [], False
        for token in ids:
            answer.append(inside)
            inside = token == self._start or (inside and token != self._end)
        if not exercise.thinking:
            start = len(ids) - ids[::-1].index(self._start)
            answer[start : start + self._empty] = [False] * self._empty
        return Sample(ids, answer)

    def prompt(self, exercise: Exercise, index: int) -> list[int]:
        """What the model reads before it writes the message `index`."""
        return self.encode(self._text(exercise, exercise.messages[:index], ask=True))

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _text(self, exercise: Exercise, messages: list[Message], *, ask: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=[*exercise.tools] or None,
                add_generation_prompt=ask,
                tokenize=False,
                enable_thinking=exercise.thinking,
            )
        )
