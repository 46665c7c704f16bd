"""A P-EAGLE head in its worker: text against plain decoding, laws, layouts, and what a round costs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.spec.build import reserved_slots
from aerie.spec.drafters import eagle3, peagle
from aerie.spec.drafters.peagle import PEagle
from aerie.spec.drafters.registry import kind_of
from aerie.spec.worker import SpecWorker
from tests.engine.rounds import Rounds
from tests.spec import models, test_worker
from tests.spec.checkpoints.test_loader import load_drafter
from tests.spec.conftest import MakeWorker
from tests.spec.test_worker import PROMPTS, SHAPES, plain_tokens, pools_after, run, sampling
from tests.spec.toys import Crowd, Prophet, TableHead, toy_worker
from tests.spec.trees.test_law import ALPHA, ROWS, joint_law, noised, p_value, table

MASK = models.VOCABULARY - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("shape", "page_size"), list(zip(SHAPES, (4, 16, 1, 4, 3), strict=True)))
def test_tokens_equal_those_of_plain_decoding(
    make_worker: MakeWorker, peagle_folder: Path, shape: str, temperature: float, page_size: int
) -> None:
    params = [sampling(row, temperature) for row in range(4)]
    worker = make_worker(peagle_folder, page_size=page_size)
    for drafting, chunk, slack in (([True] * 4, 256, 0), ([True, False, True, True], 5, 7)):
        rows = run(worker, params, drafting=drafting, chunk=chunk, slack=slack, **SHAPES[shape])
        assert [row.out for row in rows] == plain_tokens(make_worker, params)
        worker = make_worker(peagle_folder, page_size=page_size)


def test_wide_and_deep_trees_that_no_word_of_scratch_would_hold(make_worker: MakeWorker, peagle_folder: Path) -> None:
    params = [sampling(row, temperature) for row, temperature in enumerate((0.0, 1.1, 0.0, 0.7))]
    shape = {"depth": 9, "topk": 10, "nodes": 60}
    rows = run(make_worker(peagle_folder, **shape), params, drafting=[True] * 4, **shape)
    assert [row.out for row in rows] == plain_tokens(make_worker, params)
    with pytest.raises(ConfigError, match="at most 64 fit"):
        make_worker(**shape)


@pytest.mark.parametrize("fault", ["garbage", "one word"])
def test_a_hostile_head_changes_speed_only(make_worker: MakeWorker, tmp_path: Path, fault: str) -> None:
    tensors = models.peagle_tensors(seed=99)
    tensors["lm_head.weight"] *= 0 if fault == "one word" else -50
    folder = models.write(tmp_path, models.peagle_config(), tensors)
    params = [sampling(row, 0.9) for row in range(4)]
    rows = run(make_worker(folder), params, drafting=[True] * 4, **SHAPES["tree"])
    assert [row.out for row in rows] == plain_tokens(make_worker, params)


@pytest.mark.parametrize("shape", ["chain", "full tree"])
def test_pools_equal_a_fresh_pass_over_the_committed_tokens(
    make_worker: MakeWorker, peagle_folder: Path, shape: str
) -> None:
    """Mask slots leave nothing behind."""
    worker = make_worker(peagle_folder, page_size=4)
    assert isinstance(worker, SpecWorker)
    rounds = Rounds(worker)
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=200)
    rows = [rounds.add(i, list(PROMPTS[i]), params, drafting=True, chunk=4) for i in range(3)]
    for _ in range(7):
        rounds.decode(rows, **SHAPES[shape], slack=3)
    for row in rows:
        committed = [*row.prompt, *row.out]
        fresh = make_worker(peagle_folder, page_size=16)
        assert isinstance(fresh, SpecWorker)
        again = Rounds(fresh).add(0, committed, params, drafting=True)
        for got, expected in zip(
            pools_after(worker, row, committed[:-1]), pools_after(fresh, again, committed[:-1]), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_power_a_compaction_off_by_one_changes_tokens(
    make_worker: MakeWorker, peagle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [sampling(row, 1.0, max_tokens=60) for row in range(4)]
    expected = plain_tokens(make_worker, params)
    test_worker.break_compaction(monkeypatch)
    rows = run(make_worker(peagle_folder), params, drafting=[True] * 4, **SHAPES["full tree"])
    assert [row.out for row in rows] != expected


@pytest.mark.parametrize(("depth", "passes"), [(1, 0), (2, 1), (7, 1)])
def test_drafting_takes_one_pass_whatever_the_depth(
    make_worker: MakeWorker, peagle_folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int, passes: int
) -> None:
    worker = make_worker(peagle_folder, depth=depth, nodes=depth + 1, topk=1)
    assert isinstance(worker, SpecWorker)
    rounds = Rounds(worker)
    rows = [rounds.add(i, list(PROMPTS[i]), sampling(i, 0.0, max_tokens=30), drafting=True) for i in range(2)]
    widths: list[int] = []
    right = worker.drafter.head.forward

    def counted(tokens: Tensor, *given: Any) -> Tensor:
        widths.append(len(tokens))
        return right(tokens, *given)

    monkeypatch.setattr(worker.drafter.head, "forward", counted)
    rounds.decode(rows, depth=depth, topk=1, nodes=depth + 1)
    assert widths == [2 * (depth - 1)] * passes + [2 * (depth + 1)]  # the masks, then the extend of the round


def at_once(head: Any) -> PEagle:
    """Drafts all levels of a toy head in one pass."""
    return PEagle(head, mask_token=0, mask_hidden=torch.zeros(1, 1))


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_a_head_that_knows_the_text_is_accepted_to_the_full_depth(depth: int) -> None:
    text = list(range(1, 60))
    table = torch.eye(64).roll(1, 1) * 9  # the token after t is t + 1
    worker = toy_worker(table, Prophet(text, 64), rows=1, drafter=at_once)  # knows each level by its position
    rounds = Rounds(worker)
    row = rounds.add(0, [1], SamplingParams(temperature=0.0, max_tokens=40), drafting=True)
    for topk, nodes in ((1, depth + 1), (2, 12)):
        output = rounds.decode([row], depth=depth, topk=topk, nodes=nodes)
        assert output.accepted.tolist() == [depth]
    assert row.out == text[1 : len(row.out) + 1]


@pytest.mark.parametrize("shape", [{"depth": 3, "nodes": 4}, {"depth": 3, "topk": 4, "nodes": 12}])
def test_two_tokens_follow_the_targets_law(shape: dict[str, int]) -> None:
    """Level 1 is drafted from the token that the head is given, deeper ones from the mask token alone."""
    logits = table(16, 16, seed=1)
    counts, accepted = np.zeros((16, 16)), 0
    for batch in range(12):
        worker = toy_worker(logits, TableHead(noised(logits)), ROWS, drafter=at_once)
        crowd = Crowd(worker, ROWS, temperature=1.0, first_seed=batch * ROWS)
        texts = np.array(crowd.start())[:, 0]
        output = crowd.decode(**shape)
        accepted += int(output.accepted.sum())
        np.add.at(counts, (texts, output.token_ids[:, 0]), 1)
    assert accepted > 0.3 * ROWS * 12
    assert p_value(counts.ravel(), joint_law(logits, 1).ravel()) > ALPHA


def test_layouts_of_the_wild_are_one_head(tmp_path: Path, target_folder: Path) -> None:
    """vLLM's and SpecForge's, which count taps differently; and masks of one, two and three dimensions."""
    plain, read = models.peagle_tensors(), []
    nested: dict[str, Any] = {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
        "eagle_aux_hidden_state_layer_ids": None,
    }
    forms: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
        "vllm": (models.peagle_config(), models.safeailab_names(plain)),
        "specforge": (models.peagle_config(architectures=["PEagleDraftModel"], **nested), plain),
        "nemo": (
            models.peagle_config(mask_token_id=MASK, ptd_token_id=None),
            {f"model.{name}": tensor for name, tensor in plain.items()}
            | {"model.mask_hidden": plain["mask_hidden"][0]},
        ),
    }
    for name, (config, tensors) in forms.items():
        drafter = load_drafter(models.write(tmp_path / name, config, tensors), target_folder)
        assert isinstance(drafter, PEagle), name
        head = drafter.head
        assert (head.config.source, head.config.taps, drafter.mask_token) == ("peagle", (2, 4, 5), MASK), name
        read.append(drafter.mask)
        assert torch.equal(head.weights.embeddings, plain["embed_tokens.weight"])  # its own, not the target's
    assert all(torch.equal(mask, read[0]) for mask in read)


def test_a_checkpoint_s_kind_is_known_by_its_tensors(head_folder: Path, peagle_folder: Path) -> None:
    assert kind_of(head_folder) is eagle3.KIND
    assert kind_of(peagle_folder) is peagle.KIND


def test_the_report_names_the_kind(make_worker: MakeWorker, peagle_folder: Path) -> None:
    assert make_worker(peagle_folder).capacity.report["head_kind"] == "peagle"
    assert make_worker().capacity.report["head_kind"] == "eagle3"


def test_mask_slots_reserve_one_position_a_level() -> None:
    from aerie.contracts.config import SpecConfig

    spec = SpecConfig(depth=8, topk=10, nodes=20)
    assert reserved_slots(spec, peagle.scratch_slots) == 20
    with pytest.raises(ConfigError, match="70 scratch slots"):
        reserved_slots(spec, eagle3.scratch_slots)
