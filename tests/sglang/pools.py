"""Forks whose threads may run torch, once this is imported.

In a fork torch leaks its parent's pool of threads and makes another. The first thread that needs the pool does so
without a lock, and one beside it finds none ("Invalid thread pool!"): the fork makes it before it has a second thread.
"""

import os

import torch


def _renew() -> None:
    torch.set_num_threads(torch.get_num_threads())


os.register_at_fork(after_in_child=_renew)
