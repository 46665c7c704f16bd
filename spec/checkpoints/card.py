"""Reads a head's card: how often its drafts are accepted, by depth, and for which target it was trained.

Used by the composition root, so that a server can detect a head that falls far short, and by `build` for
`spec.require_provenance`. The card is the README.md that training writes beside the weights; only its YAML front matter
is read. The head's file of `configs/head/` may also promise an acceptance. No torch here.
"""

import math
import re
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import yaml

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import template_hash, template_source, weights_hash
from aerie.contracts.spec_section import SpecConfig
from aerie.spec.checkpoints.registry import Pair, Promised, same_place

_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_ACCURACIES = "conditional_accuracy"
"""Share of drafts accepted at each depth, among those accepted at the depth before."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Hashes (`contracts/provenance.py`) of what a head was trained for; a card may name no template."""

    target: str
    template: str | None


def origin_of(folder: Path) -> Origin | None:
    """The origin on the card in a head's folder; None if there is no card or it names no target."""
    facts = _facts(folder)
    target, template = facts.get("target_weights"), facts.get("chat_template")
    if not isinstance(target, str):
        return None
    return Origin(target, template if isinstance(template, str) else None)


def _facts(folder: Path) -> dict[str, Any]:
    """Aerie's section of the front matter of the card in `folder`; empty if there is none."""
    path = folder / "README.md"
    front = _FRONT.match(path.read_text(encoding="utf-8")) if path.exists() else None
    try:
        data = yaml.safe_load(front[1]) if front else None
    except yaml.YAMLError:
        data = None
    found = data.get("aerie") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def check_origin(folder: Path, config: Config) -> None:
    """Raises ConfigError, with both hashes, unless the card of the head in `folder` names this deployment's target and,
    if it names a template, this deployment's template.
    """
    origin, target = origin_of(folder), Path(config.model.path)
    if origin is None:
        raise ConfigError(
            f"spec.require_provenance is set, and {folder} has no card that says which target the head was aligned "
            f"with; take a head with a card, or set spec.require_provenance=false",
            param="spec.require_provenance",
        )
    replaced = config.server.chat_template
    template = template_hash(template_source(target, None if replaced is None else Path(replaced)))
    for what, declared, found in (
        ("target weights", origin.target, weights_hash(target)),
        ("chat template", origin.template, template),
    ):
        if declared is not None and declared != found:
            raise ConfigError(
                f"the head in {folder} was aligned with other {what}: its card says sha256 {declared}, those served "
                f"have {found}; take the head of this target, or set spec.require_provenance=false",
                param="spec.require_provenance",
            )


def promised(folder: Path, spec: SpecConfig, pairs: list[Pair]) -> tuple[tuple[float, ...], str] | None:
    """Shares of drafts with an accepted node at depth 1, 2, ..., as deep as every draft of `spec` reaches, which a
    planner may end at the first; and their source. None if no card gives any, or nothing is drafted.
    """
    depths = [shape.depth for shape in spec.by_load] or [spec.depth]
    reached = min((depth for depth in depths if depth), default=0)
    if spec.planner == "goodput":
        reached = min(reached, 1)
    found = _of_readme(folder) or _of_pair(folder, pairs)
    if found is None or not reached:
        return None
    shares, source = found
    return shares[:reached], source


def _of_readme(folder: Path) -> tuple[tuple[float, ...], str] | None:
    measured = _facts(folder).get(_ACCURACIES)
    if not isinstance(measured, list) or not measured or not all(map(_is_share, measured)):
        return None
    return tuple(accumulate(map(float, measured), mul)), "the card in its folder"


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1


def _of_pair(folder: Path, pairs: list[Pair]) -> tuple[tuple[float, ...], str] | None:
    for pair in pairs:
        if pair.promise is not None and same_place(pair.head, str(folder)):
            return shares_of(pair.promise), pair.promise.source
    return None


def shares_of(promise: Promised) -> tuple[float, ...]:
    """Shares by depth that give the promised length, if acceptance is equally likely at every depth.

    With the share c at each depth the length is 1 + c + c^2 + ... + c^depth; EAGLE-3's acceptance is nearly flat by
    depth (Li et al., 2025, figure 7).
    """
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        length = math.fsum(middle**depth for depth in range(promise.depth + 1))
        low, high = (middle, high) if length < promise.length else (low, middle)
    return tuple(low**depth for depth in range(1, promise.depth + 1))
