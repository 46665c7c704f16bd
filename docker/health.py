"""The container's health check: exit code 0 when the server accepts requests, 1 with the reason otherwise.

Requests `/ready`, or the route that a managed platform sets in AIP_HEALTH_ROUTE, on AIP_HTTP_PORT or port 8000. Needs
only Python, since slim images have no curl.
"""

import os
import sys
import urllib.error
import urllib.request

SECONDS = 4.0


def main() -> int:
    port = os.environ.get("AIP_HTTP_PORT", "8000")
    route = os.environ.get("AIP_HEALTH_ROUTE", "/ready")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=SECONDS):
            return 0
    except urllib.error.HTTPError as error:
        print(f"{route} answers {error.code}: {error.read(500).decode(errors='replace')}")
    except OSError as error:
        print(f"nothing answers on port {port}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
