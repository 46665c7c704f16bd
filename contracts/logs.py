"""The same log format for every process: set by the composition root, and by `child` in its child processes."""

import logging
import sys

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Keeps handlers that were set before."""
    logging.basicConfig(level=level, stream=sys.stderr, format=FORM)


def level_here() -> int | None:
    """The level of this process; None if nobody set up logging, as in a user's script."""
    root = logging.getLogger()
    return root.level if root.handlers else None
