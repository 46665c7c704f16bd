"""The entry points: the `aerie` command and `from aerie import LLM`. Composes the other packages; holds none of their
logic.

The folders at the top of a checkout are this package's parts: `server/` is imported as `aerie.server`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerie.llm import LLM, Completion, RequestResult, SamplingParams

_HERE = Path(__file__).parent
if not (_HERE / "contracts").is_dir():  # a checkout: a wheel has them all in here
    __path__.append(str(_HERE.parent))

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "RequestResult", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """Loads the offline API on first use, since the server's processes do not need it."""
    if name in __all__:
        from aerie import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'aerie' has no attribute {name!r}")
