"""The application: routes, the gate before them, errors in one shape. A factory, so that it needs no globals."""

import functools
from typing import Any

from fastapi import FastAPI

from aerie.server.http.cors import Cors
from aerie.server.http.gate import OPEN_PATHS, Gate
from aerie.server.http.paths import Paths
from aerie.server.http.problems import register
from aerie.server.openai.openapi import document
from aerie.server.playground import PATHS, playground_routes
from aerie.server.responses.bodies import ResponseBody
from aerie.server.responses.shapes import EVENTS
from aerie.server.routes.openai import openai_routes
from aerie.server.routes.platform import platform_routes
from aerie.server.routes.responses import response_routes
from aerie.server.routes.state import state_routes
from aerie.server.routes.tokens import token_routes
from aerie.server.service import Service
from aerie.server.telemetry.meter import Meter

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"content": _ERROR, "description": "What was wrong with the request"},
    "5XX": {"content": _ERROR, "description": "What went wrong here; 503 says when to try again"},
}


def create_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Aerie",
        version=service.version,
        responses=_ERRORS,
        docs_url=None,  # the interactive pages load third-party scripts
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the caller's Host header, and has no body
    )
    register(app)
    settings = service.config
    routers = [routes(service) for routes in (openai_routes, response_routes, token_routes, state_routes)]
    if settings.server.playground:
        routers.append(playground_routes())
    if settings.server.health_route is not None or settings.server.predict_route is not None:
        routers.append(platform_routes(service))
    for router in routers:
        app.include_router(router)
    app.state.paths = paths = Paths([*app.routes, *(route for router in routers for route in router.routes)])
    open_paths = OPEN_PATHS | (PATHS if settings.server.playground else frozenset())
    if settings.server.health_route is not None:
        open_paths |= {settings.server.health_route}
    app.add_middleware(
        Gate,
        api_key=settings.server.api_key,
        max_body_bytes=settings.limits.max_body_bytes,
        body_seconds=settings.server.body_seconds,
        cut=service.cut,
        open_paths=open_paths,
    )
    if settings.server.cors_origins:
        app.add_middleware(Cors, origins=settings.server.cors_origins)
    app.add_middleware(Meter, metrics=service.metrics, paths=paths)  # added last, so it is the outermost
    made = functools.cache(lambda: document(app, settings, open_paths, (ResponseBody, *EVENTS)))
    app.openapi = made  # type: ignore[method-assign]
    return app
