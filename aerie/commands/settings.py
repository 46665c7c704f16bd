"""`aerie settings`: every setting with its type, default and meaning, from the config's own declarations."""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from aerie.contracts.config import Config
from aerie.contracts.spec_section import LoadShape


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    kind: str
    default: str
    meaning: str


def settings() -> list[Setting]:
    """All settings in the order of the sections; `spec.by_load[]` denotes the fields of one entry of that table."""
    found = []
    for section, field in Config.model_fields.items():
        found += _of(section, field.annotation)
        if section == "spec":
            found += _of("spec.by_load[]", LoadShape)
    return found


def as_markdown() -> str:
    """The table of docs/configuration.md."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for one in settings():
        cells = (f"`{one.key}`", one.kind.replace("|", "\\|"), f"`{one.default}`" if one.default else "", one.meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _of(section: str, model: Any) -> list[Setting]:
    return [
        Setting(
            key=f"{section}.{name}",
            kind=_kind(field.annotation),
            default="" if field.is_required() else _written(field.get_default(call_default_factory=True)),
            meaning=" ".join((field.description or "").split()),
        )
        for name, field in model.model_fields.items()
    ]


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {_kind(get_args(annotation)[0])}"
    if annotation is LoadShape or get_origin(annotation) is dict:
        return "entries"
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if parts:
        return _kind(parts[0])
    return {bool: "true, false", int: "integer", float: "number", str: "text"}[annotation]


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else str(value)
