"""Stage 2: drops prompts that should not be trained on, and reports how many each rule dropped, with samples.

Rules run in a fixed order and the first that applies drops the prompt: license, length, overlap with the evaluation
prompts, equal and near duplicates, personal data, names; domain weights thin out what is left. The result depends on
the prompts alone, so a killed run is simply repeated and gives the same bytes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from aerie.contracts.errors import AerieError
from aerie.contracts.provenance import file_hash
from aerie.train.demo.prompts import held_out_prompts
from aerie.train.pipeline import prompts
from aerie.train.pipeline.config import FilterStage, PipelineConfig, Source
from aerie.train.pipeline.data.lines import BadLines, read_own, write_lines
from aerie.train.pipeline.filters.near_duplicates import NearDuplicates, Overlap, normalized
from aerie.train.pipeline.filters.personal import Finder, finders, names_finder
from aerie.train.pipeline.folder import begin, input_hash, reported_when_full
from aerie.train.pipeline.prompts import Record
from aerie.train.progress import bar, say

STAGE = "filter"
FILE = "prompts.jsonl"
NOT_CHECKED = "not checked"

_SAMPLES = 3
_SHOWN = 160

Rule = Callable[[Record, str], bool]
"""Whether the rule drops a prompt, given the prompt and its text."""


def filter_prompts(config: PipelineConfig) -> Path:
    """Raises AerieError if nothing is left."""
    stage, work = config.filter, Path(config.work)
    held_out = {f"evaluate.{task}": file_hash(Path(path)) for task, path in config.evaluate.tasks.items()}
    inputs = {prompts.STAGE: input_hash(work, prompts.STAGE), **held_out}
    if config.evaluate.drawn:
        inputs["evaluate.drawn"] = f"{config.evaluate.drawn} of seed {config.seed}"
    begun = begin(work, STAGE, stage.model_dump(mode="json"), inputs)
    records = list(read_own(work / prompts.STAGE / prompts.FILE))
    rules = _rules(stage, evaluated_texts(config))
    dropped: Counter[str] = Counter()
    samples: dict[str, list[str]] = {}
    kept = []
    with bar(STAGE, len(records)) as advance:
        for record in records:
            text = text_of(record)
            rule = next((name for name, applies in rules if applies(record, text)), None)
            if rule is None:
                kept.append(record)
            else:
                _note(dropped, samples, rule, text)
            advance(1)
    thinned = weighed(kept, stage.domain_weights)
    for record in kept:
        if record["id"] not in thinned:
            _note(dropped, samples, "domain weight", text_of(record))
    kept = [record for record in kept if record["id"] in thinned]
    with reported_when_full(begun.path):
        write_lines(begun.path / FILE, kept)
        (begun.path / "samples.json").write_text(
            json.dumps(samples, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    _tell(dropped, samples, len(kept))
    if not kept:
        raise AerieError(f"the filter dropped all {len(records)} prompts; its samples are in {begun.path}")
    return begun.finish(
        {
            "read": len(records),
            "kept": len(kept),
            "dropped": dict(sorted(dropped.items())),
            "domains": dict(sorted(Counter(record["domain"] for record in kept).items())),
            "licenses": dict(sorted(Counter(record["license"] for record in kept).items())),
            "names": NOT_CHECKED if stage.names_model is None else f"checked by {stage.names_model}",
        }
    )


def evaluated_texts(config: PipelineConfig) -> list[str]:
    return [text_of(record) for found in evaluation_prompts(config).values() for record in found]


def evaluation_prompts(config: PipelineConfig) -> dict[str, list[Record]]:
    """The held-out prompts by task. A file with an unreadable line is an error: a lost prompt could be trained on."""
    found = {}
    for task, name in sorted(config.evaluate.tasks.items()):
        if not Path(name).is_file():
            raise AerieError(f"no file at {name} (evaluate.tasks.{task})")
        bad = BadLines(0)
        found[task] = list(prompts.read_records(Source(path=name, domain=task), Path(name), bad))
        bad.check()
    run = config.pretrain
    if run is not None and config.evaluate.drawn:
        drawn = held_out_prompts(run, Path(config.target), config.evaluate.drawn, seed=config.seed)
        for task, asked in drawn.items():
            if task in found:
                raise AerieError(
                    f"evaluate.tasks has a file for {task}, and evaluate.drawn draws {task} too; rename it"
                )
            found[task] = [prompts.as_record(one, domain=task, license=run.license) for one in asked]
    return found


def text_of(record: Record) -> str:
    return "\n".join(turn["content"] for turn in record["turns"])


def weighed(records: list[Record], weights: dict[str, float]) -> set[str]:
    """Ids of the largest subset whose domains have these shares; within a domain the hash of the id decides.

    Raises AerieError if a domain has no weight.
    """
    by_domain: dict[str, list[str]] = {}
    for record in records:
        by_domain.setdefault(record["domain"], []).append(record["id"])
    if not weights:
        return {record["id"] for record in records}
    unknown = sorted(set(by_domain) - set(weights))
    if unknown:
        raise AerieError(f"filter.domain_weights says nothing of {', '.join(unknown)}; 0 drops a domain")
    scale = min((len(by_domain.get(domain, ())) / share for domain, share in weights.items() if share > 0), default=0.0)
    kept: set[str] = set()
    for domain, ids in by_domain.items():
        order = sorted(ids, key=lambda one: hashlib.sha256(one.encode()).digest())
        kept |= set(order[: round(scale * weights[domain])])
    return kept


def _rules(stage: FilterStage, evaluated: list[str]) -> list[tuple[str, Rule]]:
    """Rules by name, in the order in which they run."""
    near, overlap, seen = NearDuplicates(stage.near_duplicate), Overlap(evaluated, stage.overlap_words), set[str]()

    def repeated(_: Record, text: str) -> bool:
        known = normalized(text) in seen
        seen.add(normalized(text))
        return known

    rules: list[tuple[str, Rule]] = [
        ("license", lambda record, _: bool(stage.licenses) and record["license"] not in stage.licenses),
        ("too short", lambda _, text: len(text) < stage.shortest),
        ("too long", lambda _, text: len(text) > stage.longest),
        ("evaluation overlap", lambda _, text: overlap.has(text)),
        ("exact duplicate", repeated),
        ("near duplicate", lambda record, text: near.find(record["id"], text) is not None),
    ]
    rules += [(f"personal: {kind}", _by_text(found)) for kind, found in finders(stage.personal).items()]
    names = names_finder(stage.names_model, stage.names_labels)
    return rules if names is None else [*rules, ("personal: names and places", _by_text(names))]


def _by_text(finder: Finder) -> Rule:
    return lambda _, text: finder(text)


def _note(dropped: Counter[str], samples: dict[str, list[str]], rule: str, text: str) -> None:
    dropped[rule] += 1
    if len(kept := samples.setdefault(rule, [])) < _SAMPLES:
        kept.append(text[:_SHOWN])


def _tell(dropped: Counter[str], samples: dict[str, list[str]], kept: int) -> None:
    say(f"{kept} prompts kept")
    for rule, count in dropped.most_common():
        say(f"  {count} dropped by {rule}, as {json.dumps(samples[rule][0], ensure_ascii=False)}")
