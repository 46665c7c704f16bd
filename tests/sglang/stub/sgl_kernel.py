"""Stands in for SGLang's compiled kernels where there is no GPU driver: every function exists, and every call raises.

With this folder first on PYTHONPATH and SGLANG_USE_CPU_ENGINE=1, SGLang imports and serves plainly on torch's own
operators.
"""

from raising import raising

__version__ = "stub"
__getattr__ = raising
