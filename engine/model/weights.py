"""Safetensors of a model folder, memory-mapped; every tensor is taken exactly once or reported by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.matrix import Matrix


class Source(Protocol):
    """Where a model takes its tensors from: `take` what it needs, then `finish`."""

    def __contains__(self, name: str) -> bool: ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the available tensors, for models that look before they ask."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor in `dtype`, else in the engine's. Raises ConfigError if it is not available in this shape."""

    def matrix(self, module: str, shape: tuple[int, int]) -> Matrix:
        """The matrix of a module, such as `lm_head`, in whatever format it is stored. Raises ConfigError as `take`."""

    def finish(self, *, ignored: tuple[str, ...] = ()) -> None:
        """Raises ConfigError if tensors are left that nobody took; names that end in one of `ignored` may be left."""


Reader = Callable[[Source, str, tuple[int, int]], Matrix]
"""Takes a module's matrix [out, in] from a source, in one format (formats.py)."""


def unquantized(source: Source, module: str, shape: tuple[int, int]) -> Matrix:
    """The module's `weight`, as it is."""
    return source.take(f"{module}.weight", shape)


class Weights:
    """The tensors of a folder. `take` what the model needs, then `finish`.

    `rename` maps a file's names to those that are asked for; None leaves a tensor out on purpose. `reader` knows how
    the folder stores matrices.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        rename: Callable[[str], str | None] = str,
        reader: Reader = unquantized,
    ) -> None:
        self._folder = folder
        self._reader = reader
        self._dtype = dtype
        self._device = str(device)
        self._files: dict[str, tuple[Path, str]] = {}
        for path in _shards(folder):
            for stored in _names(path):
                name = rename(stored)
                if name in self._files:
                    raise ConfigError(f"{folder} holds {name!r} twice, as {self._files[name][1]!r} and as {stored!r}")
                if name is not None:
                    self._files[name] = path, stored
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors; reads no data."""
        found = {}
        for name, (path, stored) in self._files.items():
            with safe_open(path, framework="pt") as file:
                found[name] = tuple(file.get_slice(stored).get_shape())
        return found

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor in `dtype`, else in the engine's. Raises ConfigError if it is missing or has another shape."""
        if name not in self._files:
            raise ConfigError(
                f"tensor {name!r} is missing in {self._folder}; the checkpoint does not fit its config.json"
            )
        path, stored = self._files[name]
        with safe_open(path, framework="pt", device=self._device) as file:
            tensor: Tensor = file.get_tensor(stored)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name!r} in {self._folder} has shape {tuple(tensor.shape)}; expected {shape}")
        self._taken.add(name)
        return tensor.to(dtype or self._dtype)

    def matrix(self, module: str, shape: tuple[int, int]) -> Matrix:
        """The matrix of a module, in the folder's format. Raises ConfigError as `take`."""
        return self._reader(self, module, shape)

    def finish(self, *, ignored: tuple[str, ...] = ()) -> None:
        """Raises ConfigError that names tensors nobody took; those that end in one of `ignored` may be left."""
        left = sorted(n for n in self._files if n not in self._taken and not n.endswith(ignored or ("\0",)))
        if left:
            shown = ", ".join(repr(name) for name in left[:5])
            raise ConfigError(f"{len(left)} unexpected tensors in {self._folder}: {shown}{', ...' if left[5:] else ''}")


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ConfigError(f"{folder} lacks the weight files {', '.join(missing)} that its index names")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise ConfigError(f"{folder} holds pickled weights; Aerie loads safetensors only: convert them first")
    raise ConfigError(f"no safetensors in {folder}", param="model.path")


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except Exception as error:  # noqa: BLE001  the library raises its own type for a damaged file
        raise ConfigError(f"{path} is not a readable safetensors file: {error}") from None
