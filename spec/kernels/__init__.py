"""Triton kernels for trees, with the names and arguments of their references in torch."""
