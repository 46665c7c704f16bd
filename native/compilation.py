"""Compiles the kernels in a separate process, which ends with its caller, however that ends, and cleans up.

`library` calls `compiled`, which runs this file. At the end of standard input the process kills the compilers and
removes their output, so a server that is stopped or killed during its first start leaves no compiler running.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Thread

_AT_ONCE = 2
_LOOK_SECONDS = 0.5
_FAILED, _LATE, _UNKEPT = 1, 2, 3
"""Exit codes: a compiler failed, it timed out, or its output could not be written."""

logger = logging.getLogger("aerie.kernels")


def compiled(
    command: Sequence[str], sources: Sequence[Path], library: Path, *, seconds: float, idle_seconds: float
) -> Path:
    """The library, from all sources compiled with `command` each and linked. It is written completely or not at all.

    `seconds` is the limit for all of them together; a compiler that does not compute for `idle_seconds` hangs, and
    ends them earlier. Raises CalledProcessError, TimeoutExpired, or OSError if it cannot be written.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    logger.info("compiling the kernels for this CPU into %s; later starts find them there", library.parent)
    began = time.monotonic()
    job = json.dumps([*map(list, (command, map(str, sources))), str(library), seconds, idle_seconds])
    words = [sys.executable, "-I", __file__, job]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait()
    if code == _LATE:
        raise subprocess.TimeoutExpired(list(command), seconds)
    if code == _UNKEPT:
        raise OSError(0, said.decode(errors="replace").strip())
    if code:
        raise subprocess.CalledProcessError(code, list(command), stderr=said)
    logger.info("compiled in %.1f s", time.monotonic() - began)
    return library


class _Compilers:
    """The running compilers; each leads a process group, since a compiler has child processes. All of them end before
    `seconds` have passed, and one that does not compute ends after `idle_seconds`.
    """

    def __init__(self, seconds: float, idle_seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._idle_seconds = idle_seconds
        self._running: set[int] = set()
        self._lock = Lock()
        self._stopped = False

    def run(self, command: Sequence[str], scratch: str) -> None:
        """Raises CalledProcessError and TimeoutExpired. Nothing of the command is left running."""
        if time.monotonic() >= self._end:
            raise subprocess.TimeoutExpired(list(command), 0)
        with self._lock:
            if self._stopped:
                raise subprocess.CalledProcessError(_FAILED, list(command), stderr=b"stopped")
            process = subprocess.Popen(
                command, stderr=subprocess.PIPE, process_group=0, env=os.environ | {"TMPDIR": scratch}
            )
            self._running.add(process.pid)
        try:
            said = self._said(process)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._running.discard(process.pid)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(command), stderr=said)

    def _said(self, process: "subprocess.Popen[bytes]") -> bytes:
        """What it wrote, once all of its children, too, have closed stderr. Raises TimeoutExpired."""
        computed, since = -1, time.monotonic()
        while True:
            try:
                return process.communicate(timeout=min(_LOOK_SECONDS, self._idle_seconds))[1]
            except subprocess.TimeoutExpired:
                now, ticks = time.monotonic(), _ticks(process.pid)
                if ticks != computed:
                    computed, since = ticks, now
                if now >= self._end or now - since >= self._idle_seconds:
                    raise

    def stop(self) -> None:
        """Kills all compilers; no other is started."""
        with self._lock:
            self._stopped = True
            for pid in self._running:
                _kill(pid)


def _ticks(group: int) -> int:
    """CPU time that the processes of a group and their children have used."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) if int(fields[2]) == group else 0
    return total


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _compile(compilers: _Compilers, command: list[str], sources: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch, ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = [f"{scratch}/{Path(source).stem}.o" for source in sources]
        each = [[*command, "-c", source, "-o", part] for source, part in zip(sources, parts, strict=True)]
        list(pool.map(lambda words: compilers.run(words, scratch), each))
        whole = Path(scratch) / "whole"
        compilers.run([*command, "-shared", *parts, "-o", str(whole)], scratch)
        whole.replace(library)


def _main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the end of stdin decides; unlike SIG_IGN, a handler is not inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    command, sources, library, seconds, idle_seconds = json.loads(sys.argv[1])
    compilers = _Compilers(seconds, idle_seconds)

    def await_the_end_of_the_caller() -> None:
        while os.read(0, 1):
            pass
        compilers.stop()

    Thread(target=await_the_end_of_the_caller, daemon=True).start()
    try:
        _compile(compilers, command, sources, Path(library))
    except subprocess.TimeoutExpired:
        return _LATE
    except subprocess.CalledProcessError as error:
        os.write(2, error.stderr)
        return _FAILED
    except OSError as error:
        os.write(2, str(error.strerror).encode())
        return _UNKEPT
    return 0


if __name__ == "__main__":
    sys.exit(_main())
