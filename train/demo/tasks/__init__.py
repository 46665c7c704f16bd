"""The tasks that the demo target learns: generated from a seed, each answer checked from its prompt alone."""

from aerie.train.demo.tasks import (
    arithmetic,
    code,
    copying,
    counting,
    docstrings,
    edits,
    extraction,
    sorting,
    stories,
    tables,
    tools,
)
from aerie.train.demo.tasks.exercise import Task

TASKS: dict[str, Task] = {
    "copying": copying,
    "extraction": extraction,
    "tools": tools,
    "tables": tables,
    "code": code,
    "edits": edits,
    "counting": counting,
    "sorting": sorting,
    "arithmetic": arithmetic,
    "stories": stories,
    "docstrings": docstrings,
}
