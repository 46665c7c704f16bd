"""Environment variables as overrides of a server's config. Only this file, in the composition root, reads them.

Called by `aerie serve`. Containers and managed platforms set these; the command line overrides them. Secrets belong in
the environment: every process of the machine can read a command line.
"""

import json
from collections.abc import Mapping

_KEYS = {
    "AIP_HTTP_PORT": "server.port",
    "AIP_HEALTH_ROUTE": "server.health_route",
    "AIP_PREDICT_ROUTE": "server.predict_route",
    "AERIE_API_KEY": "server.api_key",
    "AERIE_TRACE_URL": "server.trace_url",
}
"""Variables and their settings. An empty variable counts as unset. Managed platforms set AIP_*."""


def overrides_from(environment: Mapping[str, str]) -> list[str]:
    """Overrides as `section.key=value`. A platform that chooses the port connects from outside the container."""
    overrides = ["server.host=0.0.0.0"] if environment.get("AIP_HTTP_PORT") else []
    for name, key in _KEYS.items():
        value = environment.get(name, "")
        if value:
            # A number stays a number; everything else is quoted, so that YAML reads it as text.
            overrides.append(f"{key}={value if key == 'server.port' else json.dumps(value)}")
    return overrides
