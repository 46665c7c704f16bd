"""What a plan tells the device of rows whose logits are edited: by penalties, biases and bans."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EditStarts:
    """What the edit slots of new owners hold: the biases of a slot's row, and the tokens that its row begins with.

    A `place` is slot * vocabulary + token. The slots are reset first.
    """

    slots: NDArray[np.int32]
    """[starts] the slot of each row; -1 for rows whose logits are not edited."""
    fills: NDArray[np.float32]
    """[starts] the bias of every token that is not named: 0, or -inf where only some tokens are allowed."""
    bias_places: NDArray[np.int64]
    """[biases], each at most once."""
    biases: NDArray[np.float32]
    """[biases] -inf bans a token."""
    prompt_places: NDArray[np.int64]
    """[tokens of the prompts], also of what the prefix cache holds."""
    answer_places: NDArray[np.int64]
    """[tokens of the answers] committed before a preemption; a token counts as often as it is here."""
