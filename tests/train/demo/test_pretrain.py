"""Runs on generated tasks, killed in any part and resumed, end in the same bytes; deepening changes no output."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from aerie.train.__main__ import app
from aerie.train.demo import judge, pretrain
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import LongerEnd, Pretraining
from aerie.train.demo.mix import joined
from aerie.train.demo.model import export, fresh_model
from aerie.train.demo.pretrain import build, deepen, thinned
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.exercise import answers
from aerie.train.optimization import checkpoint, schedule
from aerie.train.pipeline.config import load_pipeline
from tests.house import HOME

CONFIG = HOME / "configs/train/demo.yaml"
END = LongerEnd(steps=4, size=2, longest=300, tokens_per_batch=300, matrix_rate=0.005, vector_rate=0.005)


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


def _matrices(folder: Path) -> Tensor:
    weights = load_file(folder / "model.safetensors")
    return torch.cat([weight.float().flatten() for weight in weights.values() if weight.dim() > 1])


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


def test_a_longer_end_is_the_same_resumed_or_from_a_finished_target(
    run: Pretraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its middle. A finished target's weights are in bf16, so the end from it differs a little."""
    run = run.model_copy(update={"longer": END})
    calm, again, short, apart = (tmp_path / name for name in ("calm", "again", "short", "apart"))
    pretrain.pretrain(run, calm, seed=0)
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(checkpoint, "save", _dying(4))
        pretrain.pretrain(run, again, seed=0)
    pretrain.pretrain(run, again, seed=0)
    assert (again / "model.safetensors").read_bytes() == (calm / "model.safetensors").read_bytes()
    pretrain.pretrain(run.model_copy(update={"longer": None}), short, seed=0)
    monkeypatch.setattr(pretrain, "build_tokenizer", None)
    pretrain.pretrain(run.model_copy(update={"start_from": str(short)}), apart, seed=0)
    whole, before, parts = (_matrices(folder) for folder in (calm, short, apart))
    assert (whole - parts).norm() < 0.25 * (whole - before).norm()
    half = run.model_copy(update={"longer": END.model_copy(update={"share": 0.5})})
    pretrain.pretrain(half, again, seed=0)
    off = (_matrices(again) - (whole + before) / 2).norm() / (whole - before).norm()
    assert off < 0.35, "rounding to bf16 brings a quarter of the way, either end would be half of it"


def test_a_longer_end_has_its_own_sizes_and_rates(run: Pretraining) -> None:
    end = pretrain.lengthened(run, END)
    levels = [schedule.share(step, steps=end.steps, warmup=1, decay=end.decay) for step in range(run.steps, end.steps)]
    assert levels == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert (end.longest, end.matrix_rate) == (300, 0.005) and run.longest == 256
    with pytest.raises(ValueError, match="tokens_per_batch is 200; it must be at least longest, 300"):
        LongerEnd.model_validate(END.model_dump() | {"tokens_per_batch": 200})
    with pytest.raises(ValueError, match="start_from is some, and the run has no section longer"):
        Pretraining.model_validate(run.model_dump() | {"start_from": "some"})
    assert (run.largest, run.model_copy(update={"longer": END}).largest) == (1.0, 2.0)


@pytest.mark.gpu
def test_a_gpu_trains_the_target_that_a_cpu_does(run: Pretraining, tmp_path: Path) -> None:
    longer = run.model_copy(update={"longer": END})
    for name, made in {"short": run, "cpu": longer, "cuda": longer.model_copy(update={"device": "cuda"})}.items():
        pretrain.pretrain(made, tmp_path / name, seed=0)
    before, whole, other = (_matrices(tmp_path / name) for name in ("short", "cpu", "cuda"))
    assert (whole - other).norm() < 0.25 * (whole - before).norm()


def test_rotations_are_those_of_the_recipe_wherever_a_target_comes_from(run: Pretraining, tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    pretrain.pretrain(run, tmp_path / "short", seed=0)
    slow = run.architecture.model_copy(update={"rope_parameters": rope})
    end = {"start_from": str(tmp_path / "short"), "longer": END, "architecture": slow}
    pretrain.pretrain(run.model_copy(update=end), tmp_path / "slow", seed=0)
    written = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("short", "slow")]
    assert [one["rope_parameters"]["rope_type"] for one in written] == ["default", "llama3"]
    assert written[1]["rope_parameters"] == rope
    narrow = run.architecture.model_copy(update={"hidden_size": 32})
    with pytest.raises(RuntimeError, match="size mismatch"):
        pretrain.pretrain(run.model_copy(update=end | {"architecture": narrow}), tmp_path / "narrow", seed=0)


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
