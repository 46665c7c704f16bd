"""The schema of a pipeline file: one section per stage. Unknown keys are errors.

A file may name another beside it (`base: FILE`), whose settings its own replace.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from aerie.contracts.errors import ConfigError
from aerie.contracts.overrides import lay_over
from aerie.contracts.section import Section
from aerie.train.demo.config import Pretraining
from aerie.train.pipeline.fitting.config import TrainStage


class Source(Section):
    """Files of prompts and their metadata."""

    path: str
    """A file or a pattern: .jsonl of OpenAI messages or ShareGPT, or text files whose paragraphs are prompts."""
    domain: str = "chat"
    """Key of the filter's domain weights, as in chat, code, math."""
    license: str = "unknown"
    """License or usage tag; the filter may require it and the head's card names it."""


class PromptsStage(Section):
    sources: tuple[Source, ...] = ()
    drawn: int = Field(default=0, ge=0)
    """Exercises that are drawn from what `pretrain` teaches the target."""
    shares: dict[str, float] = Field(default_factory=dict)
    """Task -> its share of the drawn exercises, where that is not the share of `pretrain.shares`."""
    bad_lines: int = Field(default=10, ge=0)
    """Most unreadable lines that are skipped; one more fails the stage."""

    @model_validator(mode="after")
    def _some(self) -> "PromptsStage":
        if not self.sources and not self.drawn:
            raise ValueError("no prompts: name files in prompts.sources, or draw some (prompts.drawn)")
        return self


class FilterStage(Section):
    licenses: tuple[str, ...] = ()
    """Tags that may be used; empty allows all."""
    shortest: int = Field(default=1, ge=0)
    """Fewest characters of a prompt's turns together."""
    longest: int = Field(default=20_000, ge=1)
    """Most characters of a prompt's turns together."""
    near_duplicate: float = Field(default=0.8, gt=0, le=1)
    """Estimated Jaccard similarity of word triples from which a later prompt is a duplicate; 1 drops only equal
    prompts.
    """
    overlap_words: int = Field(default=13, ge=3)
    """A prompt that shares this many consecutive words with an evaluation prompt is dropped."""
    personal: tuple[Literal["email", "phone", "card", "account", "address"], ...] = (
        "email",
        "phone",
        "card",
        "account",
        "address",
    )
    """Kinds of personal data for which a prompt is dropped."""
    names_model: str | None = None
    """Folder of a token classifier that finds names and places; without one they are not checked."""
    names_labels: tuple[str, ...] = ("PER", "LOC")
    """Labels of that classifier that count."""
    domain_weights: dict[str, float] = Field(default_factory=dict)
    """Shares of domains among the kept prompts, in any unit; empty keeps all. The largest set with these shares is
    kept.
    """


class RespondStage(Section):
    url: str | None = None
    """Base URL of an OpenAI endpoint that serves the target, as in http://127.0.0.1:8000/v1; without one Aerie serves
    the target itself during the stage.
    """
    model: str | None = None
    """Model name at that endpoint; the first of /v1/models by default."""
    api_key: str = "none"
    temperatures: tuple[float, ...] = Field(default=(0.0,), min_length=1)
    every_temperature: bool = True
    """Answer each prompt once at each temperature; false takes one temperature for a prompt, in turn. Answers to one
    prompt are much alike, so where prompts can be drawn, more of them teach more.
    """
    max_tokens: int = Field(default=512, ge=1)
    concurrency: int = Field(default=16, ge=1)
    retries: int = Field(default=5, ge=0)
    """Retries of one request, with growing pauses."""
    failures: int = Field(default=0, ge=0)
    """Most prompts left unanswered after all retries; one more fails the stage."""
    seconds: float = Field(default=600.0, gt=0)
    """Time limit of one request."""
    token_ids: bool = True
    """Request the token ids (`return_token_ids`, of Aerie and vLLM); false for endpoints that reject it."""


