"""The vector width and number types of the kernels (vectors.h)."""

import torch

LANES = 16
"""Numbers per vector operation."""
TYPES = (torch.float32, torch.bfloat16)
"""Types of activations and pools."""
