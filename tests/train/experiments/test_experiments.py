"""What experiments are made of: the stale mask, bare texts, the last tap, the feature loss, identities, means."""

import itertools
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.batches import Sample
from aerie.train.demo.corpus.docstrings import Entry
from aerie.train.experiments.config import Arm, Experiment, load_experiment, load_proxy
from aerie.train.experiments.plots import draw
from aerie.train.experiments.proxy import _part, collect
from aerie.train.experiments.table import compare, identity, means, write_results
from aerie.train.experiments.teaching import Teacher, judge_feature, stale_mask, without_template
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape
from aerie.train.heads.loss import judge, loss_mask
from tests.house import HOME

CONFIGS = HOME / "configs/train/experiments"
#        bos user q  asst A  B  end user q  asst C  end
_TURNS = [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]


def test_the_stale_mask_is_behind_by_one_and_two() -> None:
    answer = torch.tensor([_TURNS], dtype=torch.bool)
    # Step 0 at column t counts where t itself is an answer token, though it predicts t + 2.
    assert stale_mask(answer, 0)[0].int().tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0]
    assert stale_mask(answer, 1)[0].int().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0]
    right = loss_mask(answer, 0)
    assert bool((right & ~stale_mask(answer, 0))[0, 3])  # the first draft of the first answer
    assert bool((stale_mask(answer, 0) & ~right)[0, 6])  # past its end


def test_texts_without_the_template_keep_the_answer_and_its_end(tokenizer: PreTrainedTokenizerFast) -> None:
    from aerie.train.demo.corpus.conversations import Renderer

    sample = Renderer(tokenizer).sample(
        [{"role": "user", "content": "What is x?"}, {"role": "assistant", "content": "An x."}]
    )
    (bare,) = without_template([sample], tokenizer)
    bos, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    asked = tokenizer.encode("What is x?", add_special_tokens=False)
    said = [*tokenizer.encode("An x.", add_special_tokens=False), end]
    assert bare == Sample([bos, *asked, *said], [False] * (1 + len(asked)) + [True] * len(said))


def test_the_last_boundary_is_what_the_final_norm_reads(target: Path, llama: LlamaForCausalLM) -> None:
    teacher = Teacher(target, (2, 8), longest=9, threads=1)
    ids = torch.randint(300, (2, 9))
    shown = teacher.show(0, ids)
    with torch.no_grad():
        expected = llama(ids, output_hidden_states=True)
    assert torch.equal(teacher.end.normed(shown.taps[..., 32:]), shown.final)
    assert (shown.taps[..., :32] - expected.hidden_states[2]).abs().max() < 0.05  # rounded to bf16
    assert (shown.logits - expected.logits).abs().max() < 0.05
    assert torch.equal(teacher.show(0, torch.zeros_like(ids)).taps, shown.taps)  # kept by its key


def test_the_feature_loss_is_nothing_for_the_targets_own_states() -> None:
    torch.manual_seed(0)
    head = Head(HeadShape(8, 8, 1, 1, 8, 10, 6, (8,), 1e-6, 1e4, 32))
    vocabulary = DraftVocabulary(torch.tensor([0, 1, 3, 4, 7, 9]), 10, 1.0)
    answer = torch.tensor([_TURNS], dtype=torch.bool)
    final, logits = torch.randn(1, 12, 8), torch.randn(1, 12, 10)
    final = head.norm(final).detach()  # states that a norm can have given
    from aerie.train.experiments.teaching import Shown

    right = torch.roll(final, -1, dims=1)  # the head says the next column's state
    labels = judge(head, [right], logits, answer, vocabulary).loss
    judged = judge_feature(head, [right], Shown(final, final, logits), answer, vocabulary)
    assert judged.loss.item() == pytest.approx(0.1 * labels.item(), abs=1e-5)
    wrong = judge_feature(head, [torch.roll(final, 3, dims=1)], Shown(final, final, logits), answer, vocabulary)
    assert wrong.loss > judged.loss + 0.1


def experiment(**changes: object) -> Experiment:
    base = {"name": "x", "claim": "c", "arms": [{"name": "a"}], "steps": 4, "tokens_per_batch": 64}
    return Experiment.model_validate(base | {"matrix_rate": 0.1, "vector_rate": 0.1} | changes)


def test_arms_that_differ_in_name_only_are_one_head() -> None:
    proxy, reported = load_proxy(CONFIGS / "proxy.yaml"), experiment()
    one = identity(proxy, reported, Arm(name="a"), 0)
    assert one == identity(proxy.model_copy(update={"threads": 9}), reported, Arm(name="b"), 0)
    others = [
        identity(proxy, reported, Arm(name="a"), 1),
        identity(proxy, reported, Arm(name="a", mask="stale"), 0),
        identity(proxy, reported.model_copy(update={"steps": 5}), Arm(name="a"), 0),
        identity(proxy.model_copy(update={"entries": 9}), reported, Arm(name="a"), 0),
    ]
    assert len({one, *others}) == 5


