"""A row whose answer must match a grammar, on a device that is the host or runs beside it."""

from dataclasses import dataclass, field
from threading import Lock

from aerie.engine.grammars.matcher import GrammarFailed, Matcher


@dataclass(slots=True, weakref_slot=True, eq=False)
class Guided:
    """The state of one."""

    row: int
    matcher: Matcher
    end_ids: frozenset[int]
    filtered: bool
    """Its support depends on the mask."""
    taken: int = 0
    """How many tokens of the step in progress the matcher has taken: all along the row's path but an end token."""
    walked: bool = False
    """Whether the matcher has moved in the step in progress. If not, kernels have held the choice to the mask."""
    forbidden: int = 0
    """Its drafts in the step in progress that the target would have chosen, were they allowed."""
    over: bool = False
    """It has ended, or failed."""
    drafts: bool = False
    """Whether its chains begin with what the grammar forces."""
    due: list[int] = field(default_factory=list)
    """Tokens that it has committed and the matcher has not taken."""
    busy: "Lock | None" = None
    """Held while the thread has the matcher."""
    fault: str | None = None
    """Why no mask could be made ahead."""
    masks: int = 0
    """Made ahead for the step in progress, and the seconds that this took."""
    seconds: float = 0.0

    def lend(self) -> Lock:
        """Its matcher is another thread's, until that releases what this returns."""
        self.busy = Lock()
        self.busy.acquire()
        return self.busy

    def forget_step(self) -> None:
        """Of what happened in the last step nothing counts in the next one."""
        self.taken = self.forbidden = self.masks = 0
        self.seconds, self.walked = 0.0, False

    def wait(self) -> None:
        """Until the matcher has taken what was committed. Raises GrammarFailed."""
        if self.busy is not None:
            with self.busy:
                self.busy = None
        if self.fault is not None:
            raise GrammarFailed(self.fault)
