"""What experiments are made of: arms, the stale mask, bare prompts, the feature loss, parts of the exercises."""

from pathlib import Path

import pytest
import torch
import yaml

from aerie.contracts.errors import AerieError
from aerie.engine.model.config import Rope
from aerie.train.demo.prompts import draw_prompts, held_out_prompts
from aerie.train.experiments.config import Arm, Experiment, load_experiment
from aerie.train.experiments.lessons import taught, without_marks
from aerie.train.experiments.plots import draw
from aerie.train.experiments.table import identity, means, write_results
from aerie.train.experiments.teaching import judge_feature, stale_mask
from aerie.train.experiments.variants import settings_of
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.loss import judge, loss_mask
from aerie.train.heads.unroll import unroll
from aerie.train.pipeline.config import PipelineConfig, load_pipeline
from tests.house import HOME

CONFIGS = HOME / "configs/train/experiments"
#        bos user q  asst A  B  end user q  asst C  end
_TURNS = [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]


@pytest.fixture(scope="module")
def proxy() -> PipelineConfig:
    return load_pipeline(CONFIGS / "proxy.yaml")


def test_the_stale_mask_is_behind_by_one_and_two() -> None:
    answer = torch.tensor([_TURNS], dtype=torch.bool)
    # Step 0 at column t counts where t itself is an answer token, though it predicts t + 2.
    assert stale_mask(answer, 0)[0].int().tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0]
    assert stale_mask(answer, 1)[0].int().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0]
    right = loss_mask(answer, 0)
    assert bool((right & ~stale_mask(answer, 0))[0, 3])  # the first draft of the first answer
    assert bool((stale_mask(answer, 0) & ~right)[0, 6])  # past its end


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_stale_mask_ends_with_each_conversation_of_a_packed_row(step: int) -> None:
    answer = torch.tensor([_TURNS], dtype=torch.bool)
    documents = torch.tensor([[0] * 12 + [1] * 12])
    packed = stale_mask(torch.cat([answer, answer], 1), step, documents)
    assert torch.equal(packed, torch.cat([stale_mask(answer, step)] * 2, 1))


def test_prompts_without_the_template_keep_their_first_token_and_the_answer() -> None:
    answer = {"role": "assistant", "prompt_token_ids": [0, 4, 20, 21, 5], "token_ids": [30, 1]}
    record = {"id": "x", "turns": [{"role": "user", "content": "?"}, answer]}
    bare = without_marks(record, {0, 1, 2, 3, 4, 5})
    assert bare["turns"][-1] == answer | {"prompt_token_ids": [0, 20, 21]} and bare["turns"][0] == record["turns"][0]
    assert answer["prompt_token_ids"] == [0, 4, 20, 21, 5]


def _head(hidden: int = 8) -> tuple[Head, DraftVocabulary]:
    torch.manual_seed(0)
    head = Head(HeadShape(hidden, 8, 1, 1, 8, 10, 6, (8,), 1e-6, Rope(), 32))
    return head, DraftVocabulary(torch.tensor([0, 1, 3, 4, 7, 9]), 10, 1.0)


def test_the_feature_loss_is_nothing_for_the_targets_own_states() -> None:
    head, vocabulary = _head()
    answer = torch.tensor([_TURNS], dtype=torch.bool)
    final, logits = torch.randn(1, 12, 8), torch.randn(1, 12, 10)
    final = head.norm(final).detach()  # states that a norm can have given
    right = [torch.roll(final, -1 - step, dims=1) for step in range(2)]  # the head says the states that come next
    labels = judge(head, right, logits, answer, vocabulary, decay=0.5).loss
    judged = judge_feature(head, right, final, logits, answer, vocabulary, decay=0.5)
    assert judged.loss.item() == pytest.approx(0.1 * labels.item(), abs=1e-5)
    late = [right[0], torch.roll(final, 3, dims=1)]
    wrong = judge_feature(head, late, final, logits, answer, vocabulary, decay=0.5)
    assert wrong.loss > judged.loss + 0.1, "every step of the training-time test counts"


