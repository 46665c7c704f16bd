"""One form for the log lines of every process: set by the composition root, and by `child` in those below it."""

import logging
import sys

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Whoever set handlers before keeps them."""
    logging.basicConfig(level=level, stream=sys.stderr, format=FORM)


def level_here() -> int | None:
    """Of this process; None where nobody set up logging, as in a user's script."""
    root = logging.getLogger()
    return root.level if root.handlers else None
