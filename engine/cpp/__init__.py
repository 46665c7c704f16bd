"""Kernels of a CPU, in C++, each beside the torch that it must equal; compiled when a model is first loaded."""
