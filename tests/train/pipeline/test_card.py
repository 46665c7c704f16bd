"""The shipped heads' cards say what serving asks; tests of the export hold those that the pipeline writes."""

import json
from pathlib import Path

import pytest
import yaml

from aerie.contracts.config import Config, load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import template_hash, template_source, weights_hash
from aerie.spec.checkpoints.card import Origin, check_origin, origin_of, promised
from aerie.train.heads.layout import boundaries_of
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
def test_a_shipped_card_says_what_a_reader_should_know(kind: str) -> None:
    folder, config = serving(kind)
    target, text = HOME / config.model.path, (folder / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["tags"][-1] == kind and front["aerie"]["data_licenses"] == ["PSF-2.0"]
    registered = yaml.safe_load((HOME / "configs/head/demo.yaml").read_text())
    served = boundaries_of(json.loads((folder / "config.json").read_text()))
    assert front["aerie"]["taps"] == registered["taps"] == [*served]
    assert origin_of(folder) == Origin(weights_hash(target), template_hash(template_source(target)))
    found = promised(folder, config.spec, [])
    assert found is not None and 0 < found[0][0] < 1