class FeaturesStage(Section):
    mode: Literal["offline", "online"] = "offline"
    """Offline writes taps and final states; online writes tokens and training computes the rest, with equal values."""
    storage: str | None = None
    """Where shards are stored, as an fsspec URL (file:///data/heads, memory://heads, s3://...); the stage's own folder
    by default.
    """
    taps: tuple[int, ...] = ()
    """Boundaries: tap b is the residual stream entering layer b. Empty takes EAGLE-3's (2, L/2, L-3)."""
    longest: int = Field(default=2048, ge=2)
    """Tokens kept per conversation."""
    shard_tokens: int = Field(default=65_536, ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype in which the target computes; that of serving by default."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the target runs; `auto` takes a GPU if there is one."""
    threads: int = Field(default=1, ge=1)


class VocabularyStage(Section):
    size: int = Field(ge=1)
    """Number of ids in the draft vocabulary."""


class EvaluateStage(Section):
    tasks: dict[str, str] = Field(default_factory=dict)
    """Held-out prompts by task: files as in prompts.sources. The filter keeps them out of the training data."""
    drawn: int = Field(default=0, ge=0)
    """Held-out prompts of each task that are drawn from what `pretrain` leaves out."""
    prompts: int = Field(default=64, ge=1)
    """Most prompts per task."""
    shapes: tuple[str, ...] = ("4,1,5",)
    """depth,topk,nodes; the first chain gives the figures of the card."""
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = Field(default=64, ge=1)
    baseline: str | None = None
    """Folder of a head to compare with."""
    settings: tuple[str, ...] = ()
    """Engine settings, as in engine.threads=1."""


class ExportStage(Section):
    name: str = "Draft head"
    """Title of the card."""


class PipelineConfig(Section):
    work: str
    """Folder that holds the stages' folders."""
    target: str
    """Folder of the target; with `pretrain` by default WORK/target, which the stage `target` makes."""
    pretrain: Pretraining | None = None
    """How a small target is trained first, where `target` is WORK/target, and what it was taught elsewhere."""
    template: str | None = None
    """A file that replaces the target's chat template, as server.chat_template does."""
    seed: int = 0
    prompts: PromptsStage
    filter: FilterStage = FilterStage()
    respond: RespondStage = RespondStage()
    features: FeaturesStage = FeaturesStage()
    vocabulary: VocabularyStage
    train: TrainStage = TrainStage()
    evaluate: EvaluateStage = EvaluateStage()
    export: ExportStage = ExportStage()

    @model_validator(mode="before")
    @classmethod
    def _own_target(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("pretrain") is not None and isinstance(data.get("work"), str):
            return {"target": f"{data['work']}/target"} | data
        return data

    @property
    def trains_target(self) -> bool:
        """Whether the stage `target` makes the target."""
        return self.pretrain is not None and Path(self.target) == Path(self.work) / "target"

    @model_validator(mode="after")
    def _taught(self) -> "PipelineConfig":
        if self.pretrain is None and (self.prompts.drawn or self.evaluate.drawn):
            raise ValueError(
                "prompts.drawn and evaluate.drawn draw from what a section pretrain teaches; there is none"
            )
        tasks = self.pretrain.shares if self.pretrain else {}
        if unknown := sorted(self.prompts.shares.keys() - tasks.keys()):
            raise ValueError(
                f"prompts.shares names {', '.join(unknown)}; pretrain.shares has {', '.join(tasks) or None}"
            )
        return self


def _read(path: Path) -> dict[str, Any]:
    """The sections of the file, laid over those of the file beside it that `base` names."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config at {path}; configs/train/ holds those that ship") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of sections; it holds a {type(data).__name__}")
    base = data.pop("base", None)
    if base is None:
        return data
    below = _read(path.parent / str(base))
    return below | {
        name: below[name] | section if isinstance(section, dict) and isinstance(below.get(name), dict) else section
        for name, section in data.items()
    }


def load_pipeline(path: Path, overrides: list[str] | None = None) -> PipelineConfig:
    """Reads the file and applies `section.key=value` overrides. Raises ConfigError."""
    data = _read(path)
    for override in overrides or []:
        lay_over(data, override, texts=())
    try:
        return PipelineConfig.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path} is not a config of the training pipeline: {problems}") from None
