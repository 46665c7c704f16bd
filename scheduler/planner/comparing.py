"""When plain steps are measured between drafts: while all steps draft, nothing else shows what those cost by now.

Used by `goodput`.
"""

COMPARE_FIRST, COMPARE_STEPS, SURE = 16, 64, 1.3
"""After so many drafting steps, twice as many each time up to a most. Then plain ones come less often if drafting is so
much ahead that no error of a few of them could make it so.
"""
COMPARED = 4
"""So many plain steps: the first do not show the time between two like them, and one of them says little."""


class Comparing:
    def __init__(self) -> None:
        self._drafted = 0
        """Drafting steps since the last plain one."""
        self._after = COMPARE_FIRST
        """Drafting steps after which plain ones are measured."""

    def note(self, *, drafts: bool) -> None:
        """A step is planned."""
        self._drafted = self._drafted + 1 if drafts else 0

    def due(self, gain: float) -> bool:
        """Whether plain steps come now, drafts promising so many times their speed."""
        sure = gain >= SURE and self._after == COMPARE_STEPS
        if self._drafted < self._after * (4 if sure else 1):
            return False
        self._after = min(2 * self._after, COMPARE_STEPS)
        return True
