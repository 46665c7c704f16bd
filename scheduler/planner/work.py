"""The work of a step. Used by `costs`, and by all that ask it."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepWork:
    """What a step did, or the mean of several, as far as its duration depends on it."""

    rows: int
    tokens: float
    """Nodes verified, roots included."""
    context: float
    """Tokens that its rows hold, in total."""
    levels: float = 0
    """Levels drafted."""
    frontier: float = 0
    """Nodes of one level, in all rows: drafting rows times children kept."""
    pairs: float = 0
    """Tokens of the pass that extended the head: what drafting rows verified, whether it was accepted or not."""
