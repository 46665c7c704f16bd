"""The host side of the FutureMap: one bit a row that names the generation holding the row's values, and an epoch.

The tables themselves live on the device and are never read here. Staging asks which generation a step reads and flips
the bits of the rows that it publishes; rows absent from a step keep theirs, so decode, prefill of others and decode
again finds every row's values. The epoch moves whenever a row's owner leaves: settle drops the results of a step that
was launched for a former owner.
"""

import numpy as np

from contracts.step import Bools, Ints, Longs


class FutureMap:
    def __init__(self, rows: int) -> None:
        self._turns: Ints = np.zeros(rows, dtype=np.int32)
        self._epochs: Longs = np.zeros(rows, dtype=np.int64)

    def resolve(self, rows: Longs) -> Ints:
        """The generation that each row's newest values are in: what the next step reads."""
        return self._turns[rows]

    def publish(self, rows: Longs) -> None:
        """The step being launched writes the other generation of these rows."""
        self._turns[rows] ^= 1

    def stamp(self, rows: Longs) -> Longs:
        """The owners of a step's rows at its launch."""
        return self._epochs[rows]

    def current(self, rows: Longs, stamps: Longs) -> Bools:
        """Whether each row still has the owner it was stamped with."""
        same: Bools = self._epochs[rows] == stamps
        return same

    def leave(self, row: int) -> None:
        """The row's owner leaves; whatever is in flight for it is void."""
        self._epochs[row] += 1
