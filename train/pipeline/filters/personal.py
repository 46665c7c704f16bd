"""Finds personal data in a text: e-mail addresses, phone, card and account numbers and street addresses by pattern,
names and places with a local model if one is given.

Called by the filter. `phonenumbers` (Google's rules for all countries) finds phone numbers; `python-stdnum` verifies
the check digits of cards and accounts; neither uses the network. A pattern finds what looks like personal data and
misses what does not: it lowers the risk but does not remove it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aerie.contracts.errors import AerieError

_EMAIL = re.compile(r"[\w.+%-]+@(?:[\w-]+\.)+[^\W\d_]{2,}")
_CARD = re.compile(r"(?<![\d.])(?:\d[ -]?){12,18}\d(?![\d.]?\d)")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_SSN = re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])")
_STREETS = "street|st|avenue|ave|road|rd|lane|ln|drive|dr|boulevard|blvd|court|ct|square|way|place|pl"
_ADDRESS = re.compile(
    rf"\b\d{{1,5}}[a-z]?,? (?:[A-Z][\w'.-]* ){{1,4}}(?i:{_STREETS})\b\.?"
    r"|\b[A-Z][\w-]*(?:straße|strasse|weg|platz|gasse|allee) \d{1,4}[a-z]?\b"
    r"|\b\d{1,4},? (?:rue|avenue|place|boulevard) (?:de |du |des |la |le )*[A-Z][\w'-]+"
)

Finder = Callable[[str], bool]


def finders(kinds: Sequence[str]) -> dict[str, Finder]:
    """A finder for each kind: email, phone, card, account, address. Raises AerieError if a library is missing."""
    known: dict[str, Finder] = {
        "email": lambda text: _EMAIL.search(text) is not None,
        "phone": has_phone,
        "card": has_card,
        "account": has_account,
        "address": lambda text: _ADDRESS.search(text) is not None,
    }
    try:
        import phonenumbers  # noqa: F401
        import stdnum  # noqa: F401
    except ImportError as error:
        raise AerieError(f"finding personal data needs {error.name}: pip install -e '.[train]'") from None
    return {kind: known[kind] for kind in kinds}


def has_phone(text: str) -> bool:
    """Whether the text has a number that is valid in its country: with its country code, or in North American form."""
    from phonenumbers import Leniency, PhoneNumberMatcher

    # Strict grouping: a bare run of digits is an id far more often than a phone number.
    return any(
        match.raw_string.strip().strip("0123456789") != "" and len(re.findall(r"\d", match.raw_string)) >= 8
        for match in PhoneNumberMatcher(text, "US", leniency=Leniency.STRICT_GROUPING)
    )


def has_card(text: str) -> bool:
    """Whether the text has 13 to 19 digits that begin as cards do and have the right check digit."""
    from stdnum import luhn

    numbers = (re.sub(r"\D", "", match[0]) for match in _CARD.finditer(text))
    return any(number[0] in "3456" and len(set(number)) > 1 and luhn.is_valid(number) for number in numbers)


def has_account(text: str) -> bool:
    """Whether the text has an IBAN with the right check digits and length, or a US social security number."""
    from stdnum import iban
    from stdnum.us import ssn

    if any(ssn.is_valid(match[0]) for match in _SSN.finditer(text)):
        return True
    return any(iban.is_valid(candidate) for match in _IBAN.finditer(text) for candidate in _shorter(match[0]))


def _shorter(text: str) -> Iterator[str]:
    """The match, then the match without its last words: an account may be followed by a word in capitals."""
    words = text.split(" ")
    for count in range(len(words), 0, -1):
        yield "".join(words[:count])


def names_finder(folder: str | None, labels: Sequence[str]) -> Finder | None:
    """Finds names and places with the token classifier in `folder`; no text leaves this machine.

    Raises AerieError if the folder holds no classifier, or none of its labels is wanted.
    """
    if folder is None:
        return None
    if not Path(folder, "config.json").is_file():
        raise AerieError(f"no token classifier at {folder} (filter.names_model); give the folder of a local model")
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    model = AutoModelForTokenClassification.from_pretrained(folder, local_files_only=True)
    known = {str(label).rpartition("-")[2] for label in model.config.id2label.values()}
    if not known & set(labels):
        raise AerieError(f"{folder} labels {', '.join(sorted(known))}; none of filter.names_labels {', '.join(labels)}")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    classify = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple")
    return lambda text: any(found["entity_group"] in labels for found in classify(text))
