"""How drafts are made: chains and best-first trees level by level, or all levels in one pass (P-EAGLE)."""
