"""Runs on generated tasks, killed in either part and resumed, end in the same bytes; deepening changes no output."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from aerie.train.__main__ import app
from aerie.train.demo import judge, pretrain
from aerie.train.demo.batches import Sample, padded
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import Pretraining
from aerie.train.demo.lessons import Lessons
from aerie.train.demo.mix import GROUP, Mix, draw, joined
from aerie.train.demo.model import export, fresh_model
from aerie.train.demo.pretrain import build, deepen, thinned
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import answers
from aerie.train.optimization import checkpoint
from aerie.train.pipeline.config import load_pipeline
from tests.house import HOME

CONFIG = HOME / "configs/train/demo.yaml"


class _Killed(Exception):
    pass


def _dying(saves: int) -> Callable[..., None]:
    whole, done = checkpoint.save, []

    def save(*args: object) -> None:
        whole(*args)  # type: ignore[arg-type]
        done.append(1)
        if len(done) == saves:
            raise _Killed

    return save


@pytest.mark.parametrize(("saves", "precision"), [(1, "float32"), (2, "float32"), (2, "bfloat16")])
def test_a_resumed_run_is_the_undisturbed_one(
    run: Pretraining,
    saves: int,
    precision: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed after its first checkpoint, of the thin model, or its second, of the whole one."""
    run = run.model_copy(update={"precision": precision})
    monkeypatch.setattr("aerie.train.demo.mix.GROUP", 1)  # so that each judgement tells in the step after it
    calm, again = tmp_path / "calm", tmp_path / "again"
    pretrain.pretrain(run, calm, seed=0)
    lines = [line for line in capsys.readouterr().err.splitlines() if " exact " in line]
    assert [line.split()[1] for line in lines] == ["3", "6"]
    assert set(json.loads(lines[0].split(" exact ")[1])) == set(run.shares)
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(checkpoint, "save", _dying(saves))
        pretrain.pretrain(run, again, seed=0)
    pretrain.pretrain(run, again, seed=0)
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert (again / name).read_bytes() == (calm / name).read_bytes()


