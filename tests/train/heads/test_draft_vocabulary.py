"""The draft vocabulary keeps what is frequent, in ascending order, with maps that agree."""

import pytest
import torch

from aerie.train.heads.draft_vocabulary import draft_vocabulary


def test_the_frequent_and_the_special_are_kept() -> None:
    vocabulary = draft_vocabulary([[5, 5, 7], [7, 5, 2, 9]], kept=4, size=12, always=[0, 1])
    assert vocabulary.draft_to_target.tolist() == [0, 1, 5, 7]
    assert vocabulary.coverage == pytest.approx(5 / 7)


def test_unseen_ids_fill_up_from_the_lowest() -> None:
    assert draft_vocabulary([[6]], kept=3, size=8, always=[1]).draft_to_target.tolist() == [0, 1, 6]


def test_the_maps_invert_each_other() -> None:
    vocabulary = draft_vocabulary([[3, 8, 8, 11]], kept=5, size=16, always=[1])
    back = torch.arange(5) + vocabulary.d2t
    assert torch.equal(back, vocabulary.draft_to_target)
    assert vocabulary.t2d.sum() == 5 and bool(vocabulary.t2d[back].all())
    assert torch.equal(vocabulary.t2d.cumsum(0)[back] - 1, torch.arange(5))


@pytest.mark.parametrize("kept", [0, 17])
def test_impossible_sizes_are_refused(kept: int) -> None:
    with pytest.raises(ValueError, match="16"):
        draft_vocabulary([[1]], kept=kept, size=16, always=[])
