"""The error of a request that the model's context does not hold, in the words that libraries of the field look for."""

from contracts.errors import BadRequest


def context_exceeded(length: int, given: str, advice: str, param: str) -> BadRequest:
    """`length` in tokens; `given` completes "However, "."""
    return BadRequest(
        f"This model's maximum context length is {length} tokens. However, {given}. {advice}.",
        param=param,
        code="context_length_exceeded",
    )
