"""Storage of feature shards: a folder of this machine or any store that fsspec knows. A shard is either complete or
absent.

On this machine a shard is written beside its final path and renamed; a store takes an object whole or not at all.
"""

from pathlib import Path
from typing import Any

from aerie.contracts.errors import AerieError
from aerie.train.pipeline.folder import reported_when_full, write_whole


class Storage:
    """Bytes by name under `url`: a path, file://... or another fsspec URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._local: Path | None = None
        if "://" not in url or url.startswith("file://"):
            self._local = Path(url.removeprefix("file://"))
            return
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise AerieError(f"{url} needs fsspec: pip install -e '.[train]'") from None
        try:
            self._store, self._root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise AerieError(f"{url} cannot be opened: {error} (features.storage)") from None

    def path(self, name: str) -> Path | None:
        """The path of a local file, which can be mapped instead of read; None in a store."""
        return None if self._local is None else self._local / name

    def write(self, name: str, data: bytes) -> None:
        if self._local is not None:
            with reported_when_full(self._local):
                self._local.mkdir(parents=True, exist_ok=True)
                write_whole(self._local / name, data)
        else:
            self._store.pipe_file(f"{self._root}/{name}", data)

    def read(self, name: str) -> bytes:
        if self._local is not None:
            return (self._local / name).read_bytes()
        return bytes(self._store.cat_file(f"{self._root}/{name}"))

    def size(self, name: str) -> int | None:
        """Bytes of a shard; None if it does not exist."""
        if self._local is not None:
            path = self._local / name
            return path.stat().st_size if path.exists() else None
        try:
            info: dict[str, Any] = self._store.info(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return int(info["size"])

    def free_bytes(self) -> int | None:
        """Free space, where that can be known."""
        import shutil

        if self._local is None:
            return None
        return shutil.disk_usage(next(place for place in (self._local, *self._local.parents) if place.exists())).free
