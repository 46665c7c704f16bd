"""The `aerie` command as a process: handles signals during imports, and reports errors."""

import signal
import sys


def main() -> None:
    """Runs the command. An error that the user can fix prints one line and exits with code 2."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules load there is nothing to shut down cleanly
    from aerie.commands.app import app
    from aerie.contracts.errors import AerieError

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except AerieError as error:
        print(f"aerie: {error.message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
