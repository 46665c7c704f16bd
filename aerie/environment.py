"""What the environment says about a server, as overrides of its config. Read here, in the composition root, only.

Called by `aerie serve`. Containers and managed platforms set these; the command line comes after them and wins. Secrets
belong here rather than there, where every process of the machine could read them.
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
"""Variables and the settings that they stand for; an empty one counts as none. AIP_* are those of managed platforms."""


def overrides_from(environment: Mapping[str, str]) -> list[str]:
    """Overrides as `section.key=value`. A platform that chooses the port asks from outside of the container."""
    overrides = ["server.host=0.0.0.0"] if environment.get("AIP_HTTP_PORT") else []
    for name, key in _KEYS.items():
        value = environment.get(name, "")
        if value:
            # A number stays one; everything else is text, whatever YAML would make of it.
            overrides.append(f"{key}={value if key == 'server.port' else json.dumps(value)}")
    return overrides