def test_the_feature_loss_of_a_packed_row_is_that_of_its_conversations() -> None:
    """Its sums of columns; regression and labels are means, so two equal conversations have the mean of one."""
    head, vocabulary = _head()
    embedding = torch.randn(10, 8)
    ids, final = torch.randint(10, (1, 12)), torch.randn(1, 12, 8)
    logits, answer = torch.randn(1, 12, 10), torch.tensor([_TURNS], dtype=torch.bool)
    documents = torch.tensor([[0] * 12 + [1] * 12])

    def lost(times: int) -> float:
        rows = [torch.cat([one] * times, 1) for one in (ids, final, logits, answer)]
        own = documents[:, : 12 * times]
        outputs = unroll(head, embedding, rows[0], rows[1], 3, own)
        normed = head.norm(rows[1]).detach()
        return judge_feature(head, outputs, normed, rows[2], rows[3], vocabulary, documents=own).loss.item()

    assert lost(2) == pytest.approx(lost(1), rel=1e-5)


def experiment(*arms: dict[str, object], **changes: object) -> Experiment:
    return Experiment.model_validate({"name": "x", "claim": "c", "arms": [{"name": "a"}, *arms]} | changes)


def test_arms_that_differ_in_name_only_are_one_head(proxy: PipelineConfig) -> None:
    def head(arm: Arm, seed: int = 0, **train: object) -> str:
        stage = settings_of(proxy, arm, place=0, places=3).model_copy(update=train)
        return identity(proxy.model_copy(update={"train": stage, "seed": seed}), arm)

    one = head(Arm(name="a"))
    assert one == head(Arm(name="b", beside="a"), threads=9, device="cuda")
    others = [
        head(Arm(name="a"), seed=1),
        head(Arm(name="a", mask="stale")),
        head(Arm(name="a", rows="frozen")),
        head(Arm(name="a", answers=9)),
        head(Arm(name="a"), steps=5),
    ]
    assert len({one, *others}) == 6


def test_arms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="taps: top"):
        Arm(name="a", loss="feature")
    with pytest.raises(ValueError, match="one of cross_entropy"):
        Arm(name="a", loss="hope")
    with pytest.raises(ValueError, match="an EAGLE-3 head has 1"):
        Arm(name="a", layers=2)
    with pytest.raises(ValueError, match="settings of EAGLE heads"):
        Arm(name="a", kind="peagle", norms=True)
    with pytest.raises(ValueError, match="share names"):
        experiment({"name": "a"})


def test_arms_that_are_compared_differ_in_one_setting() -> None:
    with pytest.raises(ValueError, match="differs from a in loss, depth"):
        experiment({"name": "b", "loss": "lk_alpha", "depth": 1})
    with pytest.raises(ValueError, match="differs from a in nothing"):
        experiment({"name": "b"})
    with pytest.raises(ValueError, match="none of the arms before it"):
        experiment({"name": "b", "depth": 1, "beside": "c"}, {"name": "c", "norms": True})
    found = experiment(
        {"name": "b", "depth": 1}, {"name": "c", "depth": 2, "beside": "b"}, {"name": "d", "alone": True}
    )
    assert [found.beside(arm) for arm in found.arms] == [None, "a", "b", None]


def test_the_shipped_table_shares_its_heads(proxy: PipelineConfig) -> None:
    found = {path.stem: load_experiment(path) for path in CONFIGS.glob("*.yaml") if path.name != "proxy.yaml"}
    assert set(found) == {"ablation", "scaling", "masks", "losses", "domains", "peagle"}
    assert all(name == one.name and one.seeds == (0, 1, 2) for name, one in found.items())
    heads = {
        (arm.tasks, arm.template, identity(proxy.model_copy(update={"train": stage}), arm))
        for one in found.values()
        for arm in one.arms
        for stage in [settings_of(proxy, arm, place=0, places=3)]
    }
    assert (sum(len(one.arms) for one in found.values()), len(heads)) == (33, 28)
    with_feature = {arm.name: arm for arm in found["ablation"].arms}
    direct = with_feature["direct"]
    assert direct.differing(with_feature[str(direct.beside)]) == ["loss"], "the same test and the same rows"
    assert set(found["domains"].shown) <= set(taught(proxy).shares)


