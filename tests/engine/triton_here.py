"""Whether Triton kernels can run here: on a GPU, or in Triton's interpreter where TRITON_INTERPRET=1."""

import importlib.util
import os

import pytest
import torch

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not GPU else "cuda")
INSTALLED = importlib.util.find_spec("triton") is not None

needs_triton = pytest.mark.skipif(
    not INSTALLED or not (GPU or INTERPRETED),
    reason="Triton is not installed, or there is no GPU and TRITON_INTERPRET is not 1: run make test-gpu-contracts",
)
