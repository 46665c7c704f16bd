"""The server's state: /health, /ready, /version, /metrics, /config."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from aerie.contracts.config import masked
from aerie.server.openai.shapes import Settings, Status, Version
from aerie.server.service import NotServing, Service


def state_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["state"])

    @router.get("/health", response_model=Status)
    async def health() -> dict[str, str]:
        """Whether the server works; 503 means that it needs a restart, unless the code is `starting`."""
        check_alive(service)
        return {"status": "ok"}

    @router.get("/ready", response_model=Status)
    async def ready() -> dict[str, str]:
        """Whether new requests should be sent here; 503 while starting and while draining."""
        check_ready(service)
        return {"status": "ready"}

    @router.get("/version", response_model=Version)
    async def version() -> dict[str, str]:
        return {"version": service.version}

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus' text format: `aerie:*`, and `vllm:*` as aliases."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/config", response_model=Settings)
    async def config() -> dict[str, Any]:
        """The resolved configuration, secrets masked, and the engine's resulting sizes, in bytes and tokens."""
        return {"version": service.version, "config": masked(service.config), "engine": service.ready().report}

    return router


def check_alive(service: Service) -> None:
    """Raises NotServing while the engine is not available."""
    if service.engine.death is not None:
        raise NotServing(service.engine.death.message, code="engine_dead")
    if service.engine.ready is None:
        raise NotServing("the model is still being loaded", code="starting")


def check_ready(service: Service) -> None:
    """Raises NotServing while new requests should be sent elsewhere."""
    check_alive(service)
    if service.admission.draining:
        raise NotServing("the server is shutting down", code="draining")
