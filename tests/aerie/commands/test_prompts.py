"""The probes' prompts are what the model at hand can be asked: what its chat template shows."""

import shutil
from pathlib import Path

import pytest

from aerie.commands.prompts import conversations, held_out_prompts, mixed_prompts, repetitions, task_prompts
from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.server.text.tokenizer import Tokenizer
from aerie.train.demo.chat import CHAT_TEMPLATE
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.docstrings import paragraphs
from tests.house import HOME

NO_TOOLS = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}<|assistant|>"


def config_with(template: str | None, folder: Path) -> Config:
    """The demo's tokenizer with this template."""
    left_out = shutil.ignore_patterns("*.safetensors", "chat_template.jinja")
    shutil.copytree(HOME / "models/demo/target", folder / "target", ignore=left_out)
    if template is not None:
        (folder / "target/chat_template.jinja").write_text(template)
    return parse_config({"model": {"path": str(folder / "target")}})


def texts(config: Config, prompts: list[list[int]]) -> list[str]:
    tokenizer = Tokenizer(Path(config.model.path))
    return [tokenizer.decode(prompt, skip_special=False) for prompt in prompts]


@pytest.mark.parametrize(("template", "missing"), [(CHAT_TEMPLATE, set()), (NO_TOOLS, {"tools"})])
def test_every_task_is_asked_that_the_template_shows(template: str, missing: set[str], tmp_path: Path) -> None:
    config = config_with(template, tmp_path)
    by_task = task_prompts(config, 2)
    assert set(by_task) == {*TASKS, "mixed"} - missing
    assert all(len(prompts) == 2 and prompts[0] != prompts[1] for prompts in by_task.values())
    assert ("tools" in by_task) == any("<tool_response>" in text for text in texts(config, by_task.get("tools", [])))
    count = 2 * len(TASKS)
    asked = mixed_prompts(config, count)
    assert len(asked) == count and asked[: len(TASKS) - len(missing)] == [
        prompts[0] for task, prompts in task_prompts(config, 3).items() if task != "mixed"
    ]


def test_exercises_need_a_template(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mix docstrings"):
        task_prompts(config_with(None, tmp_path), 1)


def test_conversations_are_as_long_as_asked_and_leave_room_for_an_answer(tmp_path: Path) -> None:
    config = config_with(CHAT_TEMPLATE, tmp_path)
    for earlier in (0, 2, 12):
        for text in texts(config, conversations(config, 3, earlier=earlier)):
            assert text.count("<|user|>") == earlier + 1 and text.endswith("<|assistant|>")
    assert max(map(len, conversations(config, 32, earlier=12))) < 2048 - 256


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, NO_TOOLS])
def test_what_is_to_be_repeated_stands_in_the_prompt(template: str, tmp_path: Path) -> None:
    config = config_with(template, tmp_path)
    for text in texts(config, repetitions(config, 3)):
        assert text.endswith("<|assistant|>") and text.count("<|user|>") == 1


def test_questions_about_docstrings_need_no_template(tmp_path: Path) -> None:
    names = set(paragraphs())
    for template in (None, CHAT_TEMPLATE):
        config = config_with(template, tmp_path / str(template is None))
        asked = texts(config, held_out_prompts(config, 20, seed=3))
        assert len(set(asked)) == 20 and all(any(name in text for name in names) for text in asked)
        assert all(text.endswith("<|assistant|>") == (template is not None) for text in asked)
