"""Converts pickled weights (pytorch_model*.bin) to safetensors, for heads and models published only as pickles.

    python scripts/convert_pickle.py FOLDER OUT

Aerie never opens a pickle while it serves. This script does so once, with PyTorch's weights-only loader, which accepts
nothing but tensors. Configs, tokenizers and templates are copied beside them.
"""

import argparse
import json
import pickle
import shutil
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file

_BESIDE = ("*.json", "*.jinja", "tokenizer.model", "README.md")
_INDEX = "model.safetensors.index.json"


class NotConverted(Exception):
    """What prevents the conversion, and what to do about it."""


def convert(folder: Path, out: Path) -> list[str]:
    """Writes all tensors to `out` and returns their names. Raises NotConverted."""
    sources = sorted(folder.glob("pytorch_model*.bin"))
    if not sources:
        raise NotConverted(f"no pytorch_model*.bin in {folder}; name the folder of a downloaded model or head")
    if any(out.glob("*.safetensors")):
        raise NotConverted(f"{out} has safetensors already; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    size = 0
    for number, source in enumerate(sources, 1):
        tensors = _read(source)
        twice = sorted(set(tensors) & set(places))
        if twice:
            raise NotConverted(
                f"{source} holds {twice[0]!r}, and so does a file before it; keep one copy of the weights"
            )
        name = "model.safetensors" if len(sources) == 1 else f"model-{number:05d}-of-{len(sources):05d}.safetensors"
        save_file(tensors, out / name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    if len(sources) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (out / _INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    for pattern in _BESIDE:
        for path in folder.glob(pattern):
            if path.name != "pytorch_model.bin.index.json":
                shutil.copyfile(path, out / path.name)
    return sorted(places)


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Tensors with separate memory: two names of one tensor become two tensors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about formats that are rejected right below
            data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotConverted(f"{path} holds more than tensors, and is not opened: {str(error).splitlines()[0]}") from None
    except (RuntimeError, EOFError) as error:
        raise NotConverted(f"{path} cannot be read, download it again: {str(error).splitlines()[0]}") from None
    data = data.get("state_dict", data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or not all(isinstance(one, torch.Tensor) for one in data.values()):
        raise NotConverted(f"{path} is not a mapping of names to tensors")
    return {str(name): tensor.detach().clone().contiguous() for name, tensor in data.items()}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="From pickled weights to safetensors.")
    parser.add_argument("folder", type=Path, help="with config.json and pytorch_model*.bin")
    parser.add_argument("out", type=Path, help="a new folder")
    given = parser.parse_args(words)
    try:
        names = convert(given.folder, given.out)
    except NotConverted as error:
        print(f"convert_pickle: {error}", file=sys.stderr)
        return 2
    print(f"{len(names)} tensors in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
