"""Sizes of batches that cost about the same, so that what is known of one need not be found for each.

Used by `alike` and `keeping`.
"""


def size_of(rows: int) -> int:
    """The least number of rows of the same size: up to 7 each is a size of its own; beyond, four to an octave."""
    beyond = max(rows.bit_length() - 3, 0)
    return rows >> beyond << beyond
