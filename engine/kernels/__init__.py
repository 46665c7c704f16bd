"""Triton kernels, each beside the torch that it must equal; imported only where a device can run them."""
