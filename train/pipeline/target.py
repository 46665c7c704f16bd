"""Stage 0, of pipelines with a section `pretrain`: a small target, trained from the start.

Its checkpoints stay in the stage's folder, beside the model; a start after a kill goes on from the last one.
"""

from pathlib import Path

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import weights_hash
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.folder import begin, reported_when_full

STAGE = "target"
_NOT_RESULTS = {"threads"}


def make_target(config: PipelineConfig) -> Path:
    """Raises AerieError if the pipeline takes its target from elsewhere."""
    run, work = config.pretrain, Path(config.work)
    if run is None or not config.trains_target:
        raise AerieError(
            f"the config's target, {config.target}, is not trained here; that takes a section pretrain and the "
            f"target {work / STAGE}, its default"
        )
    from aerie.train.demo.pretrain import pretrain  # its models take seconds to import

    settings = run.model_dump(mode="json", exclude=_NOT_RESULTS) | {"seed": config.seed}
    inputs = {"start_from": weights_hash(Path(run.start_from))} if run.start_from else {}
    begun = begin(work, STAGE, settings, inputs)
    with reported_when_full(begun.path):
        pretrain(run, begun.path, seed=config.seed)
    return begun.finish({"steps": run.steps + (run.longer.steps if run.longer else 0)})
