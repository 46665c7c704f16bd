"""The model card of a head of the pipeline; `train/heads/card.py` has the parts that all cards share.

Called by `export`. Its facts come from the manifests of the stages, so the caller repeats nothing.
"""

from pathlib import Path
from typing import Any

from aerie.train.heads.card import Aligned, opening
from aerie.train.heads.head import HeadShape
from aerie.train.pipeline import evaluate, features, fit, respond, vocabulary
from aerie.train.pipeline import filter as filtering
from aerie.train.pipeline.config import PipelineConfig, TrainStage
from aerie.train.pipeline.data.shards import Index
from aerie.train.pipeline.folder import manifest_of

_ABOUT = """{kind} for the target named below: hidden size {hidden}, MLP {intermediate}, taps at boundaries {taps} \
(the residual streams entering these layers), a draft vocabulary of {draft} of {size} ids{norms}."""

_TEXT = """## Data

* Prompts: {prompts} after filtering ({dropped} dropped), answered by the target; {tokens} tokens, {answers} of answers
* Licenses and usage tags of the prompts: {licenses}
* Names and places in the prompts: {names}
* Draft vocabulary: covers {coverage:.2%} of the answers' tokens

## Training

{steps} updates of {accumulate} packed rows of {row_tokens} tokens, {method}, loss {loss},
{optimizer} at rate {rate:g}, products in {precision}.

## Measured

{measured}

{table}"""


def write_card(path: Path, config: PipelineConfig, index: Index, shape: HeadShape, cells: list[dict[str, Any]]) -> None:
    work, stage = Path(config.work), config.train
    filtered, trained = manifest_of(work, filtering.STAGE)["counts"], manifest_of(work, fit.STAGE)["counts"]
    featured, chosen = manifest_of(work, features.STAGE)["counts"], manifest_of(work, vocabulary.STAGE)["counts"]
    licenses = tuple(sorted(manifest_of(work, respond.STAGE)["counts"]["licenses"]))
    base, kind = Path(config.target).name, stage.kind
    measured, accuracies = _measured(cells)
    taps = tuple(index.boundaries)
    aligned = Aligned(base, index.target, index.template, taps, index.dtype, licenses, kind, accuracies)
    text = _TEXT.format(
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
    )
    path.write_text(opening(aligned, config.export.name, _about(stage, shape)) + text, encoding="utf-8")


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


def _measured(cells: list[dict[str, Any]]) -> tuple[str, tuple[float, ...]]:
    """One line about chains at the lowest temperature, and their conditional accuracies."""
    chains = [cell for cell in cells if cell["head"] == evaluate.TRAINED and cell["shape"].split(",")[1] == "1"]
    if not chains:
        return "No chain was measured.", ()
    lowest = min(cell["temperature"] for cell in chains)
    cell = next(cell for cell in chains if cell["temperature"] == lowest)
    accuracies = tuple(evaluate.conditional(cell["acceptance_per_position"]))
    shares = " ".join(f"{share:.3f}" for share in accuracies)
    line = (
        f"In Aerie's engine, on {cell['prompts']} held-out prompts ({cell['task']}, T={lowest:g}, chains of "
        f"{cell['shape'].split(',')[0]}): acceptance length {cell['acceptance_length']:.2f}, accuracies {shares} "
        f"(of the drafts accepted to the depth before)."
    )
    return line, accuracies
