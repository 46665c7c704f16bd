"""The `aerie` command as a process: what happens before there is anything to run, and how errors leave."""

import signal
import sys


def main() -> None:
    """Runs the command; an error that is the user's to mend is one line and exit code 2."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules load there is nothing to end in good order
    from aerie.commands import app
    from contracts.errors import AerieError

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except AerieError as error:
        print(f"aerie: {error.message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
