"""The P-EAGLE head in training (arXiv 2602.01469)."""
