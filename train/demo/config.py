"""The section `pretrain` of a pipeline: which small target is trained, and how."""

from typing import Annotated, Literal

from pydantic import Field

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


class Pretraining(Section):
    """Fields common to both kinds of text."""

    vocabulary: int
    """Ids of the tokenizer."""
    architecture: Architecture
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
    threads: int = 1
    precision: Precision = "float32"
    """What matrices are multiplied in; weights and sums stay in fp32. `bfloat16` halves a step on CPUs that have such
    products (flag `avx512_bf16` or `amx_bf16` of `lscpu`); on others it takes longer.
    """


class DocstringTarget(Pretraining):
    """A target that recites docstrings."""

    kind: Literal["docstrings"]
    corpus: str
    """File of entries, .jsonl.gz."""
    license: str = "PSF-2.0"
    """License of the text; prompts drawn from it carry it."""


class ThinStart(Section):
    """A run that begins with fewer and narrower layers, each step of which costs less; it learns as soon."""

    layers: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    steps: int = Field(ge=0)


class TaskTarget(Pretraining):
    """A target that does generated tasks."""

    kind: Literal["tasks"]
    thin: ThinStart
    circuit_rate: float = Field(gt=0, le=1)
    """Share of the rate at which the attention learns that begins as the circuit which copies."""
    shares: dict[str, float]
    """Task -> its share of the exercises."""
    grown: int
    """Over how many steps the sizes of exercises grow from the smallest to the whole."""
    judged_every: int
    """After how many steps the exact rates on held-out values are printed."""
    license: str = "PSF-2.0"
    """License of what the tasks are made of: the docstrings among them are Python's."""


Target = Annotated[DocstringTarget | TaskTarget, Field(discriminator="kind")]
