"""The rows of one step that choose under a grammar: what they did in it, and where their matchers are after it."""

from dataclasses import dataclass, field, replace

import numpy as np

from aerie.contracts.grammar import Masking
from aerie.contracts.step import Ending, StepOutput
from aerie.engine.grammars.guided import Guided


@dataclass(slots=True)
class GuidedStep:
    """A step in progress, or one that has been run."""

    rows: dict[int, Guided] = field(default_factory=dict)
    """By their place in the step."""
    faults: dict[int, str] = field(default_factory=dict)
    """By place: why a row cannot go on."""
    masking: Masking = field(default_factory=Masking)
    distinct: set[bytes] = field(default_factory=set)
    """Its masks."""

    def settle(self, output: StepOutput) -> StepOutput:
        """Moves the matchers to the end of what the step committed; rows whose answers have ended or failed are `over`
        then. Returns the output with what the masks took.
        """
        masking, forbidden = self.masking, np.zeros_like(output.drafted)
        for place, row in self.rows.items():
            kept = int(output.counts[place])
            try:
                if place not in self.faults:
                    self._move(row, list(map(int, output.token_ids[place, :kept])))
            except Exception as error:  # noqa: BLE001  of any kind: the row's request ends, and no other
                self.faults[place] = str(error)
            row.over |= place in self.faults or int(output.endings[place]) != Ending.OPEN
            masking.masks += row.masks
            masking.seconds += row.seconds
            masking.drafted += int(output.drafted[place])
            masking.forbidden += row.forbidden
            forbidden[place] = row.forbidden
            row.forget_step()
        masking.distinct = len(self.distinct)
        return replace(output, faults=self.faults, masking=masking, forbidden=forbidden)

    def _move(self, row: Guided, committed: list[int]) -> None:
        """A row that has not walked chose under the mask of its root; its matcher has yet to take the tokens."""
        if row.walked:
            row.matcher.undo(row.taken - min(len(committed), row.taken))
        elif committed:
            self.masking.choices += 1
            self.distinct.add(row.matcher.words())
            row.due += [token for token in committed if token not in row.end_ids]
