"""The model card of a head: front matter, its target, the safety note, and how it was made.

Called by `export`. Its facts come from the manifests of the stages, so the caller repeats nothing. Of a card, code
reads the front matter alone (`spec/checkpoints/card.py`); the rest is for people.
"""

import textwrap
from pathlib import Path
from typing import Any

import yaml

from aerie.train.heads.head import HeadShape
from aerie.train.pipeline import evaluate, features, fit, respond, vocabulary
from aerie.train.pipeline import filter as filtering
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.shards import Index
from aerie.train.pipeline.evaluate import Cell
from aerie.train.pipeline.fitting.config import TrainStage
from aerie.train.pipeline.folder import manifest_of

_ABOUT = """{kind} for the target named below: hidden size {hidden}, MLP {intermediate}, taps at boundaries {taps} \
(the residual streams entering these layers), a draft vocabulary of {draft} of {size} ids{norms}{residual}."""
_RESIDUAL = """, and a residual that is taken behind its norm, which Aerie and vLLM read and SGLang does not"""

_WIDTH = 120
_TEXT = """# {name}

{about}

## Aligned with

* Target weights (sha256): `{target}`
* Chat template (sha256): `{template}`

**Safety note.** The head was aligned with this target and this template and with no other. It only proposes: an
engine that verifies losslessly, as Aerie does, gives the target's own text whatever the head drafts. With other
weights, a fine-tune, or another template it drafts worse without any sign of it but fewer accepted tokens.
`spec.require_provenance: true` makes Aerie refuse such a pair. The head adds no safeguard and removes none: what the
target would say, it still says.

## Data

* Prompts: {prompts} after filtering ({dropped} dropped), answered by the target; {tokens} tokens, {answers} of answers
* Licenses and usage tags of the prompts: {licenses}
* Names and places in the prompts: {names}
* Draft vocabulary: covers {coverage:.2%} of the answers' tokens

## Training

{steps} updates of {accumulate} packed rows of {row_tokens} tokens, {method}, loss {loss},
{optimizer} at rate {rate:g}, products in {precision}.

## Measured

{measured}

{table}{places}"""
_PLACES = """
Tokens a step of chains of {depth}, by the position in the answer where the step began:

{table}"""


def write_card(path: Path, config: PipelineConfig, index: Index, shape: HeadShape, cells: list[Cell]) -> None:
    work, stage = Path(config.work), config.train
    filtered, trained = manifest_of(work, filtering.STAGE)["counts"], manifest_of(work, fit.STAGE)["counts"]
    featured, chosen = manifest_of(work, features.STAGE)["counts"], manifest_of(work, vocabulary.STAGE)["counts"]
    licenses = tuple(sorted(manifest_of(work, respond.STAGE)["counts"]["licenses"]))
    chains = _chains(cells)
    measured, accuracies = _measured(chains)
    front: dict[str, Any] = {
        "target_weights": index.target,
        "chat_template": index.template,
        "taps": list(index.boundaries),
        "features_dtype": index.dtype,
        "data_licenses": list(licenses),
    }
    if accuracies:
        front["conditional_accuracy"] = [round(accuracy, 3) for accuracy in accuracies]
    text = _TEXT.format(
        name=config.export.name,
        about=textwrap.fill(_about(stage, shape), _WIDTH, break_on_hyphens=False),
        target=index.target,
        template=index.template,
        prompts=filtered["kept"],
        dropped=sum(filtered["dropped"].values()),
        tokens=featured["tokens"],
        answers=featured["answer_tokens"],
        licenses=", ".join(licenses),
        names=filtered["names"],
        coverage=chosen["coverage"],
        steps=trained["steps"],
        accumulate=stage.accumulate,
        row_tokens=stage.tokens,
        method=_method(stage),
        loss=stage.loss.replace("_", " "),
        optimizer=stage.optimizer,
        rate=stage.rate,
        precision=stage.precision,
        measured=measured,
        table=evaluate.as_table(cells),
        places=_PLACES.format(depth=_depth(chains), table=evaluate.as_places(chains)) if chains else "",
    )
    path.write_text(_front_matter(Path(config.target).name, stage.kind, front) + text, encoding="utf-8")


def _front_matter(base: str, kind: str, facts: dict[str, Any]) -> str:
    data = {"base_model": base, "tags": ["speculative-decoding", kind], "aerie": facts}
    return f"---\n{yaml.safe_dump(data, sort_keys=False)}---\n\n"


def _about(stage: TrainStage, shape: HeadShape) -> str:
    norms = [name for name, on in (("tap norms", stage.tap_norms), ("normed feedback", stage.norm_output)) if on]
    return _ABOUT.format(
        kind=_kind(stage),
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        taps=", ".join(map(str, shape.boundaries)),
        draft=shape.draft_vocabulary,
        size=shape.vocabulary,
        norms=f", {' and '.join(norms)} as in EAGLE-3.1" if norms else "",
        residual=_RESIDUAL if stage.norm_before_residual else "",
    )


def _kind(stage: TrainStage) -> str:
    if stage.kind == "eagle3":
        return "An EAGLE-3 draft head of one decoder layer"
    layers, depth = stage.peagle.layers, stage.depth
    return f"A P-EAGLE draft head of {layers} decoder layers, which drafts up to {depth} tokens in one pass,"


def _method(stage: TrainStage) -> str:
    if stage.kind == "eagle3":
        return f"{stage.depth} steps of training-time test with decay {stage.step_decay:g}"
    own = stage.peagle
    return f"{stage.depth} depths, each keeping {own.rate:g} of the anchors of the one before, at least {own.floor:g}"


def _chains(cells: list[Cell]) -> list[Cell]:
    """The trained head's cells of the first chain that was measured."""
    chains = [cell for cell in cells if cell["head"] == evaluate.TRAINED and cell["shape"].split(",")[1] == "1"]
    return [cell for cell in chains if cell["shape"] == chains[0]["shape"]]


def _depth(chains: list[Cell]) -> str:
    return str(chains[0]["shape"]).split(",")[0]


def _measured(chains: list[Cell]) -> tuple[str, tuple[float, ...]]:
    """One line about the lowest temperature, all tasks weighted equally, and the conditional accuracies there."""
    if not chains:
        return "No chain was measured.", ()
    lowest = min(cell["temperature"] for cell in chains)
    of_tasks = [cell for cell in chains if cell["temperature"] == lowest]
    (cell,) = evaluate.together(of_tasks) or of_tasks
    accuracies = tuple(evaluate.conditional(cell["acceptance_per_position"]))
    shares = " ".join(f"{share:.3f}" for share in accuracies)
    tasks = cell["task"] if len(of_tasks) == 1 else f"{len(of_tasks)} tasks of equal weight"
    line = (
        f"In Aerie's engine, on {cell['prompts']} held-out prompts ({tasks}, T={lowest:g}, chains of "
        f"{_depth(chains)}): acceptance length {cell['acceptance_length']:.2f}, accuracies {shares} (of the drafts "
        f"accepted to the depth before)."
    )
    return line, accuracies