def test_a_resumed_run_keeps_the_tokenizer_that_its_checkpoints_are_of(
    run: Pretraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exercises drawn otherwise, by a changed task, would train another one."""
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(checkpoint, "save", _dying(1))
        pretrain.pretrain(run, tmp_path, seed=0)
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    kept = [(tmp_path / name).read_bytes() for name in names]
    monkeypatch.setattr(pretrain, "build_tokenizer", None)
    pretrain.pretrain(run, tmp_path, seed=0)
    assert [(tmp_path / name).read_bytes() for name in names] == kept


def test_a_deepened_model_says_what_the_thin_one_said(run: Pretraining, words: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    thin, deep = build(thinned(run), words), fresh_model(run.architecture, words)
    with torch.no_grad():
        for weight in thin.parameters():
            if not weight.any():
                weight.normal_(std=0.05)
    deepen(thin, deep)
    ids = torch.randint(6, 600, (2, 20))
    torch.testing.assert_close(deep(ids).logits, thin(ids).logits)


def test_the_circuit_learns_more_slowly_wherever_its_layers_have_come_to_stand(
    run: Pretraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[dict[str, float]] = []
    monkeypatch.setattr(pretrain, "learn", lambda *args, slower, **how: taught.append(slower))
    pretrain.pretrain(run, tmp_path, seed=0)
    thin, whole = ({f"model.layers.{layer}.self_attn.": 0.5 for layer in layers} for layers in ((0, 1), (0, 2)))
    assert taught == [thin, whole]


def test_batches_depend_on_the_step_alone(chat: Chat) -> None:
    mix = Mix(chat, lambda _: {"counting": 1.0, "tools": 1.0}, tokens=300, longest=300, grown=20, seed=0)
    ahead = mix.ahead(0)
    first = [next(ahead) for _ in range(2 * GROUP)]
    later = mix.ahead(GROUP + 3)
    assert all(torch.equal(next(later).ids, first[GROUP + 3 + index].ids) for index in range(4))
    assert not torch.equal(first[0].ids, first[1].ids)


def test_a_batch_holds_at_least_the_longest_exercise(chat: Chat) -> None:
    with pytest.raises(ValueError, match="tokens_per_batch is 200; it must be at least longest, 300"):
        Mix(chat, lambda _: {"counting": 1.0}, tokens=200, longest=300, grown=20, seed=0)


def test_a_batch_is_as_wide_as_attention_likes_and_no_wider_than_the_longest_allowed() -> None:
    def width(length: int, longest: int) -> int:
        return padded([Sample([7] * length, [True] * length)], longest).ids.shape[1]

    assert [width(length, 100) for length in (1, 16, 45, 99, 200)] == [16, 16, 48, 100, 100]


def test_a_run_reads_more_of_what_it_does_worst(tmp_path: Path) -> None:
    rates = iter([{"counting": 0.75, "tools": 0.0}, {"counting": 1.0, "tools": 0.5}])
    lessons = Lessons({"counting": 2.0, "tools": 1.0}, tmp_path / "rates", every=10, judge=lambda: next(rates))
    for step in range(1, 21):
        lessons.watch(step)
    resumed = Lessons({"counting": 2.0, "tools": 1.0}, tmp_path / "rates", every=10, judge=dict)
    for known in (lessons, resumed):
        assert known.shares(9) == {"counting": 2.0, "tools": 1.0}
        assert known.shares(10) == known.shares(19) == {"counting": 0.5, "tools": 1.0}
        assert known.shares(25) == {"counting": 0.2, "tools": 0.5}


def test_exercises_grow_with_the_steps(chat: Chat) -> None:
    mix = Mix(chat, lambda _: {"counting": 1.0}, tokens=300, longest=300, grown=4 * GROUP, seed=0)
    sooner, later = (max(next(mix.ahead(step + k)).ids.shape[1] for k in range(GROUP)) for step in (0, 8 * GROUP))
    assert sooner < later


def test_a_mix_has_every_task_conversations_and_thoughts_turned_off() -> None:
    rng = random.Random(0)
    drawn = [draw(dict.fromkeys(TASKS, 1.0), Dice(rng)) for _ in range(400)]
    assert {task for exercise in drawn for task in exercise.tasks} == set(TASKS)
    assert any(len(set(exercise.tasks)) > 1 for exercise in drawn) and any(not e.thinking for e in drawn)
    for exercise in drawn:
        assert len(exercise.tasks) == len(answers(exercise))
        for task, index in zip(exercise.tasks, answers(exercise), strict=True):
            content = exercise.messages[index]["content"]
            assert not content or TASKS[task].right(exercise.messages[:index], content)


def test_the_third_kind_is_longer_and_of_several_tasks() -> None:
    third = judge.mixed(8, seed=0)
    assert all(len(exercise.tasks) == 3 == len(set(exercise.tasks)) for exercise in third)
    assert judge.mixed(8, seed=0) == third


def test_exact_rates_are_those_of_the_answers(
    run: Pretraining, words: PreTrainedTokenizerFast, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercises = [part for task in ("counting", "stories") for part in judge.held_out(task, 4, seed=0)]
    exercises.append(joined(exercises[:2]))

    def reported(model: object, prompts: list[list[int]], lengths: object, **how: object) -> list[object]:
        samples = {tuple(chat.prompt(e, i)): (e, i) for e in exercises for i in answers(e)}
        found = [chat.sample(type(e)(e.tasks, e.messages[: i + 1])) for e, i in (samples[tuple(p)] for p in prompts)]
        for sample, prompt in zip(found, prompts, strict=True):
            sample.answer[: len(prompt)] = [False] * len(prompt)
        wrong = found[0]
        wrong.ids[-2] = chat.encode("x")[0]
        return list(found)

    monkeypatch.setattr(judge, "complete", reported)
    rates = judge.exact_rates(build(thinned(run), words), chat, exercises, seed=0)
    assert rates["stories"] == 1.0 and rates["counting"] == pytest.approx(5 / 6)


def test_forced_rates_find_what_a_model_was_taught_and_nothing_else(
    run: Pretraining, words: PreTrainedTokenizerFast
) -> None:
    torch.manual_seed(0)
    rates = judge.forced_rates(build(thinned(run), words), Chat(words), ["counting"], seed=0)
    assert rates == {"counting": 0.0}


def test_the_recipe_is_read_and_names_every_task() -> None:
    run = load_pipeline(CONFIG).pretrain
    assert run is not None and set(run.shares) == set(TASKS) and run.architecture.head_dim == 64


def test_a_target_s_folder_is_judged_by_task(run: Pretraining, words: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    run = run.model_copy(update={"shares": {"counting": 1.0, "tools": 1.0}})
    torch.manual_seed(0)
    export(fresh_model(run.architecture, words), words, tmp_path)
    rates = judge.judged_folder(tmp_path, run, count=1, seed=0, new_phrasings=True)
    assert set(rates["alone"]) == set(run.shares)
    assert all(rate == 0 for rate in rates["alone"].values())  # it is random


def test_the_command_judges_a_target_by_its_recipe(
    run: Pretraining, words: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    run = run.model_copy(update={"shares": {"counting": 1.0}})
    target, path = tmp_path / "target", tmp_path / "recipe.yaml"
    export(fresh_model(run.architecture, words), words, target)
    data = {"work": str(tmp_path / "work"), "prompts": {"drawn": 1}, "vocabulary": {"size": 9}}
    path.write_text(json.dumps(data | {"pretrain": run.model_dump()}))
    done = CliRunner().invoke(app, ["judge", str(path), "--target", str(target), "--count", "1"])
    assert done.exit_code == 0 and set(json.loads(done.stdout)["alone"]) == {"counting"}
    early = CliRunner().invoke(app, ["judge", str(path)])
    assert early.exit_code == 2 and "aerie train target" in early.stderr
    missing = CliRunner().invoke(app, ["judge", str(tmp_path / "no.yaml")])
    assert missing.exit_code == 2 and "no.yaml" in missing.stderr


def test_unknown_keys_are_refused(run: Pretraining) -> None:
    with pytest.raises(ValueError, match="stepz"):
        Pretraining.model_validate(run.model_dump() | {"stepz": 3})
