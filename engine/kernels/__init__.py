"""Triton kernels, each with the torch reference that it must equal; imported only if a device can run them."""
