"""The stages in order; runs one or all of them. Called by `aerie train`.

The composition root supplies what needs an engine or a server: `Surroundings`.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import template_source
from aerie.engine.model.config import read_model_config
from aerie.train.pipeline import evaluate, export, features, filter, fit, prompts, respond, target, vocabulary
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.served import tap_boundaries
from aerie.train.pipeline.evaluate import Measure
from aerie.train.pipeline.fitting.kinds import mask_token
from aerie.train.pipeline.folder import MANIFEST, Finished, discard
from aerie.train.progress import say


@dataclass(frozen=True, slots=True)
class Surroundings:
    serve: Callable[[PipelineConfig], AbstractContextManager[str]]
    """Serves the target without a head while the context is open; gives the base URL."""
    measure: Measure
    """Answers prompts with a head in the engine."""


def _respond(config: PipelineConfig, surroundings: Surroundings) -> Path:
    given = config.respond.url
    return respond.respond(config, surroundings.serve(config) if given is None else nullcontext(given))


STAGES: dict[str, Callable[[PipelineConfig, Surroundings], Path]] = {
    target.STAGE: lambda config, _: target.make_target(config),
    prompts.STAGE: lambda config, _: prompts.make_prompts(config),
    filter.STAGE: lambda config, _: filter.filter_prompts(config),
    respond.STAGE: _respond,
    features.STAGE: lambda config, _: features.make_features(config),
    vocabulary.STAGE: lambda config, _: vocabulary.choose_vocabulary(config),
    fit.STAGE: lambda config, _: fit.train_head(config),
    evaluate.STAGE: lambda config, around: evaluate.evaluate(config, around.measure),
    export.STAGE: lambda config, _: export.export_head(config),
}


def stages_of(config: PipelineConfig) -> list[str]:
    """The stages that this pipeline has: the target's only if it trains one."""
    return [name for name in STAGES if name != target.STAGE or config.trains_target]


def run_stage(name: str, config: PipelineConfig, surroundings: Surroundings, *, again: bool = False) -> Path:
    """Runs one stage on the output of earlier ones. `again` removes its own finished or begun output first."""
    if name not in STAGES:
        raise AerieError(f"{name!r} is not a stage; stages are {', '.join(STAGES)}, and all")
    if again:
        discard(Path(config.work), name)
    return STAGES[name](config, surroundings)


def run_all(config: PipelineConfig, surroundings: Surroundings) -> Path:
    """Runs every stage in order; keeps those that are finished with this config and these inputs."""
    run = config.pretrain
    if run is not None and config.trains_target:
        _check_sizes(config, run.architecture.num_hidden_layers, run.vocabulary)
    return run_each(stages_of(config), config, surroundings)


def run_each(names: Iterable[str], config: PipelineConfig, surroundings: Surroundings) -> Path:
    """Runs these stages in order; keeps those that are finished with this config and these inputs."""
    done = Path(config.work)
    for name in names:
        if name == prompts.STAGE:  # the target is there
            check(config)
        try:
            done = run_stage(name, config, surroundings)
        except Finished:
            say(f"{name}: finished, kept")
            done = Path(config.work) / name
    return done


def check(config: PipelineConfig) -> None:
    """Checks early what would otherwise fail hours later. Raises AerieError."""
    folder = Path(config.target)
    model = read_model_config(folder)
    _check_sizes(config, model.layers, model.vocabulary)
    if template_source(folder, None if config.template is None else Path(config.template)) is None:
        raise AerieError(f"{folder} has no chat template; give one with template: FILE")
    evaluate.check_tasks(config.evaluate)
    filter.evaluation_prompts(config)
    if config.train.kind == "peagle":
        mask_token(config)
    if config.train.start_from is not None and not Path(config.train.start_from).is_dir():
        raise AerieError(f"no head at {config.train.start_from} (train.start_from)")


def _check_sizes(config: PipelineConfig, layers: int, vocabulary: int) -> None:
    """Checks what a head needs of a target of these sizes, which may not be trained yet."""
    tap_boundaries(config.features.taps, layers)
    if config.vocabulary.size > vocabulary:
        raise AerieError(f"vocabulary.size is {config.vocabulary.size}; the target has {vocabulary} ids")


def counts_of(folder: Path) -> str:
    """The counts in a stage's manifest, as one line of JSON."""
    return json.dumps(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["counts"], ensure_ascii=False)
