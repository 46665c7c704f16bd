"""The files of real pairs: each fits the others, and the dense ones load and decode as stand-ins of their layout."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import yaml

from aerie.contracts.config import Config, load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.worker import Worker
from aerie.engine.model.config import read_model_config
from aerie.server.text.template import ChatTemplate
from aerie.spec.build import build_worker
from aerie.spec.checkpoints.registry import FOLDER, Pair, head_of, read_pairs
from scripts.convert_pickle import convert
from tests.configs.stand_ins import STAND_INS, StandIn, write_head, write_target
from tests.engine.rounds import Rounds
from tests.house import HOME

SERVE = HOME / "configs/serve"
PLAIN = {"llama-3.1-70b"}
"""Deployments without a head, since none is known."""
PAIRS = {path.stem: Pair.model_validate(yaml.safe_load(path.read_text("utf-8"))) for path in FOLDER.glob("*.yaml")}
REAL = sorted(name for name in PAIRS if not name.startswith("demo"))
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [70, 2], list(range(30, 50)))
Built = tuple[Path, Path]


def test_each_pair_has_a_deployment_and_each_deployment_a_pair() -> None:
    files = [path for path in SERVE.glob("*.yaml") if not path.stem.startswith("demo")]
    assert {path.stem for path in files if load_config(path).model.weights != "dummy"} == set(REAL) | PLAIN
    assert len(REAL) == 10


@pytest.mark.parametrize("name", REAL)
def test_a_deployment_serves_its_pair(name: str) -> None:
    pair, config = PAIRS[name], load_config(SERVE / f"{name}.yaml")
    assert config.model.path in pair.targets
    assert config.spec.head == "auto" and config.engine.kind == pair.engine
    assert config.spec.nodes == config.spec.depth + 1 and config.spec.topk == 1
    assert pair.head.count("/") == 1 and pair.rope and pair.template
    found: Any = SimpleNamespace(**pair.sizes.model_dump())
    for target in pair.targets:
        assert head_of([target], found, read_pairs()) == pair.head
    assert head_of(["somebody/fine-tune"], found, read_pairs()) is None, "sizes alone do not make a pair"


def test_the_page_has_every_pair() -> None:
    rows = [
        "| deployment | target | head | engine | taps | RoPE of the head | template |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in REAL:
        pair = PAIRS[name]
        taps = ", ".join(map(str, pair.taps))
        cells = (f"`{name}`", pair.targets[0], pair.head, pair.engine, taps, pair.rope, pair.template)
        rows.append(f"| {' | '.join(cells)} |")
    table = "\n".join([*rows, ""])
    assert table in (HOME / "docs/models.md").read_text("utf-8"), f"renew it:\n{table}"


@pytest.mark.parametrize("name", REAL)
def test_taps_are_those_of_eagle_3_or_explained(name: str) -> None:
    pair = PAIRS[name]
    layers = pair.sizes.layers
    if pair.taps != (2, layers // 2, layers - 3):
        assert "ids as they are" in (FOLDER / f"{name}.yaml").read_text("utf-8")
    assert list(pair.taps) == sorted(set(pair.taps)) and pair.taps[-1] < layers


def test_dense_pairs_have_stand_ins_of_their_depth() -> None:
    assert {name for name in REAL if PAIRS[name].engine == "native"} == set(STAND_INS)
    for name, like in STAND_INS.items():
        sizes = PAIRS[name].sizes
        assert (like.layers, like.architecture) == (sizes.layers, sizes.architecture)


@pytest.fixture(scope="module", params=sorted(STAND_INS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Name, target and head, the head converted where it is published as a pickle."""
    name: str = request.param
    like, folder = STAND_INS[name], tmp_path_factory.mktemp(name)
    target = write_target(folder / "target", like)
    head = write_head(folder / "head", like, PAIRS[name].taps)
    if like.producer == "safeailab":
        with pytest.raises(ConfigError, match="convert"):
            build_worker(config_of(name, target, head))
        convert(head, folder / "converted")
        head = folder / "converted"
    return name, target, head


def config_of(name: str, target: Path, head: Path | str) -> Config:
    small = ["model.dtype=float32", "model.max_length=128", "engine.kv_tokens=1024", "engine.lane=inline"]
    return load_config(SERVE / f"{name}.yaml", [f"model.path={target}", f"spec.head={head}", *small])


def decoded(worker: Worker, config: Config, *, drafting: bool) -> list[list[int]]:
    """Greedy tokens."""
    rounds = Rounds(worker)
    greedy = SamplingParams(temperature=0.0, seed=1, max_tokens=10, ignore_eos=True)
    rows = [rounds.add(row, list(prompt), greedy, drafting=drafting) for row, prompt in enumerate(PROMPTS)]
    shape = {"depth": config.spec.depth, "topk": 1, "nodes": config.spec.nodes} if drafting else {}
    rounds.finish(rows, **shape)
    return [row.out for row in rows]


def test_it_loads_and_says_the_same_with_its_head_and_without(built: tuple[str, Path, Path]) -> None:
    name, target, head = built
    like: StandIn = STAND_INS[name]
    config, bare = config_of(name, target, head), config_of(name, target, "none")
    worker = build_worker(config)
    report = worker.capacity.report
    assert report["head_taps"] == ", ".join(map(str, PAIRS[name].taps))
    assert report["head_format"] == like.producer and report["draft_vocabulary"] == like.drafted
    plain = decoded(build_worker(bare), bare, drafting=False)
    assert decoded(worker, config, drafting=True) == plain
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    for prompt, answer in zip(PROMPTS, plain, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == answer, "transformers chooses otherwise from the same folder"


def test_the_head_keeps_its_own_rope(built: tuple[str, Path, Path]) -> None:
    """The targets' long bases and scalings must not leak into heads that were trained without them."""
    from aerie.spec.checkpoints.loader import open_head

    name, target, head = built
    model = read_model_config(target)
    rope = open_head(head, model, torch.float32).config.rope
    assert (rope.theta, rope.kind) == (10000.0, "default")
    fields = STAND_INS[name].fields
    assert model.rope.theta == fields.get("rope_theta", 10000.0)
    assert model.rope.kind == ("llama3" if "llama-3" in name or "llama-8b" in name else "default")


def test_vicunas_template_is_vicunas() -> None:
    template = ChatTemplate((SERVE / "vicuna.jinja").read_text("utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    messages = [{"role": role, "content": content} for role, content in turns]
    said = template.render(messages, {})
    assert said.startswith("<s>A chat between a curious user and an artificial intelligence assistant.")
    assert said.endswith("questions. USER: Hi ASSISTANT: Hello.</s> USER: Bye ASSISTANT:")
    own = template.render([{"role": "system", "content": "Be brief."}, *messages[:1]], {})
    assert own == "<s>Be brief. USER: Hi ASSISTANT:"
