"""What the kernels compute with (vectors.h)."""

import torch

LANES = 16
"""Numbers at once."""
TYPES = (torch.float32, torch.bfloat16)
"""Of activations and pools."""
