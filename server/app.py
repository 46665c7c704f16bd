"""The application: routes, the gate before them, errors in one shape. A factory, so that nothing lives in globals."""

from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server.gate import OPEN_PATHS, Gate
from server.openai_routes import openai_routes
from server.platform_routes import platform_routes
from server.playground import PATHS, playground_routes
from server.problems import ErrorBody, register
from server.service import Service
from server.state_routes import state_routes
from server.token_routes import token_routes

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "What was wrong with the request"},
    "5XX": {"model": ErrorBody, "description": "What went wrong here; 503 says when to try again"},
}


def create_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Aerie",
        version=service.version,
        responses=_ERRORS,
        docs_url=None,  # the interactive pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host the caller named, and has no body
    )
    register(app)
    for routes in (openai_routes, token_routes, state_routes):
        app.include_router(routes(service))
    settings = service.config
    if settings.server.playground:
        app.include_router(playground_routes())
    if settings.server.health_route is not None or settings.server.predict_route is not None:
        app.include_router(platform_routes(service))
    open_paths = OPEN_PATHS | (PATHS if settings.server.playground else frozenset())
    if settings.server.health_route is not None:
        open_paths |= {settings.server.health_route}
    app.add_middleware(
        Gate,
        api_key=settings.server.api_key,
        max_body_bytes=settings.limits.max_body_bytes,
        cut=service.cut,
        open_paths=open_paths,
    )
    if settings.server.cors_origins:
        # Outside of the gate: a browser's preflight carries no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.server.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app
