"""Stage 5: the draft vocabulary, the target ids that its answers use most.

End tokens, which close every answer, and all ids that the template writes are always in. The map is fixed here, before
training, and stays with the head.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import read_model_config
from aerie.train.heads.draft_vocabulary import DraftVocabulary, draft_vocabulary
from aerie.train.pipeline import features
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.render import ChatRenderer
from aerie.train.pipeline.data.shards import Shards
from aerie.train.pipeline.folder import begin, input_hash, reported_when_full, write_whole
from aerie.train.progress import bar, say

STAGE = "vocabulary"
FILE = "vocabulary.safetensors"


def choose_vocabulary(config: PipelineConfig) -> Path:
    """Raises ConfigError if the size exceeds the target's vocabulary or is too small for the template's own ids."""
    work, model = Path(config.work), read_model_config(Path(config.target))
    kept, inputs = config.vocabulary.size, {features.STAGE: input_hash(work, features.STAGE)}
    template = None if config.template is None else Path(config.template)
    renderer = ChatRenderer(Path(config.target), template, model.end_ids)
    always = {*model.end_ids, *renderer.tokenizer.all_special_ids, *renderer.template_ids()}
    always = {token for token in always if token < model.vocabulary}
    if not len(always) <= kept <= model.vocabulary:
        raise ConfigError(
            f"vocabulary.size is {kept}; the template and the end tokens take {len(always)}, the target has "
            f"{model.vocabulary}",
            param="vocabulary.size",
        )
    begun = begin(work, STAGE, config.vocabulary.model_dump(mode="json"), inputs)
    shards = Shards(work / features.STAGE)
    with bar(STAGE, sum(map(len, shards.lengths))) as advance:

        def answers() -> Iterator[list[int]]:
            for number, lengths in enumerate(shards.lengths):
                for place in range(len(lengths)):
                    document = shards.document(number, place)
                    yield document.ids[document.answer].tolist()
                    advance(1)

        vocabulary = draft_vocabulary(answers(), kept=kept, size=model.vocabulary, always=always)
    say(f"{kept} of {model.vocabulary} ids cover {vocabulary.coverage:.2%} of the answers' tokens")
    with reported_when_full(begun.path):
        write_whole(begun.path / FILE, _bytes(vocabulary))
    return begun.finish({"size": kept, "coverage": round(vocabulary.coverage, 6), "always": len(always)})


def read_vocabulary(folder: Path, size: int) -> DraftVocabulary:
    tensors = load_file(folder / FILE)
    return DraftVocabulary(tensors["draft_to_target"], size, float(tensors["coverage"]))


def _bytes(vocabulary: DraftVocabulary) -> bytes:
    tensors: dict[str, Tensor] = {
        "draft_to_target": vocabulary.draft_to_target,
        "coverage": torch.tensor(vocabulary.coverage, dtype=torch.float64),
    }
    return save(tensors)
