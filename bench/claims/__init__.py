"""Figures of README and docs: each comes from a result, and is what that result says."""
