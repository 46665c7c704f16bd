"""Says where an answer parts from its reference, and why. Used by `compare`."""

from typing import TYPE_CHECKING

from aerie.contracts.config import Config
from aerie.probe.drive import Answer

if TYPE_CHECKING:
    from aerie.probe.margins import Divergence, Margins


class Judge:
    """Finds where answers differ from the reference, and why; loads its model at the first difference."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._margins: Margins | None = None

    def divergence(self, answer: Answer, reference: list[int]) -> "Divergence":
        if self._margins is None:
            from aerie.probe.margins import Margins  # torch

            self._margins = Margins(self._config)
        found = self._margins.divergence(answer.request, reference, answer.tokens)
        assert found is not None, f"{answer.request.id} does not part from its reference"
        return found
