"""The error of a request that exceeds the model's context, in the words that common client libraries look for."""

from aerie.contracts.errors import BadRequest


def context_exceeded(length: int, given: str, advice: str, param: str) -> BadRequest:
    """`length` in tokens; `given` completes "However, "."""
    return BadRequest(
        f"This model's maximum context length is {length} tokens. However, {given}. {advice}.",
        param=param,
        code="context_length_exceeded",
    )
