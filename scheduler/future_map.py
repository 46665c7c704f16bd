"""The host side of the FutureMap: for each row one bit, the generation that holds its newest values, and an epoch.

The tables themselves live on the device and are never read here. Staging asks which generation a step reads and flips
the bits of the rows that it publishes. Rows absent from a step keep their bits, so a decode step finds every row's
values, even with a prefill of other rows before it. The epoch moves whenever a row's owner leaves: settle drops the
results of steps launched for a former owner.
"""

import numpy as np

from aerie.contracts.step import Bools, Ints, Longs


class FutureMap:
    def __init__(self, rows: int) -> None:
        self._generations: Ints = np.zeros(rows, dtype=np.int32)
        self._epochs: Longs = np.zeros(rows, dtype=np.int64)

    def resolve(self, rows: Longs) -> Ints:
        """The generation with each row's newest values, which the next step reads."""
        return self._generations[rows]

    def publish(self, rows: Longs) -> None:
        """The step being launched writes the other generation of these rows."""
        self._generations[rows] ^= 1

    def stamp(self, rows: Longs) -> Longs:
        """The owners of a step's rows at launch."""
        return self._epochs[rows]

    def current(self, rows: Longs, stamps: Longs) -> Bools:
        """Whether each row still has the owner that it was stamped with."""
        same: Bools = self._epochs[rows] == stamps
        return same

    def leave(self, row: int) -> None:
        """The row's owner leaves; results in flight for it are void."""
        self._epochs[row] += 1
