"""A fake server as a command, for targets that a sweep starts: `python fake_command.py PORT FASTNESS [RECORD [STUCK]]`.

FASTNESS is how many pieces of text it sends in a tenth of a second; the first takes as long as two. Its id is appended
to RECORD. Once the file STUCK appears it answers no more; where it was there before, that does not matter.
"""

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.bench.fake_server import Manners, application


def main() -> None:
    if len(sys.argv) > 3:
        with open(sys.argv[3], "a", encoding="utf-8") as record:
            record.write(f"{os.getpid()}\n")
    gap = 0.1 / float(sys.argv[2])
    manners = Manners(ttft=2 * gap, gap=gap, pieces=5)
    if len(sys.argv) > 4 and not Path(sys.argv[4]).exists():
        manners.stuck = Path(sys.argv[4])
    web.run_app(
        application(manners), host="127.0.0.1", port=int(sys.argv[1]), print=None, loop=asyncio.new_event_loop()
    )


if __name__ == "__main__":
    main()
