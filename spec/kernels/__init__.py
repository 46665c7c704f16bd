"""Triton kernels of trees, each of the name and arguments of its twin in torch."""
