"""The section `pretrain` of a pipeline: what a small target is taught, and how."""

from pydantic import Field, model_validator

from aerie.contracts.section import Section
from aerie.train.optimization.precision import Precision


class Architecture(Section):
    """The fields of a Llama `config.json` that a run chooses."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_parameters: dict[str, str | int | float] | None = None
    """As in Llama 3.1, whose slow rotations compare tokens over long texts; by default none is scaled."""


class ThinStart(Section):
    """A run that begins with fewer and narrower layers, each step of which costs less; it learns as soon."""

    layers: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    steps: int = Field(ge=0)


class LongerEnd(Section):
    """A run that ends with longer exercises, at rates of its own that fall to zero from its first step."""

    steps: int = Field(ge=1)
    size: float = Field(gt=1)
    """Of its longest exercises; before, that is 1."""
    longest: int
    """Ids kept per conversation."""
    tokens_per_batch: int
    matrix_rate: float
    vector_rate: float
    share: float = Field(default=1.0, gt=0, le=1)
    """Of the exported weights: the rest are those before the end, which often leaves both what was learned before and
    what the end brought (Wortsman et al., "Robust fine-tuning of zero-shot models", 2022).
    """

    @model_validator(mode="after")
    def _fits(self) -> "LongerEnd":
        if self.tokens_per_batch < self.longest:
            raise ValueError(
                f"tokens_per_batch is {self.tokens_per_batch}; it must be at least longest, {self.longest}"
            )
        return self


class Pretraining(Section):
    """A target that does generated tasks."""

    start_from: str = ""
    """Folder of a target that was trained up to its longer end: the run is that end alone."""
    vocabulary: int
    """Ids of the tokenizer."""
    architecture: Architecture
    thin: ThinStart
    longer: LongerEnd | None = None
    circuit_rate: float = Field(gt=0, le=1)
    """Share of the rate at which the attention learns that begins as the circuit which copies."""
    shares: dict[str, float]
    """Task -> its share of the exercises."""
    grown: int
    """Over how many steps the sizes of exercises grow from the smallest to the whole."""
    steps: int
    tokens_per_batch: int
    longest: int
    """Ids kept per conversation."""
    matrix_rate: float
    """Rate of Muon, which updates matrices."""
    vector_rate: float
    """Rate of AdamW, which updates the rest."""
    warmup: int
    """Steps over which the rates rise."""
    decay: float
    """Share of the steps over which the rates fall to zero, at the end."""
    checkpoint_every: int
    judged_every: int
    """After how many steps the exact rates on held-out values are printed."""
    device: str = "cpu"
    """What trains: a CPU, or `cuda`, which no target has been trained on yet."""
    threads: int = 1
    precision: Precision = "float32"
    """What matrices are multiplied in; weights and sums stay in fp32. `bfloat16` halves a step on CPUs that have such
    products (flag `avx512_bf16` or `amx_bf16` of `lscpu`); on others it takes longer.
    """
    license: str = "PSF-2.0"
    """License of what the tasks are made of: the docstrings among them are Python's."""

    @model_validator(mode="after")
    def _goes_on(self) -> "Pretraining":
        if self.start_from and self.longer is None:
            raise ValueError(f"start_from is {self.start_from}, and the run has no section longer to go on with")
        return self

    @property
    def largest(self) -> float:
        """Size of the longest exercises."""
        return self.longer.size if self.longer else 1.0

    @property
    def most_ids(self) -> int:
        """Ids of the longest conversation."""
        return self.longer.longest if self.longer else self.longest
