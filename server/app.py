"""The application: routes, the gate before them, errors in one shape. A factory, so that it needs no globals."""

import functools
from typing import Any

from fastapi import FastAPI

from server.cors import Cors
from server.gate import OPEN_PATHS, Gate
from server.meter import Meter
from server.openai_routes import openai_routes
from server.openapi import document
from server.paths import Paths
from server.platform_routes import platform_routes
from server.playground import PATHS, playground_routes
from server.problems import register
from server.service import Service
from server.state_routes import state_routes
from server.token_routes import token_routes

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
    routers = [routes(service) for routes in (openai_routes, token_routes, state_routes)]
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
    made = functools.cache(lambda: document(app, settings, open_paths))
    app.openapi = made  # type: ignore[method-assign]
    return app
