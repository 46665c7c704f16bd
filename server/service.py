"""The parts of a running server, passed to the routes as one value. Built by `run` (and by tests); no globals."""

import asyncio
import hashlib
import importlib.metadata
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from aerie.contracts.config import Config, masked
from aerie.contracts.errors import AerieError, NotFound
from aerie.contracts.messages import Ready
from aerie.server.dispatch.admission import Admission
from aerie.server.dispatch.client import Engine
from aerie.server.parsing.families import Families, served_families
from aerie.server.telemetry.head_watch import HeadWatch, Promise
from aerie.server.telemetry.metrics import Metrics
from aerie.server.telemetry.state_metrics import State
from aerie.server.telemetry.tracing import Tracing
from aerie.server.text.grammars import Grammars
from aerie.server.text.tokenizer import Tokenizer


class NotServing(AerieError):
    """The error that /health and /ready answer while the server does not serve."""

    status = 503


_COMPUTES = ("device", "dtype", "attention", "kernel_set", "products", "threads")
"""Keys of the engine's report that affect rounding."""


@dataclass(frozen=True, slots=True)
class Service:
    config: Config
    tokenizer: Tokenizer
    families: Families
    grammars: Grammars
    engine: Engine
    admission: Admission
    metrics: Metrics
    model: str
    """The name that /v1/models lists; requests may use `model.path` too."""
    version: str
    settings: str
    """The version and the configuration, as one text."""
    tracing: Tracing | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the very end: drops connections that still send."""

    def ready(self) -> Ready:
        """The scheduler's Ready message. Raises EngineDead, or Overloaded while the engine is still starting."""
        if self.engine.death is not None:
            raise self.engine.death
        if self.engine.ready is None:
            raise self.admission.reject("starting", "the model is still being loaded; try again soon", 2)
        return self.engine.ready

    def fingerprint(self) -> str:
        """Changes with the version, the configuration, the device, its kernels and their threads."""
        computes = {name: self.ready().report.get(name) for name in _COMPUTES}
        return f"aerie-{hashlib.sha256((self.settings + json.dumps(computes)).encode()).hexdigest()[:12]}"

    def check_model(self, name: str | None) -> None:
        """Raises NotFound if `name` is not the served model; accepts None and an empty name."""
        if name and name not in (self.model, self.config.model.path):
            message = f"no model {name[:120]!r} here; this server has {self.model!r}"
            raise NotFound(message, param="model", code="model_not_found")


def build_service(config: Config, tokenizer: Tokenizer, engine: Engine, promise: Promise | None = None) -> Service:
    """`promise` is what the head's card promises. Raises ConfigError if traces are requested but not available."""
    admission = Admission(config.scheduler.max_running + config.scheduler.max_waiting)
    model = config.model.served_name or _default_name(config.model.path)
    version = _version()
    if promise is not None:
        engine.on_snapshot = HeadWatch(promise).look
    promised = None if promise is None else promise.length
    state = State(model, config, engine, admission, version=version, promised=promised)
    trace_url = config.server.trace_url
    return Service(
        config=config,
        tokenizer=tokenizer,
        families=served_families(tokenizer.template_source, config.server, tokenizer.tool_template_source),
        grammars=Grammars(tokenizer, config.limits),
        engine=engine,
        admission=admission,
        metrics=Metrics(model, state),
        model=model,
        version=version,
        settings=json.dumps([version, masked(config)], sort_keys=True),
        tracing=None if trace_url is None else Tracing(trace_url, version=version),
    )


def _default_name(path: str) -> str:
    """A hub id unchanged, or the name of a folder."""
    return Path(path).resolve().name if Path(path).exists() else path


def _version() -> str:
    try:
        return importlib.metadata.version("aerie-serve")
    except importlib.metadata.PackageNotFoundError:  # runs from the sources, not installed
        return "0+source"
