"""Finds texts that nearly repeat an earlier one: MinHash signatures of word triples in a locality-sensitive index.

Called by the filter. Broder, "On the resemblance and containment of documents" (1997); the index is `datasketch`'s.
Signatures depend on the text alone, so the same prompts in the same order give the same result.
"""

import hashlib
import re

from aerie.contracts.errors import AerieError

_PERMUTATIONS = 128
_TOGETHER = 3
_SEED = 1


def words_of(text: str) -> list[str]:
    """Lower-case words; everything else in the text is ignored."""
    return re.findall(r"\w+", text.casefold())


def normalized(text: str) -> str:
    """Equal for texts that differ only in case and white space."""
    return " ".join(text.casefold().split())


class NearDuplicates:
    """Texts seen so far. `threshold` is the estimated Jaccard similarity that makes a duplicate; 1 finds none."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise AerieError(f"finding near duplicates needs {error.name}: pip install -e '.[train]'") from None
        self._make = MinHash
        # The index proposes too many and each proposal is checked, since one that it misses is lost for good.
        self._index = MinHashLSH(threshold=min(threshold, 0.9), num_perm=_PERMUTATIONS, weights=(0.1, 0.9))
        self._signatures: dict[str, MinHash] = {}

    def find(self, key: str, text: str) -> str | None:
        """The key of an earlier text that this one nearly repeats; if there is none, remembers this one."""
        if self._threshold >= 1:
            return None
        words = words_of(text)
        if len(words) < _TOGETHER:  # too short for anything but equality, which is another rule's
            return None
        signature = self._make(num_perm=_PERMUTATIONS, seed=_SEED, hashfunc=_hash)
        signature.update_batch([" ".join(words[at : at + _TOGETHER]).encode() for at in range(len(words) - 2)])
        close = (other for other in self._index.query(signature) if self._near(signature, other))
        found = min(close, default=None)
        if found is None:
            self._index.insert(key, signature)
            self._signatures[key] = signature
        return found

    def _near(self, signature: object, other: str) -> bool:
        return bool(self._signatures[other].jaccard(signature) >= self._threshold)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little")


class Overlap:
    """Whether a text shares `together` consecutive words with an evaluation prompt, or equals one."""

    def __init__(self, evaluated: list[str], together: int) -> None:
        self._together = together
        self._whole = {tuple(words_of(text)) for text in evaluated}
        self._runs = {run for text in evaluated for run in self._runs_of(words_of(text))}

    def has(self, text: str) -> bool:
        words = words_of(text)
        return tuple(words) in self._whole or not self._runs.isdisjoint(self._runs_of(words))

    def _runs_of(self, words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[at : at + self._together]) for at in range(len(words) - self._together + 1)}
