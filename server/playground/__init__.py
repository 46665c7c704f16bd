"""The page at `/`: static files that may load resources only from this server."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse

_FOLDER = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".json": "application/json"}
_FILES = {path.name: path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}
PATHS = frozenset({"/", *(f"/playground/{name}" for name in _FILES if name != "index.html")})
"""Paths that a browser fetches before the user can enter a key."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def playground_routes() -> APIRouter:
    """Makes one route per file, so that no request path ever reaches the file system."""
    router = APIRouter(tags=["playground"])
    for path in sorted(PATHS):
        file = _FILES[path.rpartition("/")[2] or "index.html"]
        schema = {"type": "array", "items": {"type": "object"}} if file.suffix == ".json" else {"type": "string"}
        content: dict[int | str, dict[str, Any]] = {200: {"content": {_TYPES[file.suffix]: {"schema": schema}}}}
        router.add_api_route(path, _sender(file), methods=["GET"], response_class=FileResponse, responses=content)
    return router


def _sender(file: Path) -> Callable[[], Awaitable[FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(file, media_type=f"{_TYPES[file.suffix]}; charset=utf-8", headers=_HEADERS)

    return send
