"""Offline: from a text to a target, and from a target to its draft head. Nothing that serves imports this package."""
