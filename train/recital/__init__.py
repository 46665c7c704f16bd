"""The demo pair: a target that recites docstrings, and its heads."""
