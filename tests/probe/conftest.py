"""A tiny random pair for the probes, and lanes over it in this process."""

import pytest

from aerie.contracts.config import Config, parse_config
from aerie.contracts.step import Lane
from aerie.engine.lanes.inline import InlineLane
from aerie.worker import build_worker
from tests.spec import models

PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [9, 8], list(range(20, 43)), [60])


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("pair")
    target = models.write_target(folder / "target")
    head = models.write(folder / "head", models.specforge_config(), models.safeailab_names(models.head_tensors()))
    return parse_config(
        {
            "model": {"path": str(target), "dtype": "float32", "max_length": 96},
            "engine": {"kv_tokens": 2048},
            "scheduler": {"max_running": 4, "poison": True},
            "spec": {"head": str(head), "planner": "fixed", "depth": 3, "topk": 2, "nodes": 6},
        }
    )


def make_lane(config: Config) -> Lane:
    return InlineLane(build_worker(config))
