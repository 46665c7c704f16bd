"""The progress bar of a stage, on stderr; every stage shows one."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextlib.contextmanager
def bar(title: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Gives a function that advances the bar; `done` counts work of an earlier start."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda count: progress.advance(task, count)


def say(text: str) -> None:
    """Prints a line for people, on stderr."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
