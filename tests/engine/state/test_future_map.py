"""Two generations a row: a step reads one and writes the other, and what was not written cannot be read unnoticed."""

import torch

from aerie.engine.state.future_map import FutureMap


def publish(future: FutureMap, generations: list[int], rows: list[int], bonus: list[int]) -> None:
    count = len(rows)
    future.publish(
        torch.tensor(generations),
        torch.tensor(rows),
        bonus=torch.tensor(bonus),
        lengths=torch.tensor(bonus) * 10,
        done=torch.tensor([token % 2 == 1 for token in bonus]),
        seeds=torch.tensor(bonus, dtype=torch.float32)[:, None].expand(count, 3),
    )


def read(future: FutureMap, generations: list[int], rows: list[int]) -> tuple[list[int], list[int], list[bool]]:
    bonus, lengths, done, seeds = future.read(torch.tensor(generations), torch.tensor(rows))
    assert seeds.shape == (len(rows), 3)
    return bonus.tolist(), lengths.tolist(), done.tolist()


def test_rows_that_are_absent_keep_their_generations() -> None:
    future = FutureMap(4, seed_width=3)
    publish(future, [0, 0, 0], [0, 1, 2], [4, 5, 6])
    publish(future, [1, 1], [0, 2], [8, 9])
    assert read(future, [0, 0, 0], [0, 1, 2]) == ([4, 5, 6], [40, 50, 60], [False, True, False])
    assert read(future, [1, 0, 1], [0, 1, 2]) == ([8, 5, 9], [80, 50, 90], [False, True, True])


def test_what_was_read_does_not_change_with_a_later_publish() -> None:
    future = FutureMap(2, seed_width=3)
    publish(future, [0], [1], [4])
    bonus, _, _, seeds = future.read(torch.tensor([0]), torch.tensor([1]))
    publish(future, [0], [1], [6])
    assert bonus.tolist() == [4]
    assert seeds.tolist() == [[4.0, 4.0, 4.0]]


def test_poison_spoils_what_was_read_and_nothing_else() -> None:
    future = FutureMap(3, seed_width=3, poison=True)
    publish(future, [0, 0, 1], [0, 1, 0], [4, 6, 8])
    assert read(future, [0], [0])[0] == [4]
    bonus, lengths, _, seeds = future.read(torch.tensor([0]), torch.tensor([0]))
    assert bonus.tolist() == [-1], "a second read must not find a token"
    assert lengths.item() > 2**20
    assert seeds.isnan().all()
    assert read(future, [1, 0], [0, 1])[0] == [8, 6]


def test_a_publish_makes_a_poisoned_generation_whole() -> None:
    future = FutureMap(2, seed_width=3, poison=True)
    for token in (2, 4, 6):
        publish(future, [1], [0], [token])
        assert read(future, [1], [0]) == ([token], [token * 10], [False])
