"""A whole API process for tests of its life and death: `python -m tests.server.serve_fake FOLDER [section.key=value]`.

Does what the composition root does, with the fake scheduler as a child process. Prints one JSON line when it is ready,
and says on leaving whether torch or transformers were ever imported.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path

from aerie.contracts import wire
from aerie.contracts.config import load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Ready
from aerie.server.run import listen, run
from tests.patience import PATIENCE


def main(folder: str, *overrides: str) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    config = load_config(None, [f"model.path={folder}", "model.served_name=demo", *overrides])
    try:
        listener = listen(config.server)
    except ConfigError as error:
        print(error.message, file=sys.stderr)
        return 2
    address = wire.private_address()
    # A group of its own: like the real one, it does not hear a Ctrl-C.
    command = [sys.executable, "-m", "tests.server.fake_scheduler", address]
    scheduler = subprocess.Popen(command, start_new_session=True)

    def announce(ready: Ready, url: str) -> None:
        print(json.dumps({"url": url, "scheduler": scheduler.pid, "max_length": ready.max_length}), flush=True)

    try:
        return run(
            config,
            listener=listener,
            address=address,
            folder=Path(folder),
            scheduler_alive=lambda: scheduler.poll() is None,
            announce=announce,
        )
    finally:
        scheduler.wait(PATIENCE)
        wire.remove_address(address)
        heavy = [name for name in ("torch", "transformers") if name in sys.modules]
        print(json.dumps({"heavy_imports": heavy, "scheduler_exit": scheduler.returncode}), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
