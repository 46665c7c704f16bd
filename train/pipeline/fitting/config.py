"""The section `train` of a pipeline file: the kind of head, its loss and the schedule of its updates."""

from typing import Literal

from pydantic import Field, model_validator

from aerie.contracts.section import Section
from aerie.train.optimization.precision import Precision


class ParallelSection(Section):
    """Settings of P-EAGLE heads only."""

    layers: int = Field(default=4, ge=1)
    keep_start: bool = False
    """Whether the weights of `start_from`, an EAGLE-3 head, stay frozen: only the mask and deeper layers learn."""
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
    start: Literal["random", "target", "copying"] = "random"
    """A new head has the target's final norm and output rows. The rest is random, or begins as the target's last layer;
    `copying` adds to that a circuit that copies from the prompt, for a target that `pretrain` made, where
    `features.taps` begin with 1.
    """
    start_from: str | None = None
    """Folder of an exported head to continue from; it must have the same vocabulary, template, taps and target."""
    intermediate_size: int | None = None
    """Width of the head's MLP; the target's by default."""
    depth: int = Field(default=7, ge=1)
    """How many tokens ahead the head learns to draft: EAGLE-3's number of training-time-test steps."""
    step_decay: float = Field(default=0.8, gt=0, le=1)
    """Weight of each of these steps relative to the one before."""
    draw_depth: bool = False
    """Unroll each row to a drawn depth, deeper than k with probability step_decay^k, instead of weighting the losses:
    the same sum on average, for less work.
    """
    peagle: ParallelSection = ParallelSection()
    loss: Literal["cross_entropy", "total_variation", "lk_alpha", "lk_lambda"] = "cross_entropy"
    """Soft cross-entropy as in the paper, or a loss on the acceptance itself."""
    tap_norms: bool = False
    """EAGLE-3.1: a norm for each tap before they are fused."""
    norm_output: bool = False
    """EAGLE-3.1: feed back the normed output."""
    norm_before_residual: bool = False
    """speculators: take the residual behind the hidden state's norm. vLLM reads such heads, SGLang does not."""
    epochs: int = Field(default=1, ge=1)
    steps: int | None = Field(default=None, ge=1)
    """Updates; by default as many as the epochs need."""
    documents: tuple[int, int] | None = None
    """Half-open range of the stored conversations to learn from; all by default."""
    tokens: int = Field(default=2048, ge=2)
    """Tokens of a packed row: whole conversations, one after the other."""
    accumulate: int = Field(default=1, ge=1)
    """Packed rows per update, over all processes together."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    rate: float = Field(default=1e-4, gt=0)
    vector_rate: float | None = Field(default=None, gt=0)
    """With `muon`, the rate of AdamW, which updates the output layer and the norms; `rate` by default."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """After the warm-up the rate falls as half a cosine, or stays and falls linearly over the last `decay`."""
    decay: float = Field(default=0.8, gt=0, le=1)
    """Share of the updates over which a linear schedule falls to zero."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup: float = Field(default=0.015, ge=0, le=1)
    """Share of the updates over which the rate rises."""
    clip: float = Field(default=0.5, gt=0)
    precision: Precision = "float32"
    """Dtype of matrix products; weights, their gradients and the optimizer are always float32."""
    checkpoint_every: int = Field(default=200, ge=1)
    log_every: int = Field(default=10, ge=1)
    threads: int = Field(default=1, ge=1)
    device: str = "cpu"

    @model_validator(mode="after")
    def _possible(self) -> "TrainStage":
        if self.kind == "peagle" and (self.tap_norms or self.norm_output):
            raise ValueError("tap_norms and norm_output are EAGLE-3.1's; a P-EAGLE head (kind: peagle) has neither")
        if self.start == "copying" and not self.tap_norms:
            raise ValueError("train.start: copying needs tap_norms, and so EAGLE-3's kind of head")
        if self.documents is not None and not 0 <= self.documents[0] < self.documents[1]:
            raise ValueError(f"documents is {list(self.documents)}; it is a range [first, end) that holds some")
        if self.peagle.keep_start and (self.kind == "eagle3" or self.start_from is None):
            raise ValueError("peagle.keep_start freezes what a P-EAGLE head takes from start_from; name that head")
        return self
