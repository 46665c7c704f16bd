"""The schema of a pipeline file: one section per stage. Unknown keys are errors."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aerie.contracts.errors import ConfigError
from aerie.contracts.overrides import lay_over


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Source(Section):
    """Files of prompts and their metadata."""

    path: str
    """A file or a pattern: .jsonl of OpenAI messages or ShareGPT, or text files whose paragraphs are prompts."""
    domain: str = "chat"
    """Key of the filter's domain weights, as in chat, code, math."""
    license: str = "unknown"
    """License or usage tag; the filter may require it and the head's card names it."""


class PromptsStage(Section):
    sources: tuple[Source, ...] = Field(min_length=1)
    bad_lines: int = Field(default=10, ge=0)
    """Most unreadable lines that are skipped; one more fails the stage."""


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
    domain_weights: dict[str, float] = {}
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
    """Each prompt is answered once at each temperature."""
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


class ParallelSection(Section):
    """Settings of P-EAGLE heads only."""

    layers: int = Field(default=4, ge=1)
    rate: float = Field(default=0.7, gt=0, le=1)
    """Share of the anchors drafting at a depth that also draft at the next."""
    floor: float = Field(default=0.2, gt=0, le=1)
    """The share of all anchors that every depth keeps at least."""
    depth_decay: float = Field(default=1.0, gt=0, le=1)
    """Weight of a depth's loss relative to the one before; the paper weights all equally."""
    elements: int = Field(default=8192, ge=2)
    """Most elements of a packed row in one pass; longer rows are split."""
    mask_token: int | None = None
    """Id whose embedding row the mask takes; no text may contain it. The padding id by default."""


class TrainStage(Section):
    kind: Literal["eagle3", "peagle"] = "eagle3"
    """EAGLE-3 drafts token after token; P-EAGLE drafts `depth` tokens in one pass."""
    start_from: str | None = None
    """Folder of an exported head to continue from; it must have the same vocabulary, template, taps and target."""
    intermediate_size: int | None = None
    """Width of the head's MLP; the target's by default."""
    depth: int = Field(default=7, ge=1)
    """How many tokens ahead the head learns to draft: EAGLE-3's number of training-time-test steps."""
    step_decay: float = Field(default=0.8, gt=0, le=1)
    """Weight of each of these steps relative to the one before."""
    peagle: ParallelSection = ParallelSection()
    loss: Literal["cross_entropy", "total_variation", "lk_alpha", "lk_lambda"] = "cross_entropy"
    """Soft cross-entropy as in the paper, or a loss on the acceptance itself."""
    tap_norms: bool = False
    """EAGLE-3.1: a norm for each tap before they are fused."""
    norm_output: bool = False
    """EAGLE-3.1: feed back the normed output."""
    epochs: int = Field(default=1, ge=1)
    steps: int | None = Field(default=None, ge=1)
    """Updates; by default as many as the epochs need."""
    tokens: int = Field(default=2048, ge=2)
    """Tokens of a packed row: whole conversations, one after the other."""
    accumulate: int = Field(default=1, ge=1)
    """Packed rows per update, over all processes together."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    rate: float = Field(default=1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup: float = Field(default=0.015, ge=0, le=1)
    """Share of the updates over which the rate rises; afterwards it falls as a cosine."""
    clip: float = Field(default=0.5, gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    """Dtype of matrix products; weights, their gradients and the optimizer are always float32."""
    checkpoint_every: int = Field(default=200, ge=1)
    log_every: int = Field(default=10, ge=1)
    threads: int = Field(default=1, ge=1)
    device: str = "cpu"

    @model_validator(mode="after")
    def _possible(self) -> "TrainStage":
        if self.kind == "peagle" and (self.tap_norms or self.norm_output):
            raise ValueError("tap_norms and norm_output are EAGLE-3.1's; a P-EAGLE head (kind: peagle) has neither")
        return self


class EvaluateStage(Section):
    tasks: dict[str, str] = {}
    """Held-out prompts by task: files as in prompts.sources. The filter keeps them out of the training data."""
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
    target: str
    """Folder of the target."""
    work: str
    """Folder that holds the stages' folders."""
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


def load_pipeline(path: Path, overrides: list[str] | None = None) -> PipelineConfig:
    """Reads the file and applies `section.key=value` overrides. Raises ConfigError."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config at {path}; configs/train/ holds those that ship") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of sections; it holds a {type(data).__name__}")
    for override in overrides or []:
        lay_over(data, override, texts=())
    try:
        return PipelineConfig.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path} is not a config of the training pipeline: {problems}") from None
