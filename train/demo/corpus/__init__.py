"""Docstrings of Python's standard library: the text, the questions about it, and a target that recites it."""