def test_arms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="depth: 1 and rows: frozen"):
        Arm(name="a", loss="feature", taps="top", depth=1)
    with pytest.raises(ValueError, match="one of cross_entropy"):
        Arm(name="a", loss="hope")
    with pytest.raises(ValueError, match="1 layer here"):
        Arm(name="a", layers=2)
    with pytest.raises(ValueError, match="share names"):
        experiment(arms=[{"name": "a"}, {"name": "a"}])


def test_the_shipped_table_loads_and_shares_its_baseline() -> None:
    proxy = load_proxy(CONFIGS / "proxy.yaml")
    found = {path.stem: load_experiment(path) for path in CONFIGS.glob("*.yaml") if path.name != "proxy.yaml"}
    assert set(found) == {"ablation", "scaling", "masks", "losses", "domains", "peagle"}
    assert all(name == reported.name and reported.seeds == (0, 1, 2) for name, reported in found.items())
    heads = {
        identity(proxy, reported, arm, seed)
        for reported in found.values()
        for arm in reported.arms
        for seed in reported.seeds
    }
    arms = sum(len(reported.arms) for reported in found.values())
    assert (arms, len(heads)) == (27, 3 * 22)  # the baseline has five names, EAGLE-2's head two
    chain = found["ablation"].arms
    for before, after in itertools.pairwise(chain):
        changed = [key for key in Arm.model_fields if getattr(before, key) != getattr(after, key)]
        assert len(changed) == 2 and changed[0] == "name", "one difference at a time"


def test_means_say_the_spread_and_the_count() -> None:
    cells = [
        {"arm": "a", "seed": seed, "answers": 8, "task": "prose", "temperature": 0.0, "acceptance_length": length}
        for seed, length in enumerate((2.0, 2.5, 3.0))
    ] + [{"arm": "a", "seed": 0, "answers": 8, "depth": 3, "concurrency": 2, "tokens_per_s": 100.0}]
    first, second = means(cells)
    assert (first["acceptance_length"], first["acceptance_length_deviation"], first["seeds"]) == (2.5, 0.5, 3)
    assert (second["tokens_per_s"], second["tokens_per_s_deviation"], second["concurrency"]) == (100.0, 0.0, 2)
    assert "task" not in second


def test_a_difference_says_whether_it_is_noise() -> None:
    lengths = {"first": (2.0, 2.1, 2.2), "near": (2.1, 2.2, 2.3), "far": (3.0, 3.1, 3.2), "single": (4.0,)}
    rows = means(
        [
            {"arm": arm, "seed": seed, "answers": 8, "task": "prose", "temperature": 0.0, "acceptance_length": length}
            for arm, found in lengths.items()
            for seed, length in enumerate(found)
        ]
    )
    compare(rows, list(lengths), "first")
    noise = [row.get("within_noise") for row in rows]
    assert noise == [None, True, False, None] and "beside" not in rows[0]
    compare(rows, list(lengths), "previous")
    assert [row.get("beside") for row in rows] == [None, "first", "near", "far"]
    assert rows[2]["difference"] == pytest.approx(0.9)


def test_more_answers_are_about_more_names() -> None:
    names = [Entry(f"name{number}", "function", "text") for number in range(20)]
    parts = [{entry.name for entry in _part(names, number, 4)} for number in range(5)]
    assert set.union(*parts) == {entry.name for entry in names} and parts[4] == parts[0]
    assert sum(map(len, parts[:4])) == 20, "no name is in two parts"
    assert _part(names[:2], 3, 4) == names[:2]


@pytest.mark.parametrize("along", ["name", "answers"])
def test_results_are_written_whole_and_drawn(tmp_path: Path, along: str) -> None:
    rows = [
        {"arm": f"eagle{kind} {amount}x", "answers": amount * 512, "task": "prose", "shape": "5,1,6"}
        | {"temperature": 0.0, "acceptance_length": 2.0 + amount / 9, "acceptance_length_deviation": 0.1}
        for kind in (2, 3)
        for amount in (1, 2, 4)
    ]
    rows += [
        {"arm": "eagle2 1x", "answers": 512, "depth": depth, "concurrency": load}
        | {"tokens_per_s": 10.0 * load, "tokens_per_s_deviation": 1.0}
        for depth in (0, 3)
        for load in (1, 4)
    ]
    results = {"claim": "more is more", "means": rows}
    write_results(tmp_path / "x.json", results, {"commit": "c"})
    assert yaml.safe_load((tmp_path / "x.json").read_text())["provenance"] == {"commit": "c"}
    draw(tmp_path / "x.png", results, along=along)
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_the_proxy_learns_prose_and_code_of_a_bounded_length() -> None:
    proxy = load_proxy(CONFIGS / "proxy.yaml").model_copy(update={"entries": 30, "sources": 10})
    entries = collect(proxy)
    code = [entry for entry in entries if entry.kind == "code"]
    assert len(entries) == 40 and len(code) == 10
    assert all(entry.name.endswith("()") and entry.text.startswith(("def ", "@", "async ")) for entry in code)
    assert all(len(entry.text) <= proxy.longest_text for entry in entries)
    assert entries == collect(proxy)
