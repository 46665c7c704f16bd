"""CORS: lets pages of other origins call the API after a browser's preflight request. Set up by `app`.

Runs outside the gate, since a preflight carries no key.
"""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from aerie.contracts.errors import BadRequest
from aerie.server.http.problems import error_answer


class Cors(CORSMiddleware):
    """`origins` as browsers send them; `*` for all. Any header is allowed, since clients add custom ones."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # a named origin is allowed on a private network too
            expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        origin, method = (request_headers[name][:120] for name in ("origin", "access-control-request-method"))
        allowed = f"the origins of server.cors_origins may send {', '.join(self.allow_methods)}"
        refusal = BadRequest(f"{method} from {origin} is not allowed here: {allowed}", code="cors_refused")
        headers = {
            name: answer.headers[name] for name in answer.headers if name not in ("content-length", "content-type")
        }
        return error_answer(refusal, headers)
