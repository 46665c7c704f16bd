"""A worker for CPUs in C++: `worker` runs whole steps in one call where it can, `kernels` replace single operations of
the worker that it falls back on, `src` has the sources, and `library` compiles them.

No layer below depends on it: the composition root builds a worker of `spec` with these kernels, and wraps it.
"""
