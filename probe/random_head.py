"""A head whose weights say nothing: that of a checkpoint, with random matrices of the same spread in its format."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from aerie.contracts.errors import ConfigError


def random_head(folder: Path, out: Path) -> None:
    """Writes it to `out`, an empty folder. Norms and the tables of a reduced vocabulary stay as they are. Raises
    ConfigError if `folder` holds no safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} holds no safetensors to take the sizes of a random head from", param="spec.head")
    generator = torch.Generator().manual_seed(0)
    for other in folder.glob("*.json"):
        shutil.copy(other, out)
    for file in files:
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.dim() > 1:
                noise = torch.randn(tensor.shape, generator=generator)
                tensors[name] = (noise * tensor.float().std()).to(tensor.dtype)
        save_file(tensors, out / file.name)
