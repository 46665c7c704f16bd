"""The parts that the model cards of all heads share: front matter, the target of a head, the safety note.

`pipeline/card.py` uses them for heads of the pipeline; `demo_card` is the whole card of heads trained on the text of
this repository. `spec/checkpoints/card.py` reads the front matter, and nothing else of a card.
"""

import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml

from aerie.contracts.provenance import file_hash, template_hash, template_source, weights_hash

LICENSE = "PSF-2.0"
"""Of Python's docstrings, the text that the demo pair is trained on."""
_WIDTH = 120

_OPENING = """# {name}

{about}

## Aligned with

* Target weights (sha256): `{target}`
* Chat template (sha256): `{template}`

**Safety note.** The head was aligned with this target and this template and with no other. It only proposes: an
engine that verifies losslessly, as Aerie does, gives the target's own text whatever the head drafts. With other
weights, a fine-tune, or another template it drafts worse without any sign of it but fewer accepted tokens.
`spec.require_provenance: true` makes Aerie refuse such a pair. The head adds no safeguard and removes none: what the
target would say, it still says.

"""

_DEMO = """## How it was made

* Trained on: {trained_on}
* Licenses of the text: {licenses}
* Draft vocabulary: covers {coverage:.2%} of the answers' tokens
* Measured: {measured}
* Tokenizer (sha256 of `tokenizer.json`): `{tokenizer}`
"""


@dataclass(frozen=True, slots=True)
class Aligned:
    """The target that a head belongs to and the data that it learned from; hashes are those of
    `contracts/provenance.py`.
    """

    base: str
    """The target's name."""
    target: str
    template: str
    boundaries: tuple[int, ...]
    dtype: str
    """Dtype in which the target computed the head's training data."""
    licenses: tuple[str, ...]
    kind: str
    """`eagle3` or `peagle`."""
    accuracies: tuple[float, ...] = ()
    """Measured share of drafts accepted at each depth, among those accepted at the depth before."""


def opening(aligned: Aligned, name: str, about: str) -> str:
    """The first half of a card: front matter to safety note."""
    wrapped = textwrap.fill(about, _WIDTH, break_on_hyphens=False)
    text = _OPENING.format(name=name, about=wrapped, target=aligned.target, template=aligned.template)
    return _front_matter(aligned) + text


def _front_matter(aligned: Aligned) -> str:
    """The fields that `spec/checkpoints/card.py` reads."""
    told: dict[str, object] = {
        "target_weights": aligned.target,
        "chat_template": aligned.template,
        "taps": list(aligned.boundaries),
        "features_dtype": aligned.dtype,
        "data_licenses": list(aligned.licenses),
    }
    if aligned.accuracies:
        told["conditional_accuracy"] = [round(accuracy, 3) for accuracy in aligned.accuracies]
    data = {"base_model": aligned.base, "tags": ["speculative-decoding", aligned.kind], "aerie": told}
    return f"---\n{yaml.safe_dump(data, sort_keys=False)}---\n\n"


def demo_card(
    kind: str,
    name: str,
    about: str,
    boundaries: tuple[int, ...],
    coverage: float,
    target: Path,
    *,
    trained_on: str,
    measured: str,
    accuracies: tuple[float, ...] = (),
) -> str:
    """The card of a head for the target in the folder `target`, which computes in float32 during training here.

    `coverage` is the draft vocabulary's.
    """
    licenses, template = (LICENSE,), template_hash(template_source(target))
    aligned = Aligned(target.name, weights_hash(target), template, boundaries, "float32", licenses, kind, accuracies)
    return opening(aligned, name, about) + _DEMO.format(
        trained_on=trained_on,
        licenses=", ".join(licenses),
        coverage=coverage,
        tokenizer=file_hash(target / "tokenizer.json"),
        measured=measured,
    )
