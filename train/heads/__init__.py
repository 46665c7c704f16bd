"""Heads in training: modules, losses, the draft vocabulary, and what is exported."""
