"""Optimizers, learning rates, and checkpoints from which a run resumes exactly."""
