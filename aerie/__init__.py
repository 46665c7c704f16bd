"""The front door: the `aerie` command and `from aerie import LLM`. It composes the other packages and holds no logic
of theirs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerie.llm import LLM, Completion, RequestResult, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "RequestResult", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """The offline API is loaded when it is first asked for: the server's processes have no use for it."""
    if name in __all__:
        from aerie import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'aerie' has no attribute {name!r}")
