"""The shipped heads' cards, and those that the exporters write, say what serving asks and what a reader should know."""

from pathlib import Path

import pytest
import yaml

from aerie.contracts.config import Config, load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import file_hash, template_hash, template_source, weights_hash
from aerie.spec.checkpoints.card import Origin, check_origin, origin_of, promised
from aerie.train.heads.card import LICENSE, demo_card
from tests.house import HOME

SHIPPED = {"eagle3": "configs/serve/demo.yaml", "peagle": "configs/serve/demo-peagle.yaml"}


def serving(kind: str, *settings: str) -> tuple[Path, Config]:
    """The head's folder and the config that serves it, with provenance required."""
    config = load_config(HOME / SHIPPED[kind], ["spec.require_provenance=true", *settings])
    return HOME / config.spec.head, config


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_shipped_head_is_served_where_provenance_is_required(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HOME)
    check_origin(*serving(kind))
    (tmp_path / "other.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match=r"aligned with other chat template: its card says sha256 [0-9a-f]{64}"):
        check_origin(*serving(kind, f"server.chat_template={tmp_path / 'other.jinja'}"))
    with pytest.raises(ConfigError, match=r"aligned with other target weights"):
        check_origin(*serving(kind, "model.path=models/demo/peagle"))


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_shipped_card_is_what_its_exporter_writes(kind: str) -> None:
    folder, config = serving(kind)
    target, text = HOME / config.model.path, (folder / "README.md").read_text(encoding="utf-8")
    told = {line.split(": ")[0][2:]: line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("* ")}
    coverage = float(told["Draft vocabulary"].split()[1].rstrip("%")) / 100
    name, about = text.split("\n# ")[1].split("\n\n")[:2]
    front = yaml.safe_load(text.split("---\n")[1])["aerie"]
    taps, accuracies = tuple(front["taps"]), tuple(front["conditional_accuracy"])
    facts = {"trained_on": told["Trained on"], "measured": told["Measured"], "accuracies": accuracies}
    assert text == demo_card(kind, name, about, taps, coverage, target, **facts)
    assert told["Tokenizer (sha256 of `tokenizer.json`)"] == f"`{file_hash(target / 'tokenizer.json')}`"
    found = promised(folder, config.spec, [])
    assert found is not None and 0 < found[0][0] < 1


def test_a_card_names_target_template_and_license_and_warns(tmp_path: Path) -> None:
    target = HOME / "models/demo/target"
    card = demo_card("eagle3", "A head", "About it.", (1, 2), 0.5, target, trained_on="x", measured="y")
    (tmp_path / "README.md").write_text(card)
    assert origin_of(tmp_path) == Origin(weights_hash(target), template_hash(template_source(target)))
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["aerie"]["data_licenses"] == [LICENSE] and LICENSE in card.split("---\n")[2]
    assert front["aerie"]["taps"] == [1, 2] and front["tags"][-1] == "eagle3"
    assert "**Safety note.**" in card and "only proposes" in card
