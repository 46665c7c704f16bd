"""The paths of a server's routes: names the route of a request, and guesses the path that a wrong one meant.

Made by `app`; used by `meter` and `problems`, since a request rejected by middleware never reaches a route.
"""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route


class Paths:
    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        known = [route for route in routes if isinstance(route, Route)]
        self._plain = frozenset(route.path for route in known if not route.param_convertors)
        self._patterns = {route.path_format: route.path_regex for route in known if route.param_convertors}

    def pattern(self, path: str) -> str | None:
        """The path of the matching route, such as `/v1/models/{name}`."""
        if path in self._plain:
            return path
        return next((pattern for pattern, regex in self._patterns.items() if regex.match(path)), None)

    def nearest(self, path: str) -> str | None:
        """A path that differs by a common mistake: a missing or extra `/v1`, or a trailing slash."""
        meant = (f"/v1{path}", path.removeprefix("/v1"), path.rstrip("/"))
        return next((other for other in meant if other != path and self.pattern(other) is not None), None)
