"""Operators of linear attention: looked up when such a model loads, and none of them runs here."""

from raising import raising

__getattr__ = raising
