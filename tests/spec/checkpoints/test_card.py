"""What a head's card promises, from either place, down to the depth that every draft reaches; and where it is from."""

import math
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.config import load_config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.spec_section import SpecConfig
from aerie.spec.checkpoints.card import Origin, check_origin, origin_of, promised, shares_of
from aerie.spec.checkpoints.registry import Pair, Promised, locate, read_pairs
from tests.house import HOME

MEASURED = "---\naerie:\n  conditional_accuracy: [0.5, 0.4, 0.3]\n---\n\n# A head\n"


def spec(**fields: Any) -> SpecConfig:
    return parse_config({"spec": {"planner": "fixed"} | fields}).spec


def pair(head: Path | str, **promise: Any) -> Pair:
    sizes = {"architecture": "LlamaForCausalLM", "hidden_size": 32, "layers": 8, "vocabulary": 64}
    given = {"promise": {"length": 2.5, "depth": 3, "source": "somebody"} | promise}
    return Pair.model_validate({"targets": ["a/b"], "sizes": sizes, "head": str(head)} | given)


def test_a_readme_gives_shares_by_depth(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(MEASURED, encoding="utf-8")
    found = promised(tmp_path, spec(depth=5, nodes=6), [])
    assert found is not None
    assert found[0] == pytest.approx((0.5, 0.2, 0.06)), "accepted among those accepted at the depth before"
    assert "card" in found[1]


@pytest.mark.parametrize(
    ("fields", "depths"),
    [
        ({"depth": 2, "nodes": 3}, 2),
        ({"by_load": [{"rows": 1, "depth": 3, "nodes": 4}, {"rows": 4, "depth": 1, "nodes": 2}]}, 1),
        ({"by_load": [{"rows": 1, "depth": 2, "nodes": 3}, {"rows": 4, "depth": 0, "nodes": 1}]}, 2),
        ({"depth": 0, "nodes": 1}, 0),
    ],
)
def test_only_depths_that_every_draft_reaches_are_promised(tmp_path: Path, fields: dict[str, Any], depths: int) -> None:
    (tmp_path / "README.md").write_text(MEASURED, encoding="utf-8")
    found = promised(tmp_path, spec(**fields), [])
    assert (0 if found is None else len(found[0])) == depths


def test_a_file_of_configs_gives_a_length(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing measured", encoding="utf-8")
    found = promised(tmp_path, spec(depth=3, nodes=4), [pair("nobody/else", length=1.5), pair(tmp_path)])
    assert found is not None and found[1] == "somebody"
    assert 1 + math.fsum(found[0]) == pytest.approx(2.5, abs=1e-4)


def test_the_readme_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(MEASURED, encoding="utf-8")
    found = promised(tmp_path, spec(depth=1, nodes=2), [pair(tmp_path)])
    assert found is not None and found[0] == pytest.approx((0.5,))


@pytest.mark.parametrize("reported", ["0.5", "[]", "[0.5, high]", "[0.5, 1.5]"])
def test_accuracies_that_are_no_shares_promise_nothing(tmp_path: Path, reported: str) -> None:
    (tmp_path / "README.md").write_text(f"---\naerie:\n  conditional_accuracy: {reported}\n---\n", encoding="utf-8")
    assert promised(tmp_path, spec(), []) is None


def test_no_card_no_promise(tmp_path: Path) -> None:
    assert promised(tmp_path, spec(), []) is None
    assert promised(tmp_path, spec(), [pair("nobody/else")]) is None


@pytest.mark.parametrize(("length", "depth"), [(1.2, 1), (2.9, 3), (3.9, 3), (5.0, 7)])
def test_equal_chances_at_every_depth_give_the_length(length: float, depth: int) -> None:
    shares = shares_of(Promised(length=length, depth=depth, source="x"))
    assert len(shares) == depth and 1 + math.fsum(shares) == pytest.approx(length, abs=1e-4)
    assert all(deeper == pytest.approx(shares[0] ** place, abs=1e-9) for place, deeper in enumerate(shares, 1))


@pytest.mark.parametrize(("length", "depth"), [(4.1, 3), (1.0, 3), (2.0, 0)])
def test_an_impossible_promise_is_refused(length: float, depth: int) -> None:
    with pytest.raises(ValueError, match="promise"):
        pair("x", length=length, depth=depth)


def test_the_shipped_heads_promise_something() -> None:
    config = load_config(HOME / "configs/serve/demo.yaml")
    folder = locate(config.spec.head)
    assert folder is not None
    found = promised(folder, config.spec, read_pairs())
    assert found is not None and len(found[0]) == 1, "a planner may end every draft at its first node"
    fixed = promised(folder, config.spec.model_copy(update={"planner": "fixed"}), read_pairs())
    assert fixed is not None and len(fixed[0]) == config.spec.depth
    assert 1 < 1 + sum(fixed[0]) < 1 + config.spec.depth


def test_front_matter_names_target_and_template(tmp_path: Path) -> None:
    assert origin_of(tmp_path) is None
    card = tmp_path / "README.md"
    card.write_text("---\naerie:\n  target_weights: abc\n  chat_template: def\n---\n# A head\n")
    assert origin_of(tmp_path) == Origin("abc", "def")
    card.write_text("---\naerie:\n  target_weights: abc\n---\n# A head\n")
    assert origin_of(tmp_path) == Origin("abc", None)
    card.write_text("---\n- a list\n---\n# A head\n")
    assert origin_of(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "---\n: [\n---\n# A head of nothing\n",
        f"# A head\n\n* Target weights (sha256): `{'a' * 64}`\n* Measured: accuracies 0.500 0.400 length 1.70\n",
    ],
)
def test_nothing_is_read_from_prose(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert origin_of(tmp_path) is None and promised(tmp_path, spec(), []) is None
    with pytest.raises(ConfigError, match=r"no card"):
        check_origin(tmp_path, load_config(None, ["model.path=nowhere"]))
