"""Random values for exercises: invented names, words, numbers and phrasings, some of which training never sees.

Whether a value is held out depends on its text alone, so training and measuring never meet. A kind of held-out is a
choice of two switches: values that are new, phrasings that are new.
"""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def words(listed: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(listed.split())


CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)

ITEMS = words("""
    apple bag ball basket bell blanket book boot bottle bowl bread bucket button cake camera candle card chair clock
    coat coin cup curtain desk door drum egg fan flag fork glove hammer hat helmet jacket jar key ladder lamp lemon
    letter lock map mask mirror mug needle paper pen pencil phone photo piano pillow plate pot radio ring rope ruler
    shirt shoe soap sock spoon stamp table tent ticket towel toy tray umbrella vase wallet wheel whistle
""")
JOBS = words("""
    actor baker barber builder butcher carpenter chef clerk dentist doctor driver editor engineer farmer gardener
    judge lawyer miner nurse painter pilot plumber poet sailor singer surgeon tailor teacher waiter writer
""")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLORS = ("red", "blue", "green", "black", "white", "yellow", "brown", "purple", "orange", "pink", "gray", "silver")
VERBS = words("""
    add book build check close count create delete find get list open print read send set show start
""")

_HELD_OUT_OF = 8


def held_out(value: object) -> bool:
    """Whether training never sees this value; one in eight."""
    return zlib.crc32(str(value).encode()) % _HELD_OUT_OF == 0


class Dice:
    """Draws values. `size` in [0, 1] says how long exercises get, `new_values` and `new_phrasings` what is held out."""

    def __init__(
        self, rng: random.Random, *, size: float = 1.0, new_values: bool = False, new_phrasings: bool = False
    ) -> None:
        self.rng = rng
        self.size = size
        self._new_values = new_values
        self._new_phrasings = new_phrasings

    def value(self, make: Callable[[random.Random], T]) -> T:
        """One of `make` that is held out or not, as these dice are."""
        while held_out(found := make(self.rng)) != self._new_values:
            pass
        return found

    def phrase(self, taught: Sequence[T], new: Sequence[T]) -> T:
        return self.rng.choice(new if self._new_phrasings else taught)

    def count(self, least: int, most: int) -> int:
        """How many of something; the size scales the most."""
        return self.rng.randint(least, max(least, round(least + (most - least) * self.size)))

    def name(self) -> str:
        """An invented name, of a person or a town."""
        return self.value(_word).capitalize()

    def names(self, count: int) -> list[str]:
        """Different names."""
        return self.several(self.name, count)

    def word(self) -> str:
        """An invented word in small letters."""
        return self.value(_word)

    def item(self) -> str:
        return self.rng.choice(ITEMS)

    def number(self, least: int, most: int) -> int:
        return self.rng.randint(least, most)

    def several(self, draw: Callable[[], T], count: int) -> list[T]:
        """Different values."""
        found: list[T] = []
        while len(found) < count:
            if (value := draw()) not in found:
                found.append(value)
        return found

    def chance(self, share: float) -> bool:
        return self.rng.random() < share


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3))))
