"""A tiny random target and head, written once, and workers made from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.config import parse_config
from aerie.contracts.worker import Worker
from aerie.worker import build_launcher
from tests.native.cpp_here import kernels  # noqa: F401  a fixture
from tests.spec import models

MakeWorker = Callable[..., Worker]


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def head_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drafts half of the vocabulary, in SpecForge's layout."""
    tensors = models.safeailab_names(models.head_tensors(draft_vocabulary=32)) | models.draft_maps(32)
    return models.write(tmp_path_factory.mktemp("head"), models.specforge_config(draft_vocabulary=32), tensors)


@pytest.fixture(scope="session")
def peagle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, drafts half of the vocabulary."""
    tensors = models.safeailab_names(models.peagle_tensors(draft_vocabulary=32)) | models.draft_maps(32)
    return models.write(tmp_path_factory.mktemp("peagle"), models.peagle_config(draft_vocabulary=32), tensors)


@pytest.fixture(scope="session")
def make_worker(target_folder: Path, head_folder: Path) -> MakeWorker:
    """`head`: a folder, None for the shared one, or "none" for the plain worker."""

    def make(head: Path | str | None = None, *, page_size: int = 16, dtype: str = "float32", **spec: Any) -> Worker:
        data = {
            "model": {"path": str(target_folder), "dtype": dtype},
            "engine": {"kv_tokens": 6144, "page_size": page_size},
            "scheduler": {"max_running": 8, "poison": True},
            "spec": {"head": str(head_folder if head is None else head), "depth": 6, "topk": 4, "nodes": 32}
            | {"planner": "fixed"}
            | spec,
        }
        return build_launcher(parse_config(data))

    return make
