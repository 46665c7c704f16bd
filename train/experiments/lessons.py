"""What heads learn from: the target's own answers to fresh exercises, as features.

Made by the stages of `aerie train`, in a folder for each choice of tasks and template. No prompt comes twice, and none
is one that heads are measured on. Each seed takes conversations of its own; a smaller amount is a part of a larger one.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import weights_hash
from aerie.train.demo.config import Pretraining
from aerie.train.experiments.config import Arm
from aerie.train.pipeline import features, filter, prompts, respond, vocabulary
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import read_own, write_lines
from aerie.train.pipeline.folder import Finished, begin, input_hash, write_whole
from aerie.train.pipeline.order import Surroundings, run_each

_ANSWERED = (prompts.STAGE, filter.STAGE, respond.STAGE)
_SHOWN = (features.STAGE, vocabulary.STAGE)
STAGES = (*_ANSWERED, *_SHOWN)

Record = dict[str, Any]


def place_of(proxy: PipelineConfig) -> Path:
    """The folder of all work with the target as it is."""
    return Path(proxy.work) / weights_hash(Path(proxy.target))[:12]


def lessons(proxy: PipelineConfig, arm: Arm, around: Surroundings) -> PipelineConfig:
    """The pipeline whose folder has the features that the arm learns from; runs its stages that are not finished."""
    answered = _of_tasks(proxy, arm)
    run_each(_ANSWERED, answered, around)
    if arm.template == "right":
        run_each(_SHOWN, answered, around)
        return answered
    bare = answered.model_copy(update={"work": f"{answered.work}-bare"})
    _without_template(answered, bare)
    run_each(_SHOWN, bare, around)
    return bare


def _of_tasks(proxy: PipelineConfig, arm: Arm) -> PipelineConfig:
    run = taught(proxy)
    if unknown := sorted(set(arm.tasks) - set(run.shares)):
        raise AerieError(
            f"{arm.name}: the target was not taught {', '.join(unknown)}; it knows {', '.join(run.shares)}"
        )
    shares = {task: share for task, share in run.shares.items() if task in arm.tasks or not arm.tasks}
    changed = proxy.model_copy(update={"pretrain": run.model_copy(update={"shares": shares})})
    made = changed.model_dump(mode="json", include={"pretrain", "template", "seed", *STAGES, "evaluate"})
    work = place_of(proxy) / "lessons" / f"{'-'.join(arm.tasks) or 'all'}-{key_of(made)}"
    return changed.model_copy(update={"work": str(work)})


def key_of(settings: Any) -> str:
    """A name for what settings make."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _without_template(answered: PipelineConfig, bare: PipelineConfig) -> None:
    """Writes the same conversations, with only the first token of the template before the answer."""
    source, work = Path(answered.work), Path(bare.work)
    marks = set(PreTrainedTokenizerFast.from_pretrained(bare.target).all_special_ids)
    try:
        begun = begin(work, respond.STAGE, {"template": "none"}, {respond.STAGE: input_hash(source, respond.STAGE)})
    except Finished:
        return
    found = [without_marks(record, marks) for record in read_own(source / respond.STAGE / respond.FILE)]
    write_lines(begun.path / respond.FILE, found)
    begun.finish({"conversations": len(found)})


def without_marks(record: Record, marks: set[int]) -> Record:
    """The conversation with the ids of its prompt that are no marks; the first stays, and so does the answer."""
    *before, answer = record["turns"]
    first, *rest = answer["prompt_token_ids"]
    kept = [first, *(token for token in rest if token not in marks)]
    return {**record, "turns": [*before, {**answer, "prompt_token_ids": kept}]}


def taught(proxy: PipelineConfig) -> Pretraining:
    """Raises AerieError if the proxy does not say what its target was taught."""
    if proxy.pretrain is None:
        raise AerieError("the proxy has no section pretrain; experiments draw exercises of the tasks that it names")
    return proxy.pretrain


def exact_rates(proxy: PipelineConfig, *, least: float) -> dict[str, float]:
    """How often the target is exactly right on held-out values, by task; computed once.

    Raises AerieError if there is no target, or if it does not know the tasks: a mean of less than `least`.
    """
    from transformers import LlamaForCausalLM

    from aerie.train.demo.chat import MARKS, Chat
    from aerie.train.demo.judge import forced_rates

    folder, run = Path(proxy.target), taught(proxy)
    if not (folder / "model.safetensors").exists():
        raise AerieError(f"there is no target in {folder}; name one that knows the tasks, as in target=FOLDER")
    if missing := set(MARKS) - set(PreTrainedTokenizerFast.from_pretrained(folder).get_vocab()):
        raise AerieError(
            f"the target in {folder} does not know the tasks: its tokenizer lacks {', '.join(sorted(missing))}; name "
            f"one that was trained by configs/train/demo.yaml, as in target=FOLDER"
        )
    known = place_of(proxy) / "exact.json"
    if not known.exists():
        import torch

        torch.set_num_threads(proxy.train.threads)
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, json.dumps(forced_rates(model, Chat.of(folder), run.shares, seed=proxy.seed)).encode())
    rates: dict[str, float] = json.loads(known.read_text(encoding="utf-8"))
    mean = sum(rates.values()) / len(rates)
    if mean < least:
        raise AerieError(
            f"the target in {folder} does not know the tasks: {mean:.0%} of its answers to held-out exercises are "
            f"exactly right, and experiments need {least:.0%} (--least-exact): {rates}"
        )
    return rates
