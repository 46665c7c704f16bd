"""Large pages for a lane's process: KV, weights and what passes leave lie all over its memory.

Called where a CPU's lane starts. Address translation of pages of 4 KB takes up to a fifth of a step of many rows, and
how much of it is chance: each process gets other pieces of memory. glibc asks for large pages on behalf of a process
that started with this tunable (glibc 2.35 and later; mallopt has no such parameter), where the system grants them on
request, as most do (`/sys/kernel/mm/transparent_hugepage/enabled` is `madvise`). Elsewhere it does nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

TUNABLES, LARGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


@contextmanager
def large_pages() -> Iterator[None]:
    """Processes that start meanwhile ask for large pages. A value that somebody has set stands."""
    given = os.environ.get(TUNABLES)
    if given is not None and LARGE in given:
        yield
        return
    os.environ[TUNABLES] = f"{given}:{LARGE}=1" if given else f"{LARGE}=1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[TUNABLES]
        else:
            os.environ[TUNABLES] = given