def test_seeds_learn_from_different_answers_and_more_answers_are_new_ones(proxy: PipelineConfig) -> None:
    def part(answers: int, place: int) -> tuple[int, int]:
        found = settings_of(proxy, Arm(name="a", answers=answers), place=place, places=3).documents
        assert found is not None
        return found

    assert [part(1024, place) for place in range(3)] == [(0, 1024), (1024, 2048), (2048, 3072)]
    assert part(256, 1) == (1024, 1280), "a smaller amount is a part of a larger one"
    with pytest.raises(AerieError, match="each of 3 seeds has 1024"):
        part(1025, 0)


def test_the_exercises_of_heads_are_none_that_they_are_measured_on(proxy: PipelineConfig, tasks_target: Path) -> None:
    run = taught(proxy)
    drawn = [tuple(one["prompt_token_ids"]) for one in draw_prompts(run, tasks_target, 150, seed=0, shares={})]
    asked = held_out_prompts(run, tasks_target, 5, seed=0)
    recited = {tuple(one["prompt_token_ids"]) for one in asked.pop("docstrings")}  # known by heart: new ones are none
    measured = {tuple(one["prompt_token_ids"]) for task in asked.values() for one in task}
    assert len(set(drawn) - recited) > 130 and not measured & set(drawn)


def test_means_say_the_spread_and_the_count() -> None:
    cells = [
        {"arm": "a", "seed": seed, "answers": 8, "task": "code", "temperature": 0.0, "acceptance_length": length}
        for seed, length in enumerate((2.0, 2.5, 3.0))
    ]
    cells += [
        {
            "arm": "a",
            "seed": seed,
            "answers": 8,
            "depth": 3,
            "concurrency": 2,
            "tokens_per_s": 100.0,
            "over_plain": over,
        }
        for seed, over in enumerate((0.9, 1.1))
    ]
    first, second = means(cells)
    assert (first["acceptance_length"], first["acceptance_length_deviation"], first["seeds"]) == (2.5, 0.5, 3)
    assert (second["over_plain"], second["tokens_per_s_deviation"], second["concurrency"]) == (1.0, 0.0, 2)
    assert "task" not in second


@pytest.mark.parametrize("along", ["name", "answers"])
def test_results_are_written_whole_and_drawn(tmp_path: Path, along: str) -> None:
    rows = [
        {"arm": f"eagle{kind} {amount}x", "answers": amount * 512, "task": task, "shape": "5,1,6"}
        | {"temperature": 0.0, "acceptance_length": 2.0 + amount / 9}
        | {"acceptance_length_lower": 2.0, "acceptance_length_upper": 2.6}
        for kind in (2, 3)
        for amount in (1, 2, 4)
        for task in ("code", "all")
    ]
    rows += [
        {"arm": "eagle2 1x", "answers": 512, "depth": depth, "concurrency": load}
        | {"over_plain": 1.0 + depth / load, "over_plain_deviation": 0.1}
        for depth in (0, 3)
        for load in (1, 4)
    ]
    results = {"claim": "more is more", "means": rows}
    write_results(tmp_path / "x.json", results, {"commit": "c"})
    assert yaml.safe_load((tmp_path / "x.json").read_text())["provenance"] == {"commit": "c"}
    draw(tmp_path / "x.png", results, along=along, tasks=("all",))
    assert (tmp_path / "x.png").stat().st_size > 10_000
