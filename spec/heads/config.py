"""The one normal form of a draft head: `formats` maps checkpoint configs onto it, and all other code reads only it.

Invariant: taps are *boundaries* (b means the residual stream entering layer b), never layer outputs, whatever the
checkpoint counts.
"""

from dataclasses import dataclass
from typing import Literal

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import Rope

PreNorm = Literal["none", "concat", "per_tap"]
"""What is normalized before `fc`: nothing, the concatenated taps (`input_norm`), or each tap (`fc_norm`)."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes and switches of a head. `source` names the checkpoint's format."""

    source: str
    layers: int
    hidden: int
    target_hidden: int
    taps: tuple[int, ...]
    """Boundaries, ascending: their concatenation enters `fc`."""
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    vocabulary: int
    """The target's."""
    draft_vocabulary: int
    rope: Rope
    """The head's RoPE, never the target's; its tables are as long as the serving length."""
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    qk_norm: bool = False
    pre_norm: PreNorm = "none"
    norm_before_residual: bool = False
    norm_output: bool = False
    """Whether the next level's input is the normed output instead of the pre-norm output."""

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """[out, in] of the matrices, those of a layer merged as they are served."""
        hidden, queries = self.hidden, self.heads * self.head_dim
        merged = queries + 2 * self.kv_heads * self.head_dim
        layer = [(hidden, queries), (2 * self.intermediate, hidden), (hidden, self.intermediate)]
        first, others = (merged, 2 * hidden), [(merged, hidden)] * (self.layers - 1)
        return [
            (hidden, len(self.taps) * self.target_hidden),
            *(matrix for qkv in (first, *others) for matrix in (qkv, *layer)),
            (self.draft_vocabulary, hidden),
        ]


def default_boundaries(layers: int) -> tuple[int, int, int]:
    """EAGLE-3's default taps, for checkpoints that name none. Raises ConfigError if the three would not differ."""
    if layers < 8:
        raise ConfigError(
            f"the head names no taps, and a target of {layers} layers is too shallow for the default ones "
            f"(2, layers/2, layers-3 must differ: at least 8 layers); give eagle_aux_hidden_state_layer_ids"
        )
    return 2, layers // 2, layers - 3


def check_fits(head: HeadConfig, *, hidden: int, vocabulary: int, layers: int) -> None:
    """Raises ConfigError, with both values, if the head was made for a target of other sizes."""
    for name, own, target in (("hidden size", head.target_hidden, hidden), ("vocabulary", head.vocabulary, vocabulary)):
        if own != target:
            raise ConfigError(
                f"the draft head does not fit its target: it expects {name} {own}, the target has {target}; "
                f"choose the head that was trained for this target, or spec.head=none",
                param="spec.head",
            )
    beyond = [tap for tap in head.taps if not 0 <= tap <= layers]
    if beyond:
        raise ConfigError(
            f"the draft head does not fit its target: it taps boundaries {list(head.taps)}, and {beyond} are none of "
            f"0 .. {layers}, which the target's {layers} layers have",
            param="spec.head",
        )
    if list(head.taps) != sorted(set(head.taps)):
        raise ConfigError(
            f"the draft head's taps {list(head.taps)} are not ascending, which is not served", param="spec.head"
        )
